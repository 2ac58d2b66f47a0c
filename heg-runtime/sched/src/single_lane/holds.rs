//! Reasons why requests wait on a single device.

use super::absence::LaneState;
use super::{Entry, Iteration, SingleLane};
use crate::costs::Costs;
use crate::hold::{Hold, HoldReason};
use crate::request::RequestId;

impl<C: Costs> SingleLane<C> {
    /// Appends the waiting requests with their reasons.
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
            let several = self.ledger.clients().are_several();
            let first = match several {
                true => self.heads(self.exclusive_class()).first().copied(),
                false => self.waiting.front().copied(),
            };
            return match first.filter(|first| *first != id) {
                Some(first) if self.are_strangers(id, first) => HoldReason::Turn,
                Some(first) => HoldReason::Prompt(first),
                None => self.first_in_queue(entry),
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

    /// Returns why a request that has room waits beside an iteration without it.
    fn beside(&self, iteration: &Iteration, entry: &Entry) -> HoldReason {
        let batch_max = self.policy.decode.batch_max as usize;
        let mut members = iteration.batch.iter();
        let strangers = members.any(|it| self.are_strangers(entry.id(), it.request));
        match iteration.prompts.first() {
            _ if entry.own.decodes && strangers && iteration.batch.len() >= batch_max => {
                HoldReason::Turn
            }
            _ if entry.own.decodes && iteration.batch.len() >= batch_max => HoldReason::BatchFull,
            _ if entry.own.decodes => HoldReason::Iteration,
            Some((prompt, _)) if self.are_strangers(entry.id(), *prompt) => HoldReason::Turn,
            Some((prompt, _)) => HoldReason::Prompt(*prompt),
            None => HoldReason::Answers,
        }
    }
}
