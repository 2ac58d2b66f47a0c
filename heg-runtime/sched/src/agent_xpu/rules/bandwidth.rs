//! Makes the side of lower priority wait if a memory-bound kernel on the NPU meets decoding on the iGPU (§4.3).
//!
//! A kernel is memory-bound by its demand beside the other side: alone, either device gets less than all of the
//! bandwidth, and together they may want more than there is. Token-wise kernels are not memory-bound: chunks are long
//! enough to be bound by compute (4.2), and loading their weights beside decoding costs either side little.

use super::{
    Card, Class, Cost, Counted, Entry, HoldCard, Lane, Proposal, Question, Rule, RuleCard, Verdict,
    View, is_agent_xpu,
};
use crate::costs::Call;
use crate::event::{LayerKernel, Work};

/// Rows of context of the layer that stands for decoding: its bandwidth is mostly that of its weights. Chosen.
const DECODE_CONTEXT: u32 = 256;

pub(crate) const CARD: Card = Card {
    name: "deferral of memory-bound kernels (4.3)",
    is_on: |policy| is_agent_xpu(policy) && policy.prefill.joint_bandwidth_max.is_some(),
    remove: |policy| policy.prefill.joint_bandwidth_max = None,
    rule: Some(RuleCard {
        about: &[Question::Start],
        counts: Counted::WhenItHolds,
        hold: Some(HoldCard {
            word: "bandwidth",
            explanation: "deferred, since more urgent work needed the bandwidth (prefill.joint_bandwidth_max)",
            holds_up_others: true,
        }),
        rule: |policy| {
            let joint_max = policy.prefill.joint_bandwidth_max?;
            Some(Box::new(Bandwidth { joint_max }))
        },
    }),
};

#[derive(Debug)]
struct Bandwidth {
    /// Share of the bandwidth that both sides may want together.
    joint_max: f64,
}

impl Rule for Bandwidth {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let waits = match proposal {
            Proposal::Prompt {
                entry,
                lane,
                cost,
                step,
            } => {
                let token_wise = step.is_some_and(|(_, step)| step.kernel != LayerKernel::Mha);
                lane == Lane::Npu && !token_wise && self.must_wait_for_decode(view, entry, cost)
            }
            Proposal::Iteration { class, lane, cost } => {
                lane != Lane::Npu && self.must_wait_for_npu(view, class, cost)
            }
            _ => false,
        };
        Verdict::wait_if(waits)
    }

    fn diverts(&self) -> bool {
        true
    }
}

impl Bandwidth {
    /// Whether a kernel on the NPU is memory-bound beside decoding, and requests of a more urgent class decode.
    fn must_wait_for_decode(&self, view: &dyn View, entry: &Entry, cost: Cost) -> bool {
        let more_urgent = || {
            let decoding = view.decoding_class();
            decoding.is_some_and(|decoding| decoding < entry.class())
        };
        !entry.own.is_overdue()
            && more_urgent()
            && cost.bandwidth + decode_bandwidth(view) > self.joint_max
    }

    /// Whether a kernel of a more urgent class runs on the NPU, memory-bound beside decoding.
    fn must_wait_for_npu(&self, view: &dyn View, class: Class, cost: Cost) -> bool {
        view.lanes().running(Lane::Npu).is_some_and(|running| {
            let token_wise = matches!(
                running.work,
                Work::Prefill {
                    kernel: LayerKernel::Qkv | LayerKernel::Ffn,
                    ..
                }
            );
            let urgent = running.class < class && !token_wise;
            urgent && running.cost.bandwidth + cost.bandwidth > self.joint_max
        })
    }
}

/// Share of the bandwidth that decoding draws on its lane.
fn decode_bandwidth(view: &dyn View) -> f64 {
    let layer = Call::Layer {
        rows: 1,
        context: DECODE_CONTEXT,
        fused: false,
    };
    let lane = view.dynamic_lane();
    let cost = lane.and_then(|lane| view.cost(lane, layer));
    cost.map_or(0.0, |cost| cost.bandwidth)
}
