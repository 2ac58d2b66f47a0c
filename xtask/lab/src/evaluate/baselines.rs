//! Baselines in addition to the paper's, to find how much of the difference is due to how those cut prompts.

use heg_spec::Policy;
use heg_spec::policy::{DecodePolicy, NpuAttention, PrefillPolicy, Resume, SchedulerKind};

/// The iGPU serves everything, and an iteration takes a whole prompt, as continuous batching did before split-fuse.
pub(crate) const WHOLE_PROMPTS: &str = "igpu-whole-prompts";

/// Prompts are split over NPU and iGPU in the best ratio, whatever else is running, and no request has priority.
pub(crate) const STATIC_SPLIT: &str = "npu-igpu-static-split";

/// Both baselines, derived from the policy of the iGPU baseline.
pub(crate) fn further(igpu: &Policy) -> [Policy; 2] {
    let mut whole = igpu.clone();
    whole.name = WHOLE_PROMPTS.to_owned();
    whole.limits.tokens_per_iteration = u32::MAX;
    let split = Policy {
        name: STATIC_SPLIT.to_owned(),
        scheduler: SchedulerKind::AgentXpu,
        prefill: PrefillPolicy {
            elastic: true,
            split_beside_proactive_ms: Some(u32::MAX),
            balance: true,
            attention: NpuAttention::Off,
            resume: Resume::Arrival,
            ..PrefillPolicy::default()
        },
        decode: DecodePolicy {
            prefill_first: true,
            fused_layer: true,
            ..DecodePolicy::default()
        },
        ageing: None,
        pressure: None,
        ..igpu.clone()
    };
    [whole, split]
}
