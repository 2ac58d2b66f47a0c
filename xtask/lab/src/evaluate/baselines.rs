//! Baselines beside those of the paper: what of the difference is owed to how these cut prompts?

use heg_spec::Policy;
use heg_spec::policy::{DecodePolicy, NpuAttention, PrefillPolicy, Resume, SchedulerKind};

/// The iGPU serves all, and an iteration takes a whole prompt: as continuous batching was before split-fuse.
pub(crate) const WHOLE_PROMPTS: &str = "igpu-whole-prompts";

/// Prompts are split over NPU and iGPU in the best ratio, whatever else goes on, and nobody is preferred.
pub(crate) const STATIC_SPLIT: &str = "npu-igpu-static-split";

/// Both, from the policy of the iGPU baseline.
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
