//! The lane's hangs, loss and return, and the search for the request to blame for a failed iteration.
//!
//! A hung iteration is to be stopped; until the lane has confirmed that, it is neither done nor composed anew. A lane
//! that does not answer in time counts as lost. Requests wait for a lost lane to come back for as long as a kernel
//! may hang; then all end as failed, and so do new ones until it is back.

use super::{Iteration, SingleLane};
use crate::costs::Costs;
use crate::event::{Action, Actions, Finish};
use crate::isolation::ATTEMPTS;
use crate::lanes::{LaneSet, RESET_PATIENCE, return_time};
use crate::request::{Micros, RequestId};

/// Whether the lane may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneState {
    Present,
    /// Told to stop its iteration; it has to answer by this time.
    Resetting(Micros),
    /// Lost; it may come back until this time.
    Away(Micros),
    /// Given up: it did not come back in time.
    Gone,
}

impl<C: Costs> SingleLane<C> {
    fn lane_patience(&self) -> Micros {
        Micros::from_millis(self.policy.limits.timeout_min_ms)
    }

    fn return_time(&self) -> Micros {
        return_time(self.policy.limits.timeout_min_ms)
    }

    /// Resets the lane, since its iteration runs far longer than it should.
    pub(super) fn hung(&mut self, actions: &mut Actions) {
        let patience = self.lane_patience().0.saturating_mul(RESET_PATIENCE);
        self.state = LaneState::Resetting(self.now + Micros(patience));
        actions.push(Action::Reset(self.lane));
        // Requests that have ended do not wait for the reset.
        self.settle(actions);
    }

    /// Notes that the lane is present again, and has stopped its hung iteration.
    pub(super) fn ready(&mut self, actions: &mut Actions) {
        self.kv.answered(self.lane);
        match self.state {
            LaneState::Present => {}
            LaneState::Resetting(_) => {
                self.state = LaneState::Present;
                self.give_up_iteration(actions);
            }
            LaneState::Away(_) | LaneState::Gone => self.state = LaneState::Present,
        }
    }

    /// Notes that the lane is gone. Its iteration is to run again; no request is to blame unless the lane hung.
    pub(super) fn lost(&mut self, actions: &mut Actions) {
        self.kv.answered(self.lane);
        let before = self.state;
        if before != LaneState::Gone {
            self.state = LaneState::Away(self.now + self.return_time());
        }
        match before {
            LaneState::Resetting(_) => self.give_up_iteration(actions),
            LaneState::Present => self.iteration = None,
            LaneState::Away(_) | LaneState::Gone => {}
        }
        self.settle(actions);
    }

    /// Deals with a lane that did not answer or come back in time. One that did not answer counts as lost: it may
    /// still write, so the memory of its hung iteration is not reused until it answers. If it did not come back, all
    /// requests end.
    pub(super) fn not_back(&mut self, actions: &mut Actions) {
        if !matches!(self.state, LaneState::Resetting(_)) {
            self.state = LaneState::Gone;
            return self.end_where(Finish::Failed, |_| true, actions);
        }
        self.state = LaneState::Away(self.now + self.return_time());
        self.kv.is_silent(self.lane);
        let ids: Vec<RequestId> = self
            .iteration
            .iter()
            .flat_map(Iteration::requests)
            .collect();
        for id in &ids {
            self.kv.release_after(self.writer(), *id, actions);
        }
        self.give_up_iteration(actions);
        for id in ids.into_iter().rev() {
            self.requeue(id, actions);
        }
    }

    /// The lane, as the set of lanes that may still write.
    pub(super) fn writer(&self) -> LaneSet {
        LaneSet::of(|lane| lane == self.lane)
    }

    /// The time at which the lane's absence is to be dealt with.
    pub(super) fn next_absence(&self) -> Option<Micros> {
        match self.state {
            LaneState::Resetting(until) | LaneState::Away(until) => Some(until),
            LaneState::Present | LaneState::Gone => None,
        }
    }

    /// Gives up a failed iteration: it counts against its request if that was alone; otherwise each is tried alone.
    pub(super) fn give_up_iteration(&mut self, actions: &mut Actions) {
        let Some(iteration) = self.iteration.take() else {
            return;
        };
        let ids: Vec<RequestId> = iteration.requests().collect();
        let is_live = |id| self.running.contains(&id);
        let culprit = self.isolation.failed(&ids, is_live);
        if let Some(entry) = culprit.and_then(|id| self.ledger.get_mut(id)) {
            entry.failures += 1;
            if entry.failures >= ATTEMPTS {
                entry.ending.get_or_insert(Finish::Failed);
                self.isolation.found();
            }
        }
        self.settle(actions);
    }
}
