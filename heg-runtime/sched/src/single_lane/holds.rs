//! What requests wait for on a single device.

use super::absence::LaneState;
use super::{Entry, Iteration, SingleLane};
use crate::costs::Costs;
use crate::hold::{Hold, HoldReason};
use crate::request::RequestId;

impl<C: Costs> SingleLane<C> {
    /// Appends what requests wait for.
    pub(super) fn append_holds(&self, holds: &mut Vec<Hold>) {
        let iteration = self.iteration.as_ref();
        let runs = |id: RequestId| {
            iteration.is_some_and(|iteration| iteration.requests().any(|other| other == id))
        };
        for (request, entry) in self.ledger.iter() {
            let why = match self.state {
                LaneState::Present if runs(request) => continue,
                LaneState::Present => self.hold(entry),
                LaneState::Resetting(_) if runs(request) => HoldReason::Stopping,
                LaneState::Resetting(_) => HoldReason::Reset(self.lane),
                LaneState::Away(_) | LaneState::Gone => HoldReason::NoLane,
            };
            holds.push(Hold { request, why });
        }
    }

    fn hold(&self, entry: &Entry) -> HoldReason {
        let id = entry.id();
        if !self.running.contains(&id) {
            return match self.waiting.front() {
                Some(first) if *first != id => HoldReason::Prompt(*first),
                _ => self.first_in_queue(entry),
            };
        }
        match &self.iteration {
            Some(iteration) => self.beside(iteration, entry),
            None => HoldReason::Trial,
        }
    }

    fn first_in_queue(&self, entry: &Entry) -> HoldReason {
        let excluded = self
            .exclusive_class()
            .filter(|only| *only != entry.class())
            .and_then(|only| self.running().find(|other| other.class() == only));
        match excluded {
            Some(other) => HoldReason::Prompt(other.id()),
            None if self.iteration.is_some() && self.has_room_for(entry) => HoldReason::Iteration,
            None if self.kv.writes_to_flash() => HoldReason::Flash,
            None => HoldReason::Memory,
        }
    }

    fn has_room_for(&self, entry: &Entry) -> bool {
        let tokens = entry.submission.tokens_max(self.model.context_tokens);
        self.kv.reclaimable() >= u64::from(tokens)
    }

    /// What a request that has room waits for beside an iteration without it.
    fn beside(&self, iteration: &Iteration, entry: &Entry) -> HoldReason {
        let batch_max = self.policy.decode.batch_max as usize;
        match iteration.prompts.first() {
            _ if entry.own.decodes && iteration.batch.len() >= batch_max => HoldReason::BatchFull,
            _ if entry.own.decodes => HoldReason::Iteration,
            Some((prompt, _)) => HoldReason::Prompt(*prompt),
            None => HoldReason::Answers,
        }
    }
}
