//! Lanes that hang, are lost, and come back (v1 6.5).
//!
//! A kernel that runs far too long is to be stopped; until its lane has confirmed that, it may still write, so its
//! requests wait. A lane that does not answer in time counts as lost, and its requests start over in other memory.
//! Kernels of dynamic shapes move to the lane that stands in. If there is none, requests wait for a lane to come
//! back, for as long as a kernel may hang; then all end as failed, and so do new ones until a lane is back.

use super::AgentXpu;
use super::outlook::Outlook;
use crate::costs::Costs;
use crate::event::{Action, Actions, Finish, Work};
use crate::lanes::{LaneSet, Left, RESET_PATIENCE, Running, return_time};
use crate::request::{Lane, Micros};

impl<C: Costs> AgentXpu<C> {
    /// Least time after which a kernel counts as hung.
    fn patience(&self) -> Micros {
        Micros::from_millis(self.policy.limits.timeout_min_ms)
    }

    /// Stops a kernel that runs far longer than it should.
    pub(super) fn hung(&mut self, lane: Lane, actions: &mut Actions) {
        let until = self.now + Micros(self.patience().0.saturating_mul(RESET_PATIENCE));
        if let Some(running) = self.lanes.running(lane)
            && let Work::Decode(run) = &running.work
        {
            // Other requests may decode meanwhile, on another lane.
            self.decode.abandon(&run.batch);
        }
        let ids = self.lanes.reset(lane, until);
        actions.push(Action::Reset(lane));
        for id in ids {
            self.settle(id, actions);
        }
    }

    /// Notes that a lane has answered: it writes nothing of its earlier work any more.
    fn answered(&mut self, lane: Lane) {
        self.kv.answered(lane);
        for (_, entry) in self.ledger.iter_mut() {
            entry.own.remove_writer(lane);
        }
    }

    /// Notes that a lane is present again, and has stopped its hung kernel.
    pub(super) fn ready(&mut self, lane: Lane, actions: &mut Actions) {
        self.answered(lane);
        self.warmth.reconsider();
        if let Some(running) = self.lanes.restore(lane) {
            self.undo_hung(&running);
            self.blame(&running, lane, actions);
        }
        if self.dynamic_lane().is_some() {
            self.outlook = Outlook::Served;
        }
    }

    /// Notes that a device is gone: its work runs elsewhere, and no request is to blame unless the device hung.
    pub(super) fn lost(&mut self, lane: Lane, actions: &mut Actions) {
        self.answered(lane);
        match self.lanes.lose(lane) {
            Some(Left::Running(running)) => {
                self.undo(&running);
                // Requests that were to be closed can be closed now.
                for id in running.work.requests() {
                    self.settle(id, actions);
                }
            }
            Some(Left::Hung(running)) => {
                self.undo_hung(&running);
                self.blame(&running, lane, actions);
            }
            None => {}
        }
        self.gone(lane, actions);
    }

    /// Notes that a lane has not answered in time. It may do so later, and write until then: the memory of its
    /// requests is not reused meanwhile.
    pub(super) fn silent(&mut self, lane: Lane, actions: &mut Actions) {
        self.kv.is_silent(lane);
        if let Some(Left::Hung(running) | Left::Running(running)) = self.lanes.lose(lane) {
            self.undo_hung(&running);
            for id in running.work.requests() {
                if let Some(entry) = self.ledger.get_mut(id) {
                    entry.own.add_writers(LaneSet::of(|other| other == lane));
                    entry.own.spoil();
                }
            }
            self.blame(&running, lane, actions);
        }
        self.gone(lane, actions);
    }

    /// Takes back work that was to be stopped; an iteration was already taken back when the lane was reset.
    fn undo_hung(&mut self, running: &Running) {
        if !matches!(running.work, Work::Decode(_)) {
            self.undo(running);
        }
    }

    fn gone(&mut self, lane: Lane, actions: &mut Actions) {
        if lane == Lane::Npu {
            self.warmth.forget(actions);
        }
        if self.outlook == Outlook::Served && self.dynamic_lane().is_none() {
            self.outlook =
                Outlook::WaitsUntil(self.now + return_time(self.policy.limits.timeout_min_ms));
        }
    }

    /// Ends all requests if no lane came back.
    pub(super) fn give_up_waiting(&mut self, actions: &mut Actions) {
        self.outlook = Outlook::Hopeless;
        let all: Vec<_> = self.ledger.iter().map(|(id, _)| id).collect();
        for id in all {
            self.end(id, Finish::Failed, actions);
        }
    }

    /// The time at which an absent lane is to be dealt with.
    pub(super) fn next_absence(&self) -> Option<Micros> {
        let answers = Lane::ALL.into_iter();
        let answers = answers.filter_map(|lane| self.lanes.answers_by(lane));
        let back = match self.outlook {
            Outlook::WaitsUntil(until) => Some(until),
            Outlook::Served | Outlook::Hopeless => None,
        };
        answers.chain(back).min()
    }
}
