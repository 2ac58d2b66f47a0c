//! Prompts that run beside the one in progress: a second reactive one aside, an overdue one, and one that fills bubbles.
//!
//! Whether they may is up to rules (`rules/aside.rs`, `rules/ageing.rs`, `rules/bubble.rs`).

use super::AgentXpu;
use super::prefills::Slot;
use super::rules::{Proposal, Question, Verdict};
use crate::costs::{Call, Costs};
use crate::event::{Actions, LayerKernel};
use crate::mechanism::Mechanism;
use crate::request::{Class, Lane, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// Lets a waiting prompt begin beside the one in progress. An overdue prompt has the iGPU before it, and so have
    /// reactive and overdue answers.
    pub(super) fn start_aside(&mut self, actions: &mut Actions) {
        let prefills = &self.prefills;
        if !self.rules.has(Question::Aside)
            || prefills.queue(Class::Reactive).is_empty()
            || prefills.holder(Slot::Aside).is_some()
            || prefills.holder(Slot::Overdue).is_some()
            || !self.lanes.is_present(Lane::Npu)
            || self.judged(Proposal::Loan).0 == Verdict::Wait
            || !prefills
                .holder(Slot::Foreground)
                .is_some_and(|id| self.has_chunks(id))
        {
            return;
        }
        let Some((id, mechanism)) = self.next_aside() else {
            return;
        };
        if self.begin(id, actions) {
            self.prefills.give(Slot::Aside, Some(id));
            self.tally.note(mechanism);
        }
    }

    /// Returns the next prompt that may run aside, and the mechanism that lets it.
    fn next_aside(&self) -> Option<(RequestId, Mechanism)> {
        let several = self.goes_by_client();
        let may_begin = |id: RequestId| {
            let another = |client| self.may_begin_another(Class::Reactive, client);
            !several || self.has_begun(id) || self.client_of(id).is_some_and(another)
        };
        let judged = |id: RequestId| {
            let entry = self.ledger.get(id)?;
            match self.judged(Proposal::Aside { entry }) {
                (Verdict::Go, Some(mechanism)) if may_begin(id) => Some((id, mechanism)),
                _ => None,
            }
        };
        let mut waiting = self.queue_by_turn(Class::Reactive).into_iter();
        waiting.find_map(judged)
    }

    /// Whether a reactive prompt has chunks for the NPU.
    fn has_chunks(&self, id: RequestId) -> bool {
        let entry = self.ledger.get(id);
        entry.is_some_and(|entry| {
            let chunks = entry.prefill().map_or(0, |prefill| prefill.chunks());
            entry.class() == Class::Reactive && chunks > 0
        })
    }

    /// Notes the turn of the proactive prompt that is first in its class; with several clients, of each client's
    /// first.
    pub(super) fn note_turn(&mut self) {
        if self.ledger.clients().are_several() {
            for id in self.heads(Class::Proactive) {
                if let Some(entry) = self.ledger.get_mut(id) {
                    entry.own.note_turn(self.now);
                }
            }
            return;
        }
        let front = || self.prefills.queue(Class::Proactive).front().copied();
        let next = self.prefills.buffered().first().copied().or_else(front);
        if let Some(entry) = next.and_then(|id| self.ledger.get_mut(id)) {
            entry.own.note_turn(self.now);
        }
    }

    /// Whether the prompt of a request is to have the iGPU beside a reactive one.
    fn presses(&self, id: RequestId) -> bool {
        let entry = self.ledger.get(id);
        entry.is_some_and(|entry| self.goes(Proposal::Promotion { entry }))
    }

    /// Returns the overdue request that gets the iGPU: one that fills bubbles, or the next of its queue.
    pub(super) fn promote(&mut self, actions: &mut Actions) -> Option<RequestId> {
        let backfill = self.prefills.holder(Slot::Backfill);
        if backfill.is_some_and(|id| self.presses(id)) {
            return self.prefills.take(Slot::Backfill);
        }
        if self.goes_by_client() {
            let next = self.begin_in_turn(Class::Proactive, |it, id| it.presses(id), actions);
            if next.is_some() {
                return next;
            }
        }
        let next = self.admissible(Class::Proactive);
        let next = next.filter(|id| self.presses(*id));
        if let Some(id) = next
            && self.begin(id, actions)
        {
            return next;
        }
        // It has not waited long enough, or finds no room; a preempted one needs no room, and may have waited enough.
        let mut queue = self.prefills.queue(Class::Proactive).iter().copied();
        let preempted = queue.find(|id| self.presses(*id) && self.has_begun(*id))?;
        self.begin(preempted, actions).then_some(preempted)
    }

    /// Begins the waiting proactive request with the most work per energy, if there is room for it, else the
    /// next one in its queue (v1 6.3).
    ///
    /// All candidates would run on the NPU, at the same power, and a kernel's FLOP grow with its tokens: so
    /// tokens per time give the same ranking as TFLOPS/W. A remainder costs a whole chunk there, and comes
    /// last.
    pub(super) fn start_backfill(&mut self, actions: &mut Actions) -> Option<RequestId> {
        if self.ledger.clients().are_several() {
            return self.start_next(Class::Proactive, actions);
        }
        let next = self.admissible(Class::Proactive)?;
        let free = self.prefills.buffered().is_empty();
        let overdue = self
            .ledger
            .get(next)
            .is_some_and(|entry| entry.own.is_overdue());
        if free && !overdue {
            let queue = self.prefills.queue(Class::Proactive).iter().copied();
            // Of equal ones, the one that would come next anyway, then the earliest.
            let ranked = std::iter::once(next).chain(queue).rev();
            let rate = |id: &RequestId| self.npu_tokens_per_us(*id).unwrap_or(0.0);
            let best = ranked.max_by(|a, b| rate(a).total_cmp(&rate(b)));
            if let Some(id) = best.filter(|id| *id != next)
                && self.begin(id, actions)
            {
                return Some(id);
            }
        }
        self.start_next(Class::Proactive, actions)
    }

    /// Tokens per µs of a request's next token-wise kernel on the NPU.
    fn npu_tokens_per_us(&self, id: RequestId) -> Option<f64> {
        let entry = self.ledger.get(id)?;
        let (tokens, kernel) = match entry.prefill() {
            Some(prefill) => {
                let mut ready = prefill.ready();
                let step = ready.find(|step| step.kernel != LayerKernel::Mha)?;
                (step.segment.tokens, step.kernel)
            }
            None => {
                let chunk = self.model.chunk_tokens;
                (entry.prompt_tokens.min(chunk), LayerKernel::Qkv)
            }
        };
        let call = Call::Prefill {
            kernel,
            tokens,
            context: tokens,
        };
        let cost = self.costs.cost(Lane::Npu, call)?;
        Some(f64::from(tokens) / cost.latency_us)
    }
}
