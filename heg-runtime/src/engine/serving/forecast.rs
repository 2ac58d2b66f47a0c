//! How things stand, and when a request will have its first token.

use std::time::Duration;

use super::Serving;
use crate::engine::live::Phase;
use crate::engine::status::Status;
use heg_sched::{Class, Lane, Submission};

impl Serving {
    /// When the first token of a request should be there: after the prompts before it.
    pub(super) fn predict(&self, submission: &Submission) -> Duration {
        let lane = Lane::ALL
            .into_iter()
            .rev()
            .find(|lane| self.lanes[*lane as usize].is_some());
        let Some(lane) = lane else {
            return Duration::ZERO;
        };
        let own = self
            .pace
            .prefill_us(lane, submission.shared_tokens, submission.prompt_tokens);
        let before = self
            .live
            .values()
            .filter(|live| live.class <= submission.class && live.phase() != Phase::Decoding);
        let others: f64 = before
            .filter_map(|live| {
                let length = self
                    .pace
                    .prefill_us(lane, live.reused_tokens, live.prompt_tokens);
                // As the scheduler ranks them.
                let overtaken = self.short_prompts_first.is_some_and(|times| {
                    let age = live.age().as_micros() as f64;
                    submission.class == Class::Reactive && age + times * own < times * length
                });
                (!overtaken).then_some(length)
            })
            .sum();
        Duration::from_micros((own + others) as u64)
    }

    /// How things stand.
    pub(super) fn status(&self) -> Status {
        let mut status = self.status.clone();
        for live in self.live.values() {
            let phases = match live.class {
                Class::Reactive => &mut status.reactive,
                Class::Proactive => &mut status.proactive,
            };
            match live.phase() {
                Phase::Queued => phases.queued += 1,
                Phase::Prefilling => phases.prefilling += 1,
                Phase::Decoding => phases.decoding += 1,
            }
        }
        for arrival in self.held.iter() {
            match arrival.request.class {
                Class::Reactive => status.reactive.queued += 1,
                Class::Proactive => status.proactive.queued += 1,
            }
        }
        status.dispatch_us = self.dispatch.as_micros() as u64;
        status.waits = self.waits.status();
        status.flows_kept = self.room.memory.flows_kept() as u32;
        status.kv_bytes = self.room.memory.bytes();
        status
    }
}
