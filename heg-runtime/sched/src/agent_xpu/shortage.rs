//! Memory that the machine lacks although the budget has it, and caches that cannot be read.
//!
//! Idle flows give up theirs first, then the youngest proactive request, for a reactive one. A request that still
//! lacks memory waits for others to give some back, and ends when it was refused too often. No other request ends for
//! it.

use super::AgentXpu;
use super::stage::Entry;
use crate::costs::Costs;
use crate::event::{Actions, Finish, Ticket};
use crate::lanes::Running;
use crate::prefill::Prefill;
use crate::request::{Class, Lane, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// Deals with a request whose reserved memory could not be had: it asks again, or ends.
    pub(super) fn unreserved(&mut self, id: RequestId, actions: &mut Actions) {
        if !self.kv.unreserved(id) {
            return;
        }
        for lane in Lane::ALL {
            let of_it = |running: &Running| running.work.is_of(id);
            if let Some(running) = self.lanes.take_if(lane, of_it) {
                self.undo(&running);
            }
        }
        let Some(entry) = self.ledger.get_mut(id) else {
            return;
        };
        if entry.ending.is_some() {
            return self.settle(id, actions);
        }
        let reactive = entry.class() == Class::Reactive;
        let hopeful = entry.refusals.again();
        self.restart(id, actions);
        if !hopeful {
            return self.end(id, Finish::Failed, actions);
        }
        let made_room =
            self.kv.release_flows(actions) || (reactive && self.give_up_youngest(&[id], actions));
        if let Some(entry) = self.ledger.get_mut(id).filter(|_| !made_room) {
            entry.refusals.wait(&self.kv);
        }
    }

    /// Ends requests that wait for room which lanes that do not answer still hold.
    pub(super) fn end_crowded_out(&mut self, actions: &mut Actions) {
        if self.kv.held() == 0 {
            return;
        }
        let context_tokens = self.model.context_tokens;
        let crowded_out = |entry: &Entry| {
            let tokens = entry.submission.tokens_max(context_tokens);
            entry.own.is_queued() && !self.kv.could_fit(tokens)
        };
        let all = self.ledger.iter().filter(|(_, entry)| crowded_out(entry));
        for id in all.map(|(id, _)| id).collect::<Vec<_>>() {
            self.end(id, Finish::Failed, actions);
        }
    }

    /// Deals with a reused cache that is lost: the request computes it anew.
    pub(super) fn unreadable(&mut self, ticket: Ticket, id: RequestId, actions: &mut Actions) {
        let Some((_, running)) = self.lanes.finish(ticket) else {
            return;
        };
        self.undo(&running);
        if let Some(entry) = self.ledger.get_mut(id) {
            entry.own.spoil();
        }
        for id in running.work.requests() {
            self.settle(id, actions);
        }
    }

    /// Deals with a launch that found no memory: others give up theirs, then it is tried again. If others have
    /// to start over, it counts as a failure of the launch, since they will need the memory again.
    pub(super) fn out_of_memory(&mut self, ticket: Ticket, actions: &mut Actions) {
        let Some((lane, running)) = self.lanes.finish(ticket) else {
            return;
        };
        self.undo(&running);
        let ids = running.work.requests();
        if self.kv.release_flows(actions) {
            for id in ids {
                self.settle(id, actions);
            }
            return;
        }
        self.give_up_youngest(&ids, actions);
        self.blame(&running, lane, actions);
    }

    /// Restarts the youngest proactive request that runs nothing and is not among `spared`; returns false if there is
    /// none.
    fn give_up_youngest(&mut self, spared: &[RequestId], actions: &mut Actions) -> bool {
        let others = |id: RequestId, entry: &Entry| {
            let active = entry.prefill().is_some_and(Prefill::is_running);
            let queued = entry.own.is_queued();
            !active && !queued && !spared.contains(&id) && !self.decode_holds(id)
        };
        let Some(id) = self.ledger.youngest_proactive(&self.kv, others) else {
            return false;
        };
        self.restart(id, actions);
        true
    }

    /// Sends a request back to its queue and discards its computed state; its answer so far becomes part of its
    /// prompt.
    pub(super) fn restart(&mut self, id: RequestId, actions: &mut Actions) {
        self.prefills.forget(id);
        self.decode.leave(id);
        self.release_memory(id, actions);
        if let Some(entry) = self.ledger.get_mut(id) {
            entry.start_over(actions);
            entry.own.requeue();
        }
        self.enqueue(id);
    }

    /// Gives a request's memory back; it is free once no lane may write to it any more.
    pub(super) fn release_memory(&mut self, id: RequestId, actions: &mut Actions) {
        let entry = self.ledger.get_mut(id);
        let writers = entry.map(|entry| entry.own.take_writers());
        self.kv
            .release_from(writers.unwrap_or_default(), id, actions);
    }

    /// Gives up the KV cache of the youngest proactive request that runs nothing, for a request that needs
    /// `tokens`. Returns false, and gives up nothing, if all such caches together would not be enough.
    pub(super) fn make_room(&mut self, tokens: u32, actions: &mut Actions) -> bool {
        let idle = |id: RequestId, entry: &Entry| {
            let running = entry.prefill().is_some_and(Prefill::is_running);
            let proactive = entry.class() == Class::Proactive;
            proactive && !running && !self.decode_holds(id) && !entry.own.is_queued()
        };
        let candidates = self.ledger.iter().filter(|(id, entry)| idle(*id, entry));
        let room: u64 = candidates.map(|(id, _)| self.kv.reserved(id)).sum();
        let Some(id) = self.ledger.youngest_proactive(&self.kv, idle) else {
            return false;
        };
        if self.kv.reclaimable() + room < u64::from(tokens) {
            return false;
        }
        self.restart(id, actions);
        true
    }
}
