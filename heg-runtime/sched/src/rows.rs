//! Divides the rows of an iteration among clients, as equally as their decoding requests allow.

use std::collections::BTreeMap;

use heg_spec::policy::DecodePolicy;

use super::batch::Candidate;
use super::clients::Clients;
use super::request::{Class, ClientId};

/// Returns the next batch when requests of several clients decode. The caps are those of
/// [`next_batch`](super::batch::next_batch).
pub(super) fn fair_batch<'c>(
    policy: &DecodePolicy,
    candidates: &'c [Candidate],
    clients: &Clients,
) -> Vec<&'c Candidate> {
    let batch_max = policy.batch_max as usize;
    let Some(cap) = policy.reactive_batch_max else {
        let all: Vec<&Candidate> = candidates.iter().collect();
        return shared(all, clients, |_, rows| rows < batch_max);
    };
    let of = |class| {
        candidates
            .iter()
            .filter(move |it| it.class == class)
            .collect::<Vec<_>>()
    };
    let mut batch = shared(of(Class::Reactive), clients, |_, rows| rows < batch_max);
    let cap = match batch.len() {
        0 => batch_max,
        _ => batch_max.min(cap as usize),
    };
    let mut proactive = of(Class::Proactive);
    if policy.evict_longest {
        proactive.sort_by_key(|it| it.context);
    }
    if batch.is_empty() {
        proactive.sort_by_key(|it| !it.overdue);
        return shared(proactive, clients, |_, rows| rows < cap);
    }
    // Beside reactive answers, which may leave room for no others, overdue requests come before all clients' others.
    let (overdue, others) = proactive.into_iter().partition(|it| it.overdue);
    for (list, most) in [(overdue, batch_max), (others, cap)] {
        let before = batch.len();
        batch.extend(shared(list, clients, |_, rows| before + rows < most));
    }
    batch
}

/// Returns the next batch of a scheme that does not distinguish classes.
pub(super) fn in_equal_rows(
    policy: &DecodePolicy,
    candidates: &[Candidate],
    clients: &Clients,
) -> Vec<Candidate> {
    let batch_max = policy.batch_max as usize;
    let batch = shared(candidates.iter().collect(), clients, |_, rows| {
        rows < batch_max
    });
    batch.into_iter().cloned().collect()
}

/// Returns as many of the candidates as have `room`, a row for each client in turn, the least served first. If a
/// client has to leave some out, those that it would decode if it were alone take turns.
fn shared<'c>(
    candidates: Vec<&'c Candidate>,
    clients: &Clients,
    room: impl Fn(&Candidate, usize) -> bool,
) -> Vec<&'c Candidate> {
    let mut own: BTreeMap<ClientId, Vec<&Candidate>> = BTreeMap::new();
    for candidate in candidates {
        let list = own.entry(candidate.client).or_default();
        if room(candidate, list.len()) {
            list.push(candidate);
        }
    }
    let served_us = |list: &[&Candidate]| {
        let first = list.first();
        first.map_or(0.0, |it| clients.served_us(it.client, it.class))
    };
    let mut lists: Vec<Vec<&Candidate>> = own.into_values().collect();
    lists.sort_by(|a, b| served_us(a).total_cmp(&served_us(b)));
    for list in &mut lists {
        list.sort_by_key(|it| (!it.overdue, it.waits_since));
    }
    let mut batch: Vec<&Candidate> = Vec::new();
    let longest = lists.iter().map(Vec::len).max().unwrap_or_default();
    for place in 0..longest {
        for candidate in lists.iter().filter_map(|list| list.get(place)) {
            if room(candidate, batch.len()) {
                batch.push(candidate);
            }
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::request::{Micros, RequestId};

    fn candidate(id: u64, client: u64, class: Class, waits_since: u64) -> Candidate {
        Candidate {
            id: RequestId(id),
            class,
            client: ClientId(client),
            waits_since: Micros(waits_since),
            context: 10,
            overdue: false,
            draft: Arc::from([]),
        }
    }

    fn clients(served_us: &[f64]) -> Clients {
        let mut clients = Clients::default();
        for (client, _) in (0..).zip(served_us) {
            clients.enter(ClientId(client), Class::Reactive, 0.0);
        }
        for (client, us) in (0..).zip(served_us) {
            clients.charge(ClientId(client), Class::Reactive, *us);
        }
        clients
    }

    fn ids(batch: &[&Candidate]) -> Vec<u64> {
        let mut ids: Vec<u64> = batch.iter().map(|it| it.id.0).collect();
        ids.sort_unstable();
        ids
    }

    fn policy(batch_max: u32, reactive_batch_max: Option<u32>) -> DecodePolicy {
        DecodePolicy {
            batch_max,
            reactive_batch_max,
            evict_longest: true,
            ..DecodePolicy::default()
        }
    }

    #[test]
    fn a_newcomer_has_a_row_and_who_yields_it_takes_turns() {
        // The last of the first client's six had its last token before all others; even alone, it would be left out.
        let since = [3, 9, 4, 5, 6, 0];
        let first = (0..).zip(since);
        let mut all: Vec<_> = first
            .map(|(id, at)| candidate(id, 0, Class::Reactive, at))
            .collect();
        all.push(candidate(9, 1, Class::Reactive, 8));
        let clients = clients(&[0.0, 7.0]);
        let batch = fair_batch(&policy(5, Some(5)), &all, &clients);
        assert_eq!(
            ids(&batch),
            [0, 2, 3, 4, 9],
            "the second one had a token last"
        );
    }

    #[test]
    fn rows_are_as_equal_as_answers_allow() {
        let of = |client, count| {
            let ids = client * 10..client * 10 + count;
            ids.map(move |id| candidate(id, client, Class::Reactive, 0))
        };
        let all: Vec<_> = of(0, 9).chain(of(1, 2)).chain(of(2, 9)).collect();
        // An odd row goes to the client that was served less.
        let clients = clients(&[5.0, 5.0, 1.0]);
        let batch = in_equal_rows(&policy(9, None), &all, &clients);
        let rows = |client| {
            batch
                .iter()
                .filter(|it| it.client == ClientId(client))
                .count()
        };
        assert_eq!([0, 1, 2].map(rows), [3, 2, 4]);
    }

    #[test]
    fn overdue_answers_come_first_of_their_client_and_pass_the_cap() {
        let mut all: Vec<_> = (0..4)
            .map(|id| candidate(id, id % 2, Class::Proactive, 0))
            .collect();
        all[2].overdue = true;
        all.push(candidate(9, 0, Class::Reactive, 0));
        let clients = clients(&[0.0, 0.0]);
        let batch = fair_batch(&policy(5, Some(2)), &all, &clients);
        let order: Vec<u64> = batch.iter().map(|it| it.id.0).collect();
        assert_eq!(order, [9, 2]);
    }
}
