//! Lanes that hang, are lost, and come back (v1 6.5).
//!
//! A kernel that runs far too long is to be stopped; until its lane has answered that, it may still write, so its
//! requests wait. A lane that does not answer in time counts as lost, and its requests start over in other memory.
//! Kernels of dynamic shapes pass to the lane that stands in. Where none does, requests wait for one to come back, as
//! long as a kernel may hang; then all end as failed, and so do new ones until a lane is back.

use super::AgentXpu;
use crate::costs::Costs;
use crate::event::{Action, Actions, Finish, Work};
use crate::lanes::{Left, RESET_PATIENCE, Running};
use crate::request::{Lane, Micros};

/// Whether anything can be done for anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outlook {
    /// There is a lane of dynamic kernels.
    Served,
    /// One may come back until then.
    WaitsUntil(Micros),
    /// There is none.
    Hopeless,
}

impl<C: Costs> AgentXpu<C> {
    /// How long a kernel may hang at least, and requests wait for a lane.
    fn patience(&self) -> Micros {
        Micros::from_millis(self.policy.limits.timeout_min_ms)
    }

    /// A kernel runs far longer than it should: it is to be stopped.
    pub(super) fn hung(&mut self, lane: Lane, actions: &mut Actions) {
        let until = self.now + Micros(self.patience().0.saturating_mul(RESET_PATIENCE));
        if let Some(running) = self.lanes.running(lane)
            && let Work::Decode(run) = &running.work
        {
            // Others may decode meanwhile, on another lane.
            self.decode.abandon(&run.batch);
        }
        let ids = self.lanes.reset(lane, until);
        actions.push(Action::Reset(lane));
        for id in ids {
            self.settle(id, actions);
        }
    }

    /// A lane has answered: it writes nothing any more that it was told before.
    fn answered(&mut self, lane: Lane) {
        self.kv.answered(lane);
        for (_, entry) in self.ledger.iter_mut() {
            entry.own.written_by.remove(lane);
        }
    }

    /// A lane is there again, and has stopped what hung on it.
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

    /// A device is gone: what ran on it runs elsewhere, and nobody is to blame unless it hung.
    pub(super) fn lost(&mut self, lane: Lane, actions: &mut Actions) {
        self.answered(lane);
        match self.lanes.lose(lane) {
            Some(Left::Running(running)) => {
                self.undo(&running);
                // What was to be let go can go now.
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

    /// A lane has not answered in time. It may do so later, and write until then: the memory of its requests is
    /// nobody's meanwhile.
    pub(super) fn silent(&mut self, lane: Lane, actions: &mut Actions) {
        self.kv.is_silent(lane);
        if let Some(Left::Hung(running) | Left::Running(running)) = self.lanes.lose(lane) {
            self.undo_hung(&running);
            for id in running.work.requests() {
                if let Some(entry) = self.ledger.get_mut(id) {
                    entry.own.written_by.insert(lane);
                    entry.own.starts_over = true;
                }
            }
            self.blame(&running, lane, actions);
        }
        self.gone(lane, actions);
    }

    /// Takes back what was to be stopped; an iteration was taken back when it was.
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
            self.outlook = Outlook::WaitsUntil(self.now + self.patience());
        }
    }

    /// Ends everybody where no lane came back.
    pub(super) fn give_up_waiting(&mut self, actions: &mut Actions) {
        self.outlook = Outlook::Hopeless;
        let all: Vec<_> = self.ledger.iter().map(|(id, _)| id).collect();
        for id in all {
            self.end(id, Finish::Failed, actions);
        }
    }

    /// When something is to be done about a lane that is away.
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
