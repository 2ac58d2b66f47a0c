//! Recovery from launches that fail (v1 6.5).
//!
//! Kernels are idempotent: a failed one is run again, on another lane if there is one. A request that
//! fails [`ATTEMPTS`] times in a row, with no other beside it, ends; the others go on.

use super::AgentXpu;
use super::stage::Entry;
use crate::costs::Costs;
use crate::event::{Actions, Finish, Ticket, Work};
use crate::isolation::ATTEMPTS;
use crate::lanes::Running;
use crate::request::Lane;
use heg_spec::bug;

impl<C: Costs> AgentXpu<C> {
    /// Deals with a launch that failed.
    pub(super) fn failed(&mut self, ticket: Ticket, actions: &mut Actions) {
        if let Some((lane, running)) = self.lanes.finish(ticket) {
            self.charge(lane, &running, self.model.layers);
            self.undo(&running);
            self.blame(&running, lane, actions);
        }
    }

    /// Takes back a launch, so that its work may run again.
    pub(super) fn undo(&mut self, running: &Running) {
        match &running.work {
            Work::Prefill {
                request, segment, ..
            } => {
                if let Some(prefill) = self.ledger.get_mut(*request).and_then(Entry::prefill_mut) {
                    prefill.undo(segment.position);
                }
            }
            Work::Head(request) => {
                if let Some(prefill) = self.ledger.get_mut(*request).and_then(Entry::prefill_mut) {
                    prefill.undo_head();
                }
            }
            // Rows of the batch's activations may be half written: the iteration begins anew.
            Work::Decode(run) => self.decode.abandon(&run.batch),
            Work::Mixed { .. } => {
                bug!("this scheduler never launches mixed work");
            }
        }
    }

    /// Blames a failed launch: it counts against its request if that was alone; otherwise each is tried alone.
    pub(super) fn blame(&mut self, running: &Running, lane: Lane, actions: &mut Actions) {
        let ids = running.work.requests();
        for id in &ids {
            if let Some(entry) = self.ledger.get_mut(*id) {
                entry.own.fail_on(lane);
            }
        }
        let culprit = match running.work {
            Work::Decode(_) => {
                let is_live = |id| self.ledger.get(id).is_some();
                self.decode.isolation_mut().failed(&ids, is_live)
            }
            // These launches are of one request each.
            Work::Prefill { .. } | Work::Head(_) | Work::Mixed { .. } => ids.first().copied(),
        };
        if let Some(entry) = culprit.and_then(|id| self.ledger.get_mut(id)) {
            entry.failures += 1;
            if entry.failures >= ATTEMPTS {
                entry.ending.get_or_insert(Finish::Failed);
                self.decode.isolation_mut().found();
            }
        }
        for id in ids {
            self.settle(id, actions);
        }
    }
}
