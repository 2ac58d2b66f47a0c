//! Of a memory-bound kernel on the NPU and decoding on the iGPU, the side of lower priority waits (§4.3).

use super::{AgentXpu, Costs, Gate, Proposal};
use crate::agent_xpu::stage::Entry;
use crate::costs::Cost;
use crate::request::{Class, Lane};

#[derive(Debug, Default)]
pub(super) struct Bandwidth;

impl<C: Costs> Gate<C> for Bandwidth {
    fn holds_back(&self, scheduler: &AgentXpu<C>, proposal: Proposal<'_>) -> bool {
        match proposal {
            Proposal::Prompt {
                entry, lane, cost, ..
            } => lane == Lane::Npu && scheduler.must_wait_for_decode(entry, cost),
            Proposal::Iteration { class, cost } => scheduler.must_wait_for_npu(class, cost),
            Proposal::Token { .. } => false,
        }
    }
}

impl<C: Costs> AgentXpu<C> {
    /// Whether a kernel on the NPU is memory-bound and requests of a more urgent class decode.
    pub(in crate::agent_xpu) fn must_wait_for_decode(&self, entry: &Entry, cost: Cost) -> bool {
        self.is_memory_bound(cost)
            && !entry.own.overdue
            && self
                .decoding_class()
                .is_some_and(|decoding| decoding < entry.class())
    }

    /// Whether a memory-bound kernel of a more urgent class runs on the NPU.
    fn must_wait_for_npu(&self, class: Class, cost: Cost) -> bool {
        let running = self.lanes.running(Lane::Npu);
        self.is_memory_bound(cost)
            && running.is_some_and(|r| r.class < class && self.is_memory_bound(r.cost))
    }

    /// Whether a kernel draws enough bandwidth to slow down decoding beside it.
    fn is_memory_bound(&self, cost: Cost) -> bool {
        let share = self.policy.prefill.defer_memory_bound;
        share.is_some_and(|share| cost.bandwidth > share)
    }
}
