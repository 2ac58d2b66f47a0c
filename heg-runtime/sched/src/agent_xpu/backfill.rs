//! Chooses the proactive prompt that fills bubbles of the NPU beside a reactive one (v1 6.3).

use super::AgentXpu;
use crate::costs::{Call, Costs};
use crate::event::{Actions, Kernel};
use crate::request::{Class, Lane, RequestId};

impl<C: Costs> AgentXpu<C> {
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
                let step = ready.find(|step| step.kernel != Kernel::Mha)?;
                (step.segment.tokens, step.kernel)
            }
            None => {
                let chunk = self.model.chunk_tokens;
                (entry.prompt_tokens.min(chunk), Kernel::Qkv)
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
