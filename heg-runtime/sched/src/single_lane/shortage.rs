//! Memory that the machine lacks although the budget has it, and caches that cannot be read.

use super::SingleLane;
use crate::costs::Costs;
use crate::event::{Actions, Finish};
use crate::request::RequestId;
use heg_spec::bug;

impl<C: Costs> SingleLane<C> {
    /// Deals with a request whose reserved memory could not be had: idle flows give up theirs, or it waits for memory
    /// that others give back; it ends if it was refused too often.
    pub(super) fn unreserved(&mut self, id: RequestId, actions: &mut Actions) {
        if !self.kv.unreserved(id) {
            return;
        }
        // The iteration is not carried out, and no request is to blame.
        self.iteration
            .take_if(|iteration| iteration.requests().any(|other| other == id));
        self.requeue(id, actions);
        let Some(entry) = self.ledger.get_mut(id) else {
            return;
        };
        if !entry.refusals.again() {
            entry.ending.get_or_insert(Finish::Failed);
        } else if !self.kv.release_flows(actions) {
            entry.refusals.wait(&self.kv);
        }
        self.settle(actions);
    }

    /// Deals with a reused cache that is lost: the request computes it anew.
    pub(super) fn unreadable(&mut self, id: RequestId, actions: &mut Actions) {
        self.iteration = None;
        self.kv.release(id, actions);
        self.requeue(id, actions);
        self.settle(actions);
    }

    /// Deals with an iteration that found no memory. Idle flows give up their caches; if there are none, it has
    /// failed.
    pub(super) fn out_of_memory(&mut self, actions: &mut Actions) {
        if self.kv.release_flows(actions) {
            self.iteration = None;
            self.settle(actions);
        } else {
            self.give_up_iteration(actions);
        }
    }

    /// Ends requests that wait for room which a lane that does not answer still holds.
    pub(super) fn end_crowded_out(&mut self, actions: &mut Actions) {
        if self.kv.held() == 0 {
            return;
        }
        for id in &self.waiting {
            let Some(entry) = self.ledger.get_mut(*id) else {
                bug!("a request waits that is over");
                continue;
            };
            let tokens = entry.submission.tokens_max(self.model.context_tokens);
            if !self.kv.could_fit(tokens) {
                entry.ending.get_or_insert(Finish::Failed);
            }
        }
        self.settle(actions);
    }

    /// Sends a running request back to the head of its queue and discards its computed state.
    pub(super) fn requeue(&mut self, id: RequestId, actions: &mut Actions) {
        let place = self.running.iter().position(|other| *other == id);
        if let Some(id) = place.map(|place| self.running.remove(place)) {
            self.start_over(id, actions);
        }
    }
}
