//! Estimates the time that prompts still need.

use super::AgentXpu;
use super::stage::Entry;
use crate::costs::{Call, Costs};
use crate::event::{LayerKernel, Segment};
use crate::prefill::Prefill;
use crate::request::{Class, Lane, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// Estimated time that a prompt still needs, alone on its lanes, in µs (v1 6.2).
    pub(super) fn time_to_completion(&self, id: RequestId) -> f64 {
        let entry = self.ledger.get(id);
        entry.map_or(f64::INFINITY, |entry| self.left_us(entry))
    }

    /// Estimated time that the prompt of a ledger entry still needs, in µs; tokens that its flow has cached are not
    /// computed again.
    pub(super) fn left_us(&self, entry: &Entry) -> f64 {
        if let Some(prefill) = entry.prefill() {
            return self.remaining_us(prefill);
        }
        let shared = entry.submission.known_tokens();
        let reused = shared.min(entry.prompt_tokens.saturating_sub(1));
        let (layers, chunk) = (self.model.layers, self.chunk_tokens(entry.class()));
        let fresh = Prefill::new(layers, reused, entry.prompt_tokens, chunk);
        self.remaining_us(&fresh.wanting(entry.submission.prompt_logits))
    }

    /// Estimated time of the remaining kernels of a prompt, alone on its lanes, in µs.
    fn remaining_us(&self, prefill: &Prefill) -> f64 {
        let dynamic = self.dynamic_lane().unwrap_or(Lane::Igpu);
        let token_wise = match self.lanes.is_present(Lane::Npu) {
            true => Lane::Npu,
            false => dynamic,
        };
        let latency = |(segment, kernel, count): (Segment, _, u32)| {
            let call = Call::Prefill {
                kernel,
                tokens: segment.tokens,
                context: segment.context(),
            };
            let lane = match kernel {
                LayerKernel::Mha => dynamic,
                LayerKernel::Qkv | LayerKernel::Ffn => token_wise,
            };
            let cost = self.costs.cost(lane, call);
            f64::from(count) * cost.map_or(0.0, |cost| cost.latency_us)
        };
        prefill.remaining().map(latency).sum()
    }

    /// Tokens of a full chunk of a prompt of a class.
    pub(super) fn chunk_tokens(&self, class: Class) -> u32 {
        let chunk = self.model.chunk_tokens;
        match (class, self.policy.prefill.proactive_chunk_tokens) {
            (Class::Proactive, Some(most)) => chunk.min(most),
            _ => chunk,
        }
    }
}
