//! Chooses the requests that decode together next (Agent.xpu §4.5, Algorithm 2).

use std::cmp::Reverse;
use std::sync::Arc;

use heg_spec::Policy;
use heg_spec::policy::DecodePolicy;

use super::clients::Clients;
use super::event::Decoding;
use super::request::{Class, ClientId, Micros, RequestId};
use super::rows::fair_batch;

/// Contexts are compared in steps of this many tokens, so that cached costs serve many iterations. Chosen: a row
/// reads little for that many tokens, compared with the weights.
pub(super) const CONTEXT_STEP: u32 = 256;

/// A request that could decode its next token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) id: RequestId,
    pub(super) class: Class,
    pub(super) client: ClientId,
    /// Time of its last token.
    pub(super) waits_since: Micros,
    /// Tokens in its cache, including the one that is fed now.
    pub(super) context: u32,
    /// Whether it has waited too long, and is let in above the cap for mixed batches.
    pub(super) overdue: bool,
    /// The probability that each token of its draft is reached, in thousandths; cut to the tokens that its answer may
    /// still have.
    pub(super) draft: Arc<[u16]>,
}

/// Returns the next batch, out of candidates in order of arrival.
///
/// All reactive requests are in. Proactive ones fill the batch up to a cap, which is low while a reactive one
/// decodes. If there are too many, those with the longest sequences are left out, since they slow down all the
/// others. Clients get equal parts of the batch.
pub(super) fn next_batch(
    policy: &DecodePolicy,
    candidates: &[Candidate],
    clients: &Clients,
) -> Vec<Candidate> {
    if clients.are_several() {
        let batch = fair_batch(policy, candidates, clients);
        return batch.into_iter().cloned().collect();
    }
    let Some(cap) = policy.reactive_batch_max else {
        let first = candidates.iter().take(policy.batch_max as usize);
        return first.cloned().collect();
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
    batch.into_iter().cloned().collect()
}

/// Returns the batch with the number of rows for drafted tokens that maximises tokens per time (sd.npu 3.4):
/// E\[tokens\] over T(rows), where `time` gives the time of an iteration and the policy bounds the rows. Tokens of
/// reactive requests come first, then the likelier ones. A policy may give each request a fixed number of them
/// instead.
pub(super) fn with_drafts(
    batch: &[Candidate],
    policy: &Policy,
    time: impl Fn(&[Decoding]) -> Option<f64>,
) -> Arc<[Decoding]> {
    let undrafted = |candidate: &Candidate| Decoding {
        request: candidate.id,
        context: candidate.context,
        drafted: 0,
    };
    let mut best: Vec<Decoding> = batch.iter().map(undrafted).collect();
    let rows_max = policy.decode.draft_rows_max as usize;
    let spare = rows_max.saturating_sub(batch.len());
    if let Some(tokens) = policy.drafts.fixed_tokens {
        return with_fixed(batch, best, (tokens as usize, spare)).into();
    }
    let drafts = batch.iter().enumerate().flat_map(|(member, candidate)| {
        let draft = candidate.draft.iter();
        draft.map(move |reach| (candidate.class, Reverse(*reach), member))
    });
    let mut drafts: Vec<_> = drafts.collect();
    if drafts.is_empty() || spare == 0 {
        return best.into();
    }
    // Stable: tokens of a draft that are equally likely stay in order.
    drafts.sort();
    drafts.truncate(spare);
    let given = |reach: u16| f64::from(reach) / 1000.0;
    let mut batch = best.clone();
    let mut expected = batch.len() as f64;
    let with_all = drafts.iter().map(|(_, Reverse(reach), _)| given(*reach));
    let with_all = expected + with_all.sum::<f64>();
    let mut best_rate = time(&batch).map(|us| expected / us.max(1.0));
    for (_, Reverse(reach), member) in drafts {
        batch[member].drafted += 1;
        expected += given(reach);
        let us = time(&batch).map(|us| us.max(1.0));
        let rate = us.map(|us| expected / us);
        if rate > best_rate {
            best_rate = rate;
            best.clone_from(&batch);
        }
        // More rows take no less time.
        if us.map(|us| with_all / us) <= best_rate {
            break;
        }
    }
    best.into()
}

/// Adds `tokens` drafted tokens to each request of a batch, as far as its draft goes and rows are spare.
fn with_fixed(
    candidates: &[Candidate],
    mut batch: Vec<Decoding>,
    (tokens, mut spare): (usize, usize),
) -> Vec<Decoding> {
    for (member, candidate) in batch.iter_mut().zip(candidates) {
        let drafted = candidate.draft.len().min(tokens).min(spare);
        member.drafted = drafted as u32;
        spare -= drafted;
    }
    batch
}

#[cfg(test)]
mod tests {
    use heg_spec::policy::DecodePolicy;
    use heg_spec::shipped;

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
            client: ClientId(0),
            waits_since: Micros(0),
            context,
            overdue: false,
            draft: Arc::from([]),
        }
    }

    fn ids(policy: &DecodePolicy, candidates: &[Candidate]) -> Vec<u64> {
        let batch = next_batch(policy, candidates, &Clients::default());
        batch.iter().map(|candidate| candidate.id.0).collect()
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

    /// Returns the rows of each member of a batch if the first four rows cost as much as one, and each further row
    /// a tenth of that.
    fn rows(drafts: &[(Class, &[u16])], rows_max: u32) -> Vec<u32> {
        rows_of(drafts, rows_max, None)
    }

    fn rows_of(drafts: &[(Class, &[u16])], rows_max: u32, fixed_tokens: Option<u32>) -> Vec<u32> {
        let mut policy = shipped::policy("agent-xpu").unwrap();
        policy.decode.draft_rows_max = rows_max;
        policy.drafts.fixed_tokens = fixed_tokens;
        let batch: Vec<Candidate> = (0..)
            .zip(drafts)
            .map(|(id, (class, draft))| Candidate {
                draft: Arc::from(*draft),
                ..candidate(id, *class, 10)
            })
            .collect();
        let time = |batch: &[Decoding]| {
            let rows: u32 = batch.iter().map(|member| member.rows()).sum();
            Some(1000.0 * (1.0 + 0.1 * f64::from(rows.saturating_sub(4))))
        };
        let batch = with_drafts(&batch, &policy, time);
        batch.iter().map(|member| member.rows()).collect()
    }

    #[test]
    fn drafts_get_rows_that_are_free_and_likely_ones_those_that_cost() {
        assert_eq!(rows(&[(Class::Reactive, &[100, 50, 10, 5])], 32), [4]);
        assert_eq!(rows(&[(Class::Reactive, &[990; 40])], 32), [32]);
        let falling: Vec<u16> = (0..20).map(|at| 900 - 45 * at).collect();
        let some = rows(&[(Class::Reactive, &falling)], 32)[0];
        assert!((5..20).contains(&some), "{some}");
    }

    #[test]
    fn reactive_drafts_go_first_and_rows_are_bounded() {
        let drafts: [(Class, &[u16]); 2] =
            [(Class::Proactive, &[900; 8]), (Class::Reactive, &[800; 8])];
        assert_eq!(rows(&drafts, 4), [1, 3]);
        assert_eq!(rows(&drafts, 2), [1, 1]);
        assert_eq!(rows(&drafts, 0), [1, 1]);
        assert_eq!(rows(&[(Class::Reactive, &[])], 32), [1]);
    }

    #[test]
    fn a_fixed_number_of_drafted_tokens_costs_what_it_may() {
        let drafts: [(Class, &[u16]); 2] =
            [(Class::Reactive, &[1; 9]), (Class::Proactive, &[1; 3])];
        assert_eq!(rows_of(&drafts, 32, Some(5)), [6, 4]);
        assert_eq!(rows_of(&drafts, 8, Some(5)), [6, 2]);
        assert_eq!(rows_of(&drafts, 32, Some(0)), [1, 1]);
        assert_eq!(rows_of(&drafts, 0, Some(5)), [1, 1]);
    }
}
