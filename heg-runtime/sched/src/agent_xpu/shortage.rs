//! Memory that is not there although the budget has it, and caches that cannot be read.
//!
//! Idle flows give theirs first, then the youngest proactive request, for a reactive one; what needs it waits for what
//! others give back, and ends when it was refused too often. Nobody else ends for it.

use super::AgentXpu;
use super::stage::{Entry, Phase};
use crate::costs::Costs;
use crate::event::{Actions, Finish, Ticket};
use crate::lanes::Running;
use crate::prefill::Prefill;
use crate::request::{Class, Lane, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// A request has not got the memory that was reserved for it: it asks again, or ends.
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

    /// Ends requests that wait for room which lanes that do not answer keep.
    pub(super) fn end_crowded_out(&mut self, actions: &mut Actions) {
        if self.kv.held() == 0 {
            return;
        }
        let context_tokens = self.model.context_tokens;
        let crowded_out = |entry: &Entry| {
            let tokens = entry.submission.tokens_max(context_tokens);
            matches!(entry.own.phase, Phase::Queued) && !self.kv.could_fit(tokens)
        };
        let all = self.ledger.iter().filter(|(_, entry)| crowded_out(entry));
        for id in all.map(|(id, _)| id).collect::<Vec<_>>() {
            self.end(id, Finish::Failed, actions);
        }
    }

    /// What a request was to reuse is lost: it computes it anew.
    pub(super) fn unreadable(&mut self, ticket: Ticket, id: RequestId, actions: &mut Actions) {
        let Some((_, running)) = self.lanes.finish(ticket) else {
            return;
        };
        self.undo(&running);
        if let Some(entry) = self.ledger.get_mut(id) {
            entry.own.starts_over = true;
        }
        for id in running.work.requests() {
            self.settle(id, actions);
        }
    }

    /// A launch found no memory: others give theirs, then it is tried again. Making them start over counts as a
    /// failure of the launch, since they come back for it.
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

    /// Gives up what the youngest proactive request has computed that nothing runs of, and that is not among `spared`;
    /// false if there is none.
    fn give_up_youngest(&mut self, spared: &[RequestId], actions: &mut Actions) -> bool {
        let others = |id: RequestId, entry: &Entry| {
            let active = entry.prefill().is_some_and(Prefill::is_running);
            let queued = matches!(entry.own.phase, Phase::Queued);
            !active && !queued && !spared.contains(&id) && !self.decode_holds(id)
        };
        let Some(id) = self.ledger.youngest_proactive(others) else {
            return false;
        };
        self.restart(id, actions);
        true
    }

    /// Sends a request back to its queue with nothing computed; its answer so far becomes part of its prompt.
    pub(super) fn restart(&mut self, id: RequestId, actions: &mut Actions) {
        self.prefills.forget(id);
        self.decode.leave(id);
        self.release_memory(id, actions);
        if let Some(entry) = self.ledger.get_mut(id) {
            entry.start_over(actions);
            entry.own.phase = Phase::Queued;
            entry.own.starts_over = false;
        }
        self.enqueue(id);
    }

    /// Gives a request's memory back, once nothing may write to it any more.
    pub(super) fn release_memory(&mut self, id: RequestId, actions: &mut Actions) {
        let entry = self.ledger.get_mut(id);
        let writers = entry.map(|entry| std::mem::take(&mut entry.own.written_by));
        self.kv
            .release_from(writers.unwrap_or_default(), id, actions);
    }

    /// Gives up the KV cache of the youngest proactive request that nothing runs of, for a request that needs
    /// `tokens`; false, and nothing is given up, if that would not do even with all the others of the kind.
    pub(super) fn make_room(&mut self, tokens: u32, actions: &mut Actions) -> bool {
        let idle = |id: RequestId, entry: &Entry| {
            let running = entry.prefill().is_some_and(Prefill::is_running);
            let proactive = entry.class() == Class::Proactive;
            proactive
                && !running
                && !self.decode_holds(id)
                && !matches!(entry.own.phase, Phase::Queued)
        };
        let candidates = self.ledger.iter().filter(|(id, entry)| idle(*id, entry));
        let room: u64 = candidates.map(|(id, _)| self.kv.reserved(id)).sum();
        let Some(id) = self.ledger.youngest_proactive(idle) else {
            return false;
        };
        if self.kv.reclaimable() + room < u64::from(tokens) {
            return false;
        }
        self.restart(id, actions);
        true
    }
}
