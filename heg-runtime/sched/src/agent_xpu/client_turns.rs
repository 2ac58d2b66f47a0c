//! Turns between clients (`clients`): the next prompt among requests of equal rank, the memory that makes room, and
//! when answers of one client come before prompts of another.
//!
//! # Wait of a client's first request
//!
//! A client that had no request for a while is due a turn before all others of its class. Its prompt, of work w up to
//! a turn, preempts theirs at the next kernel, k, and decoding at the next layer; if its memory has to be taken from
//! a client that is beyond its share, it begins once the iteration in progress has ended, I. So the first token comes
//! within
//!
//! ```text
//!   w + k + I
//! ```
//!
//! if the policy preempts and puts prompts first, the request is within its client's share, and no other client comes
//! at the same time. A longer prompt gives each of the others as much time as its own work beyond the turn, once:
//! before its first token, or, if it went on before theirs, after it. Its answer then has a row in each iteration,
//! unless there are more clients than rows. Between two iterations another client's prompts have at most the time of
//! an iteration, and a kernel. Serial inference ends the request in progress first.
//!
//! With one client, nothing here acts.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use heg_spec::policy::Resume;

use super::AgentXpu;
use super::prefills::Slot;
use super::rules::client_turns::Due;
use super::stage::Entry;
use crate::costs::Costs;
use crate::event::{Actions, Work};
use crate::forecast::prefill_us;
use crate::lanes::Running;
use crate::mechanism::Mechanism;
use crate::prefill::Prefill;
use crate::request::{Class, ClientId, Lane, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// The time that a client may be behind others when it arrives: the time of a full chunk.
    pub(super) fn turn_us(&self) -> f64 {
        let lane = self.dynamic_lane().unwrap_or(Lane::Igpu);
        prefill_us(&self.costs, lane, 0, self.model.chunk_tokens)
    }

    /// Charges a lane's work to its clients; of a decode run, `layers` layers.
    pub(super) fn charge(&mut self, lane: Lane, running: &Running, layers: u32) {
        if !self.ledger.clients().are_counted() {
            return;
        }
        let mut us = running.cost.latency_us;
        let dynamic = Some(lane) == self.dynamic_lane();
        if let Work::Decode(run) = &running.work {
            let ran = layers.saturating_sub(run.layers.start);
            us *=
                f64::from(ran) / f64::from(run.layers.end.saturating_sub(run.layers.start).max(1));
            if dynamic && layers == run.layers.end {
                self.turns.iteration_ran(running.cost.latency_us);
            }
        } else if dynamic {
            self.turns.prompt_ran(us);
        }
        let requests = running.work.requests();
        let each_us = us / requests.len().max(1) as f64;
        for id in requests {
            if let Some((client, class)) = self.ledger.get(id).map(|it| (it.client(), it.class())) {
                self.ledger.clients_mut().charge(client, class, each_us);
            }
        }
    }

    /// Whether prompts are chosen by client: while there are several, and until all prompts that gave way have gone
    /// on.
    pub(super) fn goes_by_client(&self) -> bool {
        self.ledger.clients().are_several() || self.prefills.have_given_way()
    }

    /// Stops choosing prompts by client if one client is left, and at most one begun prompt of each class waits.
    pub(super) fn forget_turns(&mut self) {
        if self.prefills.have_given_way() && !self.ledger.clients().are_several() {
            let crowded = [Class::Reactive, Class::Proactive].map(|class| {
                let begun = self
                    .prefills
                    .queue(class)
                    .iter()
                    .filter(|id| self.has_begun(**id));
                begun.count() > 1
            });
            if !crowded.contains(&true) {
                self.prefills.go_on();
            }
        }
    }

    /// Orders prompts of different clients by their due times.
    fn by_due(&self, one: RequestId, other: RequestId) -> Ordering {
        let key = |id| self.ledger.get(id).map(|entry| Due::of(self, entry));
        match (key(one), key(other)) {
            (Some(one), Some(other)) => one.compare(other),
            (one, other) => other.is_some().cmp(&one.is_some()),
        }
    }

    /// Whether two requests are of one rank and of different clients.
    pub(super) fn are_strangers(&self, one: RequestId, other: RequestId) -> bool {
        let both = self.ledger.get(one).zip(self.ledger.get(other));
        both.is_some_and(|(one, other)| {
            one.client() != other.client() && one.class() == other.class()
        })
    }

    /// Returns the next prompt of each client in a queue, the clients in the order of their turns.
    pub(super) fn heads(&self, class: Class) -> Vec<RequestId> {
        let queue = self.prefills.queue(class).iter();
        let clients: BTreeSet<ClientId> = queue.filter_map(|id| self.client_of(*id)).collect();
        let heads = clients.into_iter();
        let mut heads: Vec<_> = heads.filter_map(|it| self.head(class, it)).collect();
        heads.sort_by(|one, other| self.by_due(*one, *other));
        heads
    }

    /// Returns the next prompt of a client.
    fn head(&self, class: Class, client: ClientId) -> Option<RequestId> {
        let is_own = |id: &&RequestId| self.client_of(**id) == Some(client);
        let queue = self.prefills.queue(class).iter().filter(is_own);
        if class == Class::Reactive && !self.may_begin_another(class, client) {
            return queue.copied().find(|id| self.has_begun(*id));
        }
        let buffered = self.prefills.buffered().iter().find(is_own).copied();
        self.next_of(class, queue, buffered)
    }

    pub(super) fn client_of(&self, id: RequestId) -> Option<ClientId> {
        self.ledger.get(id).map(Entry::client)
    }

    /// Whether another prompt of a client may begin: other clients may have preempted its begun prompts, each of
    /// which has activations.
    pub(super) fn may_begin_another(&self, class: Class, client: ClientId) -> bool {
        let prefill = &self.policy.prefill;
        let aside = prefill.short_prompts_aside || prefill.long_prompts_aside_ms.is_some();
        let most = match class {
            Class::Reactive => {
                1 + usize::from(prefill.short_prompts_first.is_some()) + usize::from(aside)
            }
            Class::Proactive => 1,
        };
        let is_own = |id: &RequestId| {
            let entry = self.ledger.get(*id);
            entry.is_some_and(|it| it.client() == client && it.class() == class)
        };
        let waiting = self
            .prefills
            .queue(class)
            .iter()
            .copied()
            .filter(|id| self.has_begun(*id));
        let begun = waiting.chain(self.prefills.active()).filter(is_own);
        prefill.resume != Resume::Arrival || begun.count() < most
    }

    /// Returns a queue in the order of turns.
    pub(super) fn queue_by_turn(&self, class: Class) -> Vec<RequestId> {
        let mut queue: Vec<RequestId> = self.prefills.queue(class).iter().copied().collect();
        if self.ledger.clients().are_several() {
            let turns = self.heads(class);
            let place = |id: &RequestId| {
                let client = self.client_of(*id);
                turns
                    .iter()
                    .position(|head| self.client_of(*head) == client)
            };
            // Clients whose buffered prompt is in progress come last.
            queue.sort_by_key(|id| place(id).unwrap_or(usize::MAX));
        }
        queue
    }

    /// Begins the first of the clients' next prompts that `may` begin and has room. One that lacks room lets only
    /// those pass that keep within their client's share.
    pub(super) fn begin_in_turn(
        &mut self,
        class: Class,
        may: impl Fn(&Self, RequestId) -> bool,
        actions: &mut Actions,
    ) -> Option<RequestId> {
        let mut lacks_room = false;
        for id in self.heads(class) {
            let passes = |it: &Self| {
                let entry = it.ledger.get(id);
                let own =
                    |it: &Self, entry: &Entry| it.ledger.is_within_share(&entry.submission, &it.kv);
                entry.is_some_and(|entry| it.has_begun(id) || own(it, entry))
            };
            if !may(self, id) || (lacks_room && !passes(self)) {
                continue;
            }
            let first = self.prefills.queue(class).front().copied();
            if self.begin(id, actions) {
                if first.is_some_and(|first| self.are_strangers(id, first)) {
                    self.tally.note(Mechanism::ClientTurns);
                }
                return Some(id);
            }
            lacks_room = true;
        }
        None
    }

    /// Takes memory for a request that keeps within its client's share from a client that is beyond its own; returns
    /// false if that would not be enough.
    pub(super) fn claim_room(&mut self, id: RequestId, actions: &mut Actions) -> bool {
        let idle = |id: RequestId, entry: &Entry| {
            let running = entry.prefill().is_some_and(Prefill::is_running);
            let waited = self.prefills.holds(Slot::Overdue, id);
            !running && !waited && !entry.own.is_queued() && !self.decode_holds(id)
        };
        let Some(claim) = self.ledger.claimed(id, &self.kv, idle) else {
            return false;
        };
        self.tally.note(Mechanism::ClientTurns);
        self.restart(claim.from, actions);
        let again_us = self.time_to_completion(claim.from);
        self.ledger.note_claim(claim, again_us);
        true
    }
}
