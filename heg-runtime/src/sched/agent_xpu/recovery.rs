//! What happens when a device does not do as it was told (v1 6.5).
//!
//! Kernels are idempotent: what failed is run again, on another lane if there is one. A request that fails
//! [`ATTEMPTS`] times in a row ends; the others go on.

use super::AgentXpu;
use crate::sched::costs::Costs;
use crate::sched::event::{Action, Actions, Finish, Ticket, Work};
use crate::sched::lanes::Running;
use crate::sched::request::{Lane, RequestId};
use crate::sched::table::Entry;

/// How often a kernel is tried.
const ATTEMPTS: u32 = 3;

impl<C: Costs> AgentXpu<C> {
    pub(super) fn failed(&mut self, ticket: Ticket, actions: &mut Actions) {
        if let Some((lane, running)) = self.lanes.finish(ticket) {
            self.undo(&running);
            self.blame(&running, lane, actions);
        }
    }

    /// A kernel runs far longer than it should: the lane is reset, and what ran there has failed.
    pub(super) fn hung(&mut self, lane: Lane, actions: &mut Actions) {
        if let Some(running) = self.lanes.reset(lane) {
            actions.push(Action::Reset(lane));
            self.undo(&running);
            self.blame(&running, lane, actions);
        }
    }

    /// A device is gone: what ran on it runs elsewhere, or nothing more can be done for anybody.
    pub(super) fn lost(&mut self, lane: Lane, actions: &mut Actions) {
        if let Some(running) = self.lanes.lose(lane) {
            self.undo(&running);
            // Nobody is to blame; but what was to be let go can go now.
            for id in running.work.requests() {
                self.settle(id, actions);
            }
        }
        if lane == Lane::Npu {
            self.warmth.forget(actions);
        }
        if self.dynamic_lane().is_none() {
            let all: Vec<RequestId> = self.table.iter().map(|(id, _)| id).collect();
            self.decode.abandon();
            for id in all {
                self.end(id, Finish::Failed, actions);
            }
        }
    }

    /// Takes back that something ran.
    pub(super) fn undo(&mut self, running: &Running) {
        match &running.work {
            Work::Prefill {
                request, segment, ..
            } => {
                if let Some(prefill) = self.table.get_mut(*request).and_then(Entry::prefill_mut) {
                    prefill.undo(segment.position);
                }
            }
            Work::Head(request) => {
                if let Some(prefill) = self.table.get_mut(*request).and_then(Entry::prefill_mut) {
                    prefill.undo_head();
                }
            }
            // Rows of the batch's activations may be half written: the iteration begins anew.
            Work::Decode(_) => {
                self.decode.abandon();
            }
            Work::Mixed { .. } => {}
        }
    }

    /// Counts a failure against the requests that were part of it.
    pub(super) fn blame(&mut self, running: &Running, lane: Lane, actions: &mut Actions) {
        let ids = running.work.requests();
        let mut worst = 0;
        for id in &ids {
            if let Some(entry) = self.table.get_mut(*id) {
                entry.failures += 1;
                entry.failed = Some(lane);
                worst = worst.max(entry.failures);
            }
        }
        if let Work::Decode(run) = &running.work {
            // Which of them is it? From the second failure on, each decodes alone.
            if run.batch.len() > 1 && worst > 1 {
                self.decode.alone = ids.first().copied();
            }
        }
        for id in ids {
            let hopeless = self.table.get(id).is_some_and(|e| e.failures >= ATTEMPTS);
            if hopeless {
                self.end(id, Finish::Failed, actions);
            } else {
                self.settle(id, actions);
            }
        }
    }
}
