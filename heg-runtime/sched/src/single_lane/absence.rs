//! When the lane hangs, is lost, and comes back, and who is to blame for an iteration that did not succeed.
//!
//! What hangs is to be stopped; until the lane has answered that, its iteration is neither done nor composed anew. A
//! lane that does not answer in time counts as lost. Requests wait for a lost one to come back, as long as a kernel may
//! hang; then all end as failed, and so do new ones until it is back.

use super::{Iteration, SingleLane};
use crate::costs::Costs;
use crate::event::{Action, Actions, Finish};
use crate::isolation::ATTEMPTS;
use crate::lanes::{LaneSet, RESET_PATIENCE};
use crate::request::{Micros, RequestId};

/// Whether the lane may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneState {
    Present,
    /// To stop its iteration, and to answer by then.
    Resetting(Micros),
    /// Lost; it may come back until then.
    Away(Micros),
    /// Nobody counts on it any more.
    Gone,
}

impl<C: Costs> SingleLane<C> {
    fn lane_patience(&self) -> Micros {
        Micros::from_millis(self.policy.limits.timeout_min_ms)
    }

    /// The iteration runs far longer than it should: it is to be stopped.
    pub(super) fn hung(&mut self, actions: &mut Actions) {
        let patience = self.lane_patience().0.saturating_mul(RESET_PATIENCE);
        self.state = LaneState::Resetting(self.now + Micros(patience));
        actions.push(Action::Reset(self.lane));
        // Who has ended does not wait for that.
        self.settle(actions);
    }

    /// The lane is there again, and has stopped what hung on it.
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

    /// The lane is gone, and what ran there is to run again; nobody is to blame unless it hung.
    pub(super) fn lost(&mut self, actions: &mut Actions) {
        self.kv.answered(self.lane);
        let before = self.state;
        if before != LaneState::Gone {
            self.state = LaneState::Away(self.now + self.lane_patience());
        }
        match before {
            LaneState::Resetting(_) => self.give_up_iteration(actions),
            LaneState::Present => self.iteration = None,
            LaneState::Away(_) | LaneState::Gone => {}
        }
        self.settle(actions);
    }

    /// The lane did not answer, and counts as lost: it may still write, and memory of what hung there is nobody's until
    /// it answers. Or it did not come back, and all end.
    pub(super) fn not_back(&mut self, actions: &mut Actions) {
        if !matches!(self.state, LaneState::Resetting(_)) {
            self.state = LaneState::Gone;
            return self.end_where(Finish::Failed, |_| true, actions);
        }
        self.state = LaneState::Away(self.now + self.lane_patience());
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

    /// The lane, as who may still write.
    pub(super) fn writer(&self) -> LaneSet {
        LaneSet::of(|lane| lane == self.lane)
    }

    /// When something is to be done about the lane.
    pub(super) fn next_absence(&self) -> Option<Micros> {
        match self.state {
            LaneState::Resetting(until) | LaneState::Away(until) => Some(until),
            LaneState::Present | LaneState::Gone => None,
        }
    }

    /// The iteration did not succeed: it counts against its request if that was alone, else each has to prove itself.
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
