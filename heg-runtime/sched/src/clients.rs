//! Turns between clients: the service that each one had, and the memory that it holds.
//!
//! Requests of equal rank, i.e. of one class, are served by client: the one that has had the least lane time goes
//! first. A client's time is the predicted time of its launches; an iteration is divided among its rows. This is
//! start-time fair queueing. Virtual time is the time that the last client to run had been served until then. A
//! client whose first prompt arrives catches up with virtual time but for one turn, so that idle time is no credit.
//! Its served time is remembered for as long as it matters, so that leaving and coming back is no credit either.
//!
//! Prompts are compared by their *due time*: the time that their client was served, plus the rest of the prompt. It
//! is constant while a prompt runs, so that two long prompts do not alternate, and a short one passes a long one.
//! While prompts of two clients wait, one client is served at most a turn plus the other's prompt more than the other
//! client.
//!
//! With one client nothing is counted, and the order of work is unaffected.

use std::collections::BTreeMap;

use super::kv::KvBudget;
use super::ledger::{Entry, Ledger, Progress};
use super::request::{Class, ClientId, RequestId, Submission};
use heg_spec::bug;

/// The accounts of clients that have requests, or had some until lately.
#[derive(Debug, Clone, Default)]
pub(super) struct Clients {
    /// Whether requests of both classes are of one rank.
    one_rank: bool,
    accounts: BTreeMap<ClientId, Account>,
    /// Number of clients with live requests.
    live: usize,
    /// Virtual time of each rank, in µs of lane time.
    virtual_us: [f64; RANKS],
    /// The time that a client may be behind when it arrives, in µs.
    turn_us: f64,
}

/// The service that a client had.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    /// Lane time of each rank, in µs.
    served_us: [f64; RANKS],
    /// Lane time that others lost for its requests, charged when one of them ends, in µs.
    owed_us: [f64; RANKS],
    requests: usize,
}

const RANKS: usize = 2;

impl Clients {
    /// Returns the same accounts for a scheduler that ignores classes.
    pub(super) fn of_one_rank(self) -> Self {
        Self {
            one_rank: true,
            ..self
        }
    }

    /// The rank of a class, in which clients take turns.
    fn rank(&self, class: Class) -> usize {
        match self.one_rank {
            true => 0,
            false => class as usize,
        }
    }

    /// Whether requests of more than one client are live.
    pub(super) fn are_several(&self) -> bool {
        self.live > 1
    }

    /// Whether no client other than `client` is known.
    pub(super) fn are_only(&self, client: ClientId) -> bool {
        self.accounts.keys().all(|other| *other == client)
    }

    /// Whether clients' service is counted.
    pub(super) fn are_counted(&self) -> bool {
        self.accounts.len() > 1
    }

    /// Number of clients with live requests.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Takes in a request. Returns whether its client has to catch up with others if this is its first request of the
    /// class.
    pub(super) fn enter(&mut self, client: ClientId, class: Class, turn_us: f64) -> bool {
        let new = !self.accounts.contains_key(&client);
        let account = self.accounts.entry(client).or_default();
        account.requests += 1;
        self.live += usize::from(account.requests == 1);
        if self.accounts.len() == 1 {
            return false;
        }
        self.turn_us = turn_us.max(0.0);
        if new {
            self.catch_up(client, class);
        }
        self.forget();
        true
    }

    /// Notes that a request is over.
    pub(super) fn leave(&mut self, client: ClientId, class: Class) {
        let rank = self.rank(class);
        let Some(account) = self.accounts.get_mut(&client) else {
            bug!("a client with a live request has no account");
            return;
        };
        account.requests = account.requests.saturating_sub(1);
        account.served_us[rank] += std::mem::take(&mut account.owed_us[rank]);
        self.live -= usize::from(account.requests == 0);
        if self.live == 0 {
            *self = Self {
                one_rank: self.one_rank,
                ..Self::default()
            };
        } else if account.requests == 0 {
            self.forget();
        }
    }

    /// Brings a client that begins to wait to within a turn of virtual time, since idle time is no credit.
    pub(super) fn catch_up(&mut self, client: ClientId, class: Class) {
        let rank = self.rank(class);
        let least = self.virtual_us[rank] - self.turn_us;
        if let Some(account) = self.accounts.get_mut(&client) {
            let served = &mut account.served_us[rank];
            *served = served.max(least);
        }
    }

    /// Forgets idle clients that would have to catch up anyway.
    fn forget(&mut self) {
        // The time that a new client would be brought to.
        let least = self.virtual_us.map(|at| (at - self.turn_us).max(0.0));
        self.accounts.retain(|_, account| {
            let ahead = account
                .served_us
                .iter()
                .zip(least)
                .any(|(at, least)| *at > least);
            account.requests > 0 || ahead
        });
    }

    /// Charges a client for `us` of lane time, in µs.
    pub(super) fn charge(&mut self, client: ClientId, class: Class, us: f64) {
        if !self.are_counted() {
            return;
        }
        let rank = self.rank(class);
        if let Some(account) = self.accounts.get_mut(&client) {
            let served = &mut account.served_us[rank];
            let virtual_us = &mut self.virtual_us[rank];
            *virtual_us = virtual_us.max(*served);
            *served += us.max(0.0);
        }
    }

    /// Notes that others must recompute `us` for a request of a client; it is charged when the request has ended.
    fn owe(&mut self, client: ClientId, class: Class, us: f64) {
        let rank = self.rank(class);
        if let Some(account) = self.accounts.get_mut(&client) {
            account.owed_us[rank] += us.max(0.0);
        }
    }

    /// Lane time that a client was served, in µs of virtual time.
    pub(super) fn served_us(&self, client: ClientId, class: Class) -> f64 {
        let account = self.accounts.get(&client);
        account.map_or(0.0, |account| account.served_us[self.rank(class)])
    }
}

/// A request's memory, and another client's claim to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// The request that gives its memory up.
    pub(super) from: RequestId,
    /// The request that has the claim.
    pub(super) by: RequestId,
}

impl<P: Progress> Ledger<P> {
    /// Whether a request's client was served less than another one of its class.
    pub(super) fn goes_first(&self, entry: &Entry<P>, other: &Entry<P>) -> bool {
        let served_us = |it: &Entry<P>| self.clients().served_us(it.client(), it.class());
        entry.client() != other.client()
            && entry.class() == other.class()
            && served_us(entry) < served_us(other)
    }

    /// Whether a request's memory is within its client's share: the budget divided by the number of clients that have
    /// requests.
    pub(super) fn is_within_share(&self, submission: &Submission, kv: &KvBudget) -> bool {
        let room = u64::from(self.room_of(submission));
        self.held_by(submission.client, kv) + room <= self.share(kv)
    }

    fn share(&self, kv: &KvBudget) -> u64 {
        kv.budget() / self.clients().live().max(1) as u64
    }

    /// Tokens that a client's requests have reserved.
    pub(super) fn held_by(&self, client: ClientId, kv: &KvBudget) -> u64 {
        let own = self.iter().filter(|(_, entry)| entry.client() == client);
        own.map(|(id, _)| kv.reserved(id)).sum()
    }

    /// Returns the request that gives its memory up for `by`, which is within its client's share: the youngest of the
    /// client that is furthest beyond its own share, of those that `may` and are no more urgent. `None` if all of them
    /// together would not be enough.
    pub(super) fn claimed(
        &self,
        by: RequestId,
        kv: &KvBudget,
        may: impl Fn(RequestId, &Entry<P>) -> bool,
    ) -> Option<Claim> {
        let own = self.get(by).filter(|_| self.clients().are_several())?;
        if !self.is_within_share(&own.submission, kv) {
            return None;
        }
        let mut held: BTreeMap<ClientId, u64> = BTreeMap::new();
        for (id, entry) in self.iter() {
            *held.entry(entry.client()).or_default() += kv.reserved(id);
        }
        let share = self.share(kv);
        let excess = |entry: &Entry<P>| {
            let held = held.get(&entry.client()).copied().unwrap_or_default();
            held.saturating_sub(share)
        };
        let able = |(id, entry): &(RequestId, &Entry<P>)| {
            let rank = |it: &Entry<P>| self.clients().rank(it.class());
            rank(entry) >= rank(own) && excess(entry) > 0 && kv.reserved(*id) > 0 && may(*id, entry)
        };
        let room: u64 = self
            .iter()
            .filter(able)
            .map(|(id, _)| kv.reserved(id))
            .sum();
        if kv.reclaimable() + room < u64::from(self.room_of(&own.submission)) {
            return None;
        }
        let youngest = self.iter().filter(able);
        let youngest = youngest.max_by_key(|(_, entry)| (excess(entry), entry.order));
        youngest.map(|(from, _)| Claim { from, by })
    }

    /// Notes that a claim was met: the time of the recomputation, in µs, is its client's debt.
    pub(super) fn note_claim(&mut self, claim: Claim, again_us: f64) {
        if let Some((client, class)) = self.get(claim.by).map(|it| (it.client(), it.class())) {
            self.clients_mut().owe(client, class, again_us);
        }
    }

    /// Returns the request to give up when there are too many: the youngest waiting one of the client that has most,
    /// proactive before reactive; of the client of `last`, only a proactive one. It is `last` if there is no such
    /// request.
    pub(super) fn crowding(&self, last: RequestId, waits: impl Fn(&Entry<P>) -> bool) -> RequestId {
        let mut counts: BTreeMap<ClientId, usize> = BTreeMap::new();
        for (_, entry) in self.iter() {
            *counts.entry(entry.client()).or_default() += 1;
        }
        let own = self.get(last).map(Entry::client);
        let most = counts
            .iter()
            .max_by_key(|(client, count)| (**count, Some(**client) == own));
        let most = most.map(|(client, _)| *client);
        let of_most = self.iter().filter(|(_, entry)| {
            let proactive = entry.class() == Class::Proactive;
            Some(entry.client()) == most && waits(entry) && (most != own || proactive)
        });
        let youngest = of_most.max_by_key(|(_, entry)| (entry.class(), entry.order));
        youngest.map_or(last, |(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN_US: f64 = 100.0;
    const CLASS: Class = Class::Reactive;
    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const C: ClientId = ClientId(3);

    fn enter(clients: &mut Clients, client: ClientId) {
        clients.enter(client, CLASS, TURN_US);
    }

    fn served(clients: &Clients) -> [f64; 3] {
        [A, B, C].map(|client| clients.served_us(client, CLASS))
    }

    #[test]
    fn idle_time_is_no_credit_beyond_a_turn() {
        let mut clients = Clients::default();
        enter(&mut clients, A);
        clients.charge(A, CLASS, 9000.0);
        assert_eq!(served(&clients)[0], 0.0, "one client is not counted");
        enter(&mut clients, B);
        for _ in 0..10 {
            clients.charge(A, CLASS, 1000.0);
        }
        enter(&mut clients, C);
        // Virtual time is the time that the last client had been served when it ran.
        assert_eq!(served(&clients), [10_000.0, 0.0, 9000.0 - TURN_US]);
        clients.catch_up(B, CLASS);
        assert_eq!(served(&clients)[1], 9000.0 - TURN_US);
    }

    #[test]
    fn a_client_that_leaves_and_comes_back_owes_what_it_had() {
        let mut clients = Clients::default();
        enter(&mut clients, A);
        enter(&mut clients, B);
        clients.charge(B, CLASS, 5000.0);
        clients.owe(B, CLASS, 700.0);
        clients.leave(B, CLASS);
        enter(&mut clients, B);
        assert_eq!(served(&clients)[..2], [0.0, 5700.0]);
        clients.leave(B, CLASS);
        for _ in 0..60 {
            clients.charge(A, CLASS, 100.0);
        }
        enter(&mut clients, C);
        assert!(!clients.accounts.contains_key(&B), "that is made up for");
        clients.leave(A, CLASS);
        clients.leave(C, CLASS);
        assert!(clients.accounts.is_empty());
    }

    #[test]
    fn classes_take_turns_apart_unless_they_are_of_one_rank() {
        for (mut clients, expected) in [
            (Clients::default(), 0.0),
            (Clients::default().of_one_rank(), 50.0),
        ] {
            enter(&mut clients, A);
            enter(&mut clients, B);
            clients.charge(A, CLASS, 50.0);
            assert_eq!(clients.served_us(A, Class::Proactive), expected);
        }
    }
}
