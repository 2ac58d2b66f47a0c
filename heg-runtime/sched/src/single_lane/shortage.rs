//! Memory that is not there although the budget has it, and caches that cannot be read.

use super::SingleLane;
use crate::costs::Costs;
use crate::event::{Actions, Finish};
use crate::request::RequestId;

impl<C: Costs> SingleLane<C> {
    /// A request has not got the memory that was reserved for it: idle flows give theirs, or it waits for what others
    /// give back; it ends when it was refused too often.
    pub(super) fn unreserved(&mut self, id: RequestId, actions: &mut Actions) {
        if !self.kv.unreserved(id) {
            return;
        }
        // It is not carried out, and nobody is to blame.
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

    /// What a request was to reuse is lost: it computes it anew.
    pub(super) fn unreadable(&mut self, id: RequestId, actions: &mut Actions) {
        self.iteration = None;
        self.kv.release(id, actions);
        self.requeue(id, actions);
        self.settle(actions);
    }

    /// The iteration found no memory. Caches of idle flows give theirs; if there are none, it has failed.
    pub(super) fn out_of_memory(&mut self, actions: &mut Actions) {
        if self.kv.release_flows(actions) {
            self.iteration = None;
            self.settle(actions);
        } else {
            self.give_up_iteration(actions);
        }
    }

    /// Ends requests that wait for room which the lane keeps that does not answer.
    pub(super) fn end_crowded_out(&mut self, actions: &mut Actions) {
        if self.kv.held() == 0 {
            return;
        }
        for id in &self.waiting {
            let Some(entry) = self.ledger.get_mut(*id) else {
                continue;
            };
            let tokens = entry.submission.tokens_max(self.model.context_tokens);
            if !self.kv.could_fit(tokens) {
                entry.ending.get_or_insert(Finish::Failed);
            }
        }
        self.settle(actions);
    }

    /// Sends a request that runs back to the head of its queue, with nothing computed.
    pub(super) fn requeue(&mut self, id: RequestId, actions: &mut Actions) {
        let place = self.running.iter().position(|other| *other == id);
        if let Some(id) = place.map(|place| self.running.remove(place)) {
            self.start_over(id, actions);
        }
    }
}
