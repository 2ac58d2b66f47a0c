//! Finds the request that makes launches fail.
//!
//! When a launch of several requests fails, any of them may be to blame. Each then runs alone until it has succeeded,
//! or has failed often enough to end. Between two such trials all others run together, so that a faulty request
//! delays nobody else. A trial that succeeds gives its request a token or part of its prompt, and one that fails
//! counts against its request: with n suspects there are [`ATTEMPTS`] · n trials at most.
//!
//! A request that fails with others and never alone is not found. Each of its failures costs a round of trials, in
//! which every suspect makes progress.

use std::collections::VecDeque;

use super::request::RequestId;

/// Consecutive failures of a request alone after which it ends. Chosen: a lane that fails once may well succeed
/// the next time, and another lane is tried in between.
pub(super) const ATTEMPTS: u32 = 3;

/// The requests that may be to blame, and whose turn it is.
#[derive(Debug, Clone, Default)]
pub(super) struct Isolation {
    /// The suspects, in the order in which they are tried.
    suspects: VecDeque<RequestId>,
    /// Whether the last launch was a trial, so that the others are next.
    tried: bool,
}

impl Isolation {
    /// Notes that a launch of these requests failed, some of which may be over by now. Returns the one to blame if
    /// it ran alone.
    pub(super) fn failed(
        &mut self,
        ids: &[RequestId],
        is_live: impl Fn(RequestId) -> bool,
    ) -> Option<RequestId> {
        if let [id] = ids {
            self.tried = true;
            return Some(*id);
        }
        for id in ids.iter().filter(|id| is_live(**id)) {
            if !self.suspects.contains(id) {
                self.suspects.push_back(*id);
            }
        }
        self.tried = false;
        None
    }

    /// Whether any request is suspected.
    pub(super) fn is_searching(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Notes that a launch of these requests succeeded.
    pub(super) fn succeeded(&mut self, ids: impl Iterator<Item = RequestId>) {
        if self.suspects.is_empty() {
            return;
        }
        let before = self.suspects.len();
        for id in ids {
            self.leave(id);
        }
        self.tried = self.suspects.len() < before;
    }

    /// Notes that the request to blame has ended, so that the others may run together again.
    pub(super) fn found(&mut self) {
        self.suspects.clear();
    }

    /// Removes a request that is over, or has succeeded, from the suspects.
    pub(super) fn leave(&mut self, id: RequestId) {
        self.suspects.retain(|other| *other != id);
    }

    /// Reduces the candidates to those that may run together next; at least one remains.
    pub(super) fn narrow<T>(&self, candidates: &mut Vec<T>, id_of: impl Fn(&T) -> RequestId) {
        if self.suspects.is_empty() {
            return;
        }
        let is_suspect = |candidate: &T| self.suspects.contains(&id_of(candidate));
        let others = candidates.iter().any(|candidate| !is_suspect(candidate));
        let place = |suspect: &RequestId| candidates.iter().position(|c| id_of(c) == *suspect);
        match self.suspects.iter().find_map(place) {
            Some(first) if !(self.tried && others) => {
                candidates.swap(0, first);
                candidates.truncate(1);
            }
            _ => candidates.retain(|candidate| !is_suspect(candidate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the candidates that run next.
    fn next(isolation: &Isolation, candidates: &[u64]) -> Vec<u64> {
        let mut all = candidates.to_vec();
        isolation.narrow(&mut all, |id| RequestId(*id));
        all
    }

    fn ids(ids: &[u64]) -> Vec<RequestId> {
        ids.iter().map(|id| RequestId(*id)).collect()
    }

    #[test]
    fn trials_take_turns_with_all_the_others() {
        let mut isolation = Isolation::default();
        let all = [1, 2, 3, 4];
        assert_eq!(next(&isolation, &all), all);
        assert_eq!(isolation.failed(&ids(&[1, 2, 3]), |_| true), None);
        for (trial, others) in [(1, &[1, 4][..]), (2, &[1, 2, 4]), (3, &all)] {
            assert_eq!(next(&isolation, &all), [trial]);
            isolation.succeeded(ids(&[trial]).into_iter());
            assert_eq!(next(&isolation, &all), others);
            isolation.succeeded(ids(others).into_iter());
        }
        assert_eq!(next(&isolation, &all), all);
    }

    #[test]
    fn whom_others_left_alone_after_a_failure_is_not_to_blame_for_it() {
        let mut isolation = Isolation::default();
        let culprit = isolation.failed(&ids(&[1, 2]), |id| id == RequestId(2));
        assert_eq!(culprit, None);
        assert_eq!(next(&isolation, &[2, 3]), [2]);
        assert_eq!(isolation.failed(&ids(&[2]), |_| true), Some(RequestId(2)));
        // No trial is held for a request that is over.
        isolation.succeeded(ids(&[2]).into_iter());
        assert!(isolation.suspects.is_empty());
    }

    #[test]
    fn when_the_one_to_blame_has_ended_the_others_run_together_again() {
        let mut isolation = Isolation::default();
        assert_eq!(isolation.failed(&ids(&[1, 2, 3]), |_| true), None);
        for _ in 0..ATTEMPTS {
            assert_eq!(next(&isolation, &[1, 2, 3]), [1]);
            assert_eq!(isolation.failed(&ids(&[1]), |_| true), Some(RequestId(1)));
            isolation.succeeded(ids(&[4]).into_iter());
        }
        isolation.leave(RequestId(1));
        isolation.found();
        assert_eq!(next(&isolation, &[2, 3]), [2, 3]);
    }

    proptest! {
        /// Some requests fail each launch, or some launches, that they are part of: only those end.
        #[test]
        fn nobody_else_is_blamed(
            count in 1u64..12,
            culprits in prop::collection::vec((0u64..12, 1u64..4), 0..4),
            tokens in 1u32..6,
        ) {
            let mut isolation = Isolation::default();
            let mut live: Vec<(u64, u32, u32)> = (0..count).map(|id| (id, tokens, 0)).collect();
            let mut launches = 0u64;
            while !live.is_empty() {
                launches += 1;
                prop_assert!(launches < 12 * 6 * 40, "no end");
                let all: Vec<u64> = live.iter().map(|(id, ..)| *id).collect();
                let batch = next(&isolation, &all);
                prop_assert!(!batch.is_empty());
                let bad = |id: &u64| culprits.iter().any(|(c, every)| c == id && launches.is_multiple_of(*every));
                if batch.iter().any(bad) {
                    if let Some(RequestId(id)) = isolation.failed(&ids(&batch), |_| true) {
                        prop_assert!(culprits.iter().any(|(c, _)| *c == id), "{} is innocent", id);
                        let found = live.iter_mut().find(|(other, ..)| *other == id);
                        let failures = found.map(|(_, _, failures)| { *failures += 1; *failures });
                        if failures == Some(ATTEMPTS) {
                            isolation.leave(RequestId(id));
                            isolation.found();
                            live.retain(|(other, ..)| *other != id);
                        }
                    }
                    continue;
                }
                isolation.succeeded(ids(&batch).into_iter());
                for (id, left, failures) in &mut live {
                    if batch.contains(id) {
                        (*left, *failures) = (*left - 1, 0);
                    }
                }
                for (id, left, _) in &live {
                    if *left == 0 {
                        isolation.leave(RequestId(*id));
                    }
                }
                live.retain(|(_, left, _)| *left > 0);
            }
        }
    }
}
