//! Reactive answers that have just begun, or will soon end, go before a long reactive prompt
//! (`decode.young_answers_first`, `decode.ending_answers_first`).

use std::sync::Arc;

use super::AgentXpu;
use super::stage::Entry;
use crate::costs::Costs;
use crate::event::{DecodeRun, Decoding};
use crate::request::{Class, Lane, RequestId};

/// Progress of the reactive answers.
struct Answers {
    /// Decoding time of the answer with the fewest tokens, in µs.
    youngest_us: f64,
    /// Time for the most tokens that the answer closest to its end may still have, in µs.
    rest_us: f64,
}

impl<C: Costs> AgentXpu<C> {
    /// Whether the next prompt is a reactive one that takes long, and a reactive answer has just begun or may soon
    /// end (`decode.young_answers_first`, `decode.ending_answers_first`). For each answer it waits for at most a part
    /// of its own length, since answers grow older and end.
    pub(super) fn would_hold_up_answer(&self, lane: Lane) -> bool {
        let policy = &self.policy.decode;
        let rules = (policy.young_answers_first, policy.ending_answers_first);
        if self.lanes.is_present(Lane::Npu) || rules == (None, None) {
            return false;
        }
        let next = self.next_prefill(lane);
        let Some(next) = next.filter(|next| next.class == Class::Reactive) else {
            return false;
        };
        let Some(answers) = self.reactive_answers(lane, next.id) else {
            return false;
        };
        let length_us = self.time_to_completion(next.id);
        let exceeds =
            |times: Option<f64>, us: f64| times.is_some_and(|times| length_us > times * us);
        exceeds(policy.young_answers_first, answers.youngest_us)
            || exceeds(policy.ending_answers_first, answers.rest_us)
    }

    /// Returns the progress of the reactive answers, at the time of a token of one request alone; `None` if there are
    /// none. Answers of clients that were served more than the prompt's client do not count.
    fn reactive_answers(&self, lane: Lane, prompt: RequestId) -> Option<Answers> {
        let next = self.ledger.get(prompt)?;
        let answers = self.decode.requests().filter_map(|id| {
            let entry = self.ledger.get(*id)?;
            let counts = entry.class() == Class::Reactive
                && entry.ending.is_none()
                && (entry.client() == next.client() || self.goes_first(entry, next));
            counts.then_some((*id, entry))
        });
        let time_us = |id: RequestId, entry: &Entry, tokens: u32| {
            let alone = DecodeRun {
                batch: Arc::from([Decoding {
                    request: id,
                    context: entry.context(),
                    drafted: 0,
                }]),
                layers: 0..self.model.layers,
                fused: false,
            };
            Some(f64::from(tokens) * self.decode_cost(lane, &alone)?.latency_us)
        };
        let (youngest, young) = answers
            .clone()
            .min_by_key(|(id, entry)| (entry.generated, *id))?;
        let (last, ending) = answers.min_by_key(|(id, entry)| (entry.tokens_left(), *id))?;
        Some(Answers {
            youngest_us: time_us(youngest, young, young.generated)?,
            rest_us: time_us(last, ending, ending.tokens_left())?,
        })
    }
}
