//! Of a memory-bound kernel on the NPU and decoding on the iGPU, the side of lower priority waits (§4.3).
//!
//! What makes a kernel memory-bound is what it wants beside the other side: alone either device gets less than all of
//! the bandwidth, and together they may want more than there is. Token-wise kernels are not: chunks are as long as it
//! takes to be bound by compute (4.2), and loading their weights beside decoding costs either side little.

use super::{AgentXpu, Costs, Gate, Proposal};
use crate::agent_xpu::stage::Entry;
use crate::costs::{Call, Cost};
use crate::event::{Kernel, Work};
use crate::mechanism::Mechanism;
use crate::request::{Class, Lane};

/// Rows of context of the layer that stands for decoding: its weights decide what it draws. Chosen.
const DECODE_CONTEXT: u32 = 256;

#[derive(Debug, Default)]
pub(super) struct Bandwidth;

impl<C: Costs> Gate<C> for Bandwidth {
    fn holds_back(&self, scheduler: &AgentXpu<C>, proposal: Proposal<'_>) -> bool {
        match proposal {
            Proposal::Prompt {
                entry,
                lane,
                cost,
                step,
            } => {
                let token_wise = step.is_some_and(|(_, step)| step.kernel != Kernel::Mha);
                lane == Lane::Npu && !token_wise && scheduler.must_wait_for_decode(entry, cost)
            }
            Proposal::Iteration { class, lane, cost } => {
                lane != Lane::Npu && scheduler.must_wait_for_npu(class, cost)
            }
            Proposal::Token { .. } => false,
        }
    }
}

impl<C: Costs> AgentXpu<C> {
    /// Whether a kernel on the NPU is memory-bound beside decoding, and requests of a more urgent class decode.
    pub(in crate::agent_xpu) fn must_wait_for_decode(&self, entry: &Entry, cost: Cost) -> bool {
        let more_urgent = || {
            let decoding = self.decoding_class();
            decoding.is_some_and(|decoding| decoding < entry.class())
        };
        let waits = self.policy.prefill.joint_bandwidth_max.is_some()
            && !entry.own.overdue
            && more_urgent()
            && self.exceeds_bandwidth(cost.bandwidth + self.decode_bandwidth());
        if waits {
            self.tally.note(Mechanism::BandwidthDeferral);
        }
        waits
    }

    /// Whether a kernel of a more urgent class runs on the NPU, memory-bound beside decoding.
    fn must_wait_for_npu(&self, class: Class, cost: Cost) -> bool {
        let running = self.lanes.running(Lane::Npu);
        let waits = running.is_some_and(|running| {
            let token_wise = matches!(
                running.work,
                Work::Prefill {
                    kernel: Kernel::Qkv | Kernel::Ffn,
                    ..
                }
            );
            let urgent = running.class < class && !token_wise;
            urgent && self.exceeds_bandwidth(running.cost.bandwidth + cost.bandwidth)
        });
        if waits {
            self.tally.note(Mechanism::BandwidthDeferral);
        }
        waits
    }

    /// Whether two kernels that want so much together slow each other down.
    fn exceeds_bandwidth(&self, joint: f64) -> bool {
        let most = self.policy.prefill.joint_bandwidth_max;
        most.is_some_and(|most| joint > most)
    }

    /// What decoding draws on its lane.
    fn decode_bandwidth(&self) -> f64 {
        let layer = Call::Layer {
            rows: 1,
            context: DECODE_CONTEXT,
            fused: false,
        };
        let cost = self
            .dynamic_lane()
            .and_then(|lane| self.costs.cost(lane, layer));
        cost.map_or(0.0, |cost| cost.bandwidth)
    }
}
