//! Which requests decode together next (Agent.xpu §4.5, Algorithm 2).

use std::sync::Arc;

use heg_spec::policy::DecodePolicy;

use super::request::{Class, RequestId};

/// A request that could decode its next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) id: RequestId,
    pub(super) class: Class,
    /// Tokens in its cache, the one that is fed now included.
    pub(super) context: u32,
    /// It has waited too long, and is let in above the cap for mixed batches.
    pub(super) overdue: bool,
}

/// The next batch, out of candidates in order of arrival.
///
/// All reactive requests are in. Proactive ones fill the batch up to a cap, which is low while a reactive one
/// decodes; of too many, those with the longest sequences are left out, since they slow down all the others.
pub(super) fn next_batch(
    policy: &DecodePolicy,
    candidates: &[Candidate],
) -> Arc<[(RequestId, u32)]> {
    let Some(cap) = policy.reactive_batch_max else {
        let first = candidates.iter().take(policy.batch_max as usize);
        return first.map(|c| (c.id, c.context)).collect();
    };
    let is = |class| move |c: &&Candidate| c.class == class;
    let batch_max = policy.batch_max as usize;
    let mut batch: Vec<&Candidate> = candidates
        .iter()
        .filter(is(Class::Reactive))
        .take(batch_max)
        .collect();
    let cap = if batch.is_empty() {
        batch_max
    } else {
        batch_max.min(cap as usize)
    };
    let mut proactive: Vec<&Candidate> = candidates.iter().filter(is(Class::Proactive)).collect();
    if policy.evict_longest {
        // Stable: equal lengths stay in order of arrival.
        proactive.sort_by_key(|c| c.context);
    }
    proactive.sort_by_key(|c| !c.overdue);
    for candidate in proactive {
        let limit = if candidate.overdue { batch_max } else { cap };
        if batch.len() < limit {
            batch.push(candidate);
        }
    }
    batch.into_iter().map(|c| (c.id, c.context)).collect()
}

#[cfg(test)]
mod tests {
    use heg_spec::policy::DecodePolicy;

    use super::*;

    fn policy() -> DecodePolicy {
        DecodePolicy {
            reactive_batch_max: Some(3),
            evict_longest: true,
            ..DecodePolicy::default()
        }
    }

    fn candidate(id: u64, class: Class, context: u32) -> Candidate {
        Candidate {
            id: RequestId(id),
            class,
            context,
            overdue: false,
        }
    }

    fn ids(policy: &DecodePolicy, candidates: &[Candidate]) -> Vec<u64> {
        let batch = next_batch(policy, candidates);
        batch.iter().map(|(id, _)| id.0).collect()
    }

    #[test]
    fn the_longest_proactive_sequences_are_left_out_beside_a_reactive_one() {
        let mut all = vec![
            candidate(1, Class::Proactive, 900),
            candidate(2, Class::Proactive, 100),
            candidate(3, Class::Reactive, 5000),
            candidate(4, Class::Proactive, 300),
        ];
        assert_eq!(ids(&policy(), &all), [3, 2, 4]);
        all[0].overdue = true;
        assert_eq!(ids(&policy(), &all), [3, 1, 2]);
    }

    #[test]
    fn overdue_requests_pass_the_cap_but_not_the_batch() {
        let mut all: Vec<_> = (0..40)
            .map(|id| candidate(id, Class::Proactive, 10))
            .collect();
        all[39].class = Class::Reactive;
        for overdue in &mut all[..5] {
            overdue.overdue = true;
        }
        assert_eq!(ids(&policy(), &all), [39, 0, 1, 2, 3, 4]);
        assert_eq!(ids(&policy(), &all[5..39]).len(), 32);
    }

    #[test]
    fn many_reactive_requests_all_decode() {
        let all: Vec<_> = (0..7)
            .map(|id| candidate(id, Class::Reactive, 10))
            .collect();
        assert_eq!(ids(&policy(), &all).len(), 7);
    }

    #[test]
    fn without_classes_it_is_first_come_first_served() {
        let all: Vec<_> = (0..40)
            .map(|id| candidate(id, Class::Proactive, 50 - id as u32))
            .collect();
        assert_eq!(
            ids(&DecodePolicy::default(), &all),
            (0..32).collect::<Vec<_>>()
        );
    }
}
