//! Which proactive prompt fills bubbles of the NPU beside a reactive one (v1 6.3).

use super::AgentXpu;
use crate::costs::{Call, Costs};
use crate::event::{Actions, Kernel};
use crate::request::{Class, Lane, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// The waiting proactive request that does most for its energy, if there is room for it, else the next one
    /// that goes on (v1 6.3).
    ///
    /// All candidates would run on the NPU, at the same power, and a kernel's FLOP grow with its tokens: so
    /// TFLOPS/W ranks them as tokens per time does. A remainder costs a whole chunk there, and comes last.
    pub(super) fn start_backfill(&mut self, actions: &mut Actions) -> Option<RequestId> {
        let next = self.admissible(Class::Proactive)?;
        let free = self.prefills.buffered.is_none();
        let overdue = self.ledger.get(next).is_some_and(|entry| entry.own.overdue);
        if free && !overdue {
            let queue = self.prefills.proactive.iter().copied();
            // Of equals the one that would come next anyway, then the earliest.
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
