//! Drafts of simulated requests, drawn from a record.

use std::sync::Arc;

use heg_sched::RequestId;
use heg_spec::Seeded;

use super::{DraftRecord, DraftedSteps};

/// The drafts of a simulation's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedDrafts {
    seed: u64,
    turnouts: Vec<Turnout>,
    /// Number of all recorded verifications.
    count: u64,
}

/// Drafts that look the same to the scheduler and have the same outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Turnout {
    /// Number of these drafts and of all those before them in the list.
    up_to: u64,
    reach: Arc<[u16]>,
    accepted: u32,
}

/// A draft that was drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DrawnDraft {
    /// Probability that each token is reached, in thousandths: its frequency over the drafts that look like this one.
    pub(crate) reach: Arc<[u16]>,
    /// Number of leading tokens that are right.
    pub(crate) accepted: u32,
}

impl SimulatedDrafts {
    /// Creates drafts that follow a record, drawn by a seed. The tokens of a tree are treated as a chain with the same
    /// probability of being right, which is exact if all of it is verified.
    pub fn new(record: &DraftRecord, seed: u64) -> Self {
        let mut turnouts = Vec::with_capacity(record.steps.len());
        let mut count = 0;
        for steps in &record.steps {
            count += u64::from(steps.count);
            turnouts.push(Turnout {
                up_to: count,
                reach: reach(record, steps),
                accepted: steps.accepted,
            });
        }
        Self {
            seed,
            turnouts,
            count,
        }
    }

    /// Returns the draft of a request after `tokens` tokens of its answer.
    pub(crate) fn after(&self, request: RequestId, tokens: u32) -> DrawnDraft {
        // Streams that begin at different places of one long random sequence.
        let place = request.0 << 32 | u64::from(tokens);
        let drawn = Seeded::new(Seeded::skipping(self.seed, place).bits()).bits();
        let place = drawn % self.count.max(1);
        let at = self
            .turnouts
            .partition_point(|turnout| turnout.up_to <= place);
        let turnout = self.turnouts.get(at);
        DrawnDraft {
            reach: turnout.map_or_else(|| Arc::from([]), |it| Arc::clone(&it.reach)),
            accepted: turnout.map_or(0, |it| it.accepted),
        }
    }
}

/// Returns the probability that each token of a draft like `like` is right.
fn reach(record: &DraftRecord, like: &DraftedSteps) -> Arc<[u16]> {
    let alike = |it: &&DraftedSteps| (it.drafted, it.expected) == (like.drafted, like.expected);
    let alike = || record.steps.iter().filter(alike);
    let all: u64 = alike().map(|it| u64::from(it.count)).sum();
    let share = |at: u32| {
        let right = alike().filter(|it| it.accepted > at);
        let right: u64 = right.map(|it| u64::from(it.count)).sum();
        (1000 * right / all.max(1)) as u16
    };
    (0..like.drafted).map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(steps: &[[u32; 4]]) -> DraftRecord {
        DraftRecord {
            data: "data".to_owned(),
            method: "chain of 4".to_owned(),
            answers: 1,
            prompt_tokens: 1,
            answer_tokens: 1,
            steps: steps.iter().map(|it| DraftedSteps::from(*it)).collect(),
        }
    }

    #[test]
    fn drafts_are_as_likely_right_as_those_that_looked_like_them() {
        let record = record(&[[0, 0, 0, 10], [3, 1, 0, 5], [3, 1, 2, 15], [3, 2, 3, 1]]);
        let drafts = SimulatedDrafts::new(&record, 7);
        let (mut tokens, mut drawn) = (0, [0; 4]);
        for at in 0..31_000 {
            let draft = drafts.after(RequestId(at % 7), (at / 7) as u32);
            tokens += 1 + draft.accepted;
            match (&*draft.reach, draft.accepted) {
                ([], 0) => drawn[0] += 1,
                ([750, 750, 0], 0) => drawn[1] += 1,
                ([750, 750, 0], 2) => drawn[2] += 1,
                ([1000, 1000, 1000], 3) => drawn[3] += 1,
                other => panic!("{other:?}"),
            }
        }
        let mean = f64::from(tokens) / 31_000.0;
        assert!(
            (mean - record.tokens_per_verification()).abs() < 0.03,
            "{mean}"
        );
        for (found, expected) in drawn.into_iter().zip([10_000_i32, 5000, 15_000, 1000]) {
            assert!((found - expected).abs() < 400, "{drawn:?}");
        }
    }

    #[test]
    fn a_seed_draws_the_same_again_and_another_one_does_not() {
        let record = record(&[[4, 1, 0, 1], [4, 1, 4, 1]]);
        let drawn = |seed| -> Vec<u32> {
            let drafts = SimulatedDrafts::new(&record, seed);
            let draw = |tokens| drafts.after(RequestId(3), tokens).accepted;
            (0..64).map(draw).collect()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn nothing_recorded_is_nothing_drafted() {
        let drafts = SimulatedDrafts::new(&record(&[]), 0);
        let draft = drafts.after(RequestId(0), 0);
        assert_eq!((draft.reach.len(), draft.accepted), (0, 0));
    }
}
