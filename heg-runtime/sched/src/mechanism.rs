//! The mechanisms of a policy, and how often each of them acted: what never acts has no reason to be there.

use std::cell::Cell;

use heg_spec::Policy;
use heg_spec::policy::{AgeingStart, NpuAttention, Resume, SchedulerKind};

/// A mechanism of Agent.xpu's scheduler. Sections are those of v2 unless they say v1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mechanism {
    /// A reactive prompt took the lanes from a proactive one (4.4).
    Preemption,
    /// A shorter reactive prompt passed a longer one.
    ShortPromptsFirst,
    /// A short reactive prompt ran on the iGPU beside another one on the NPU.
    ShortPromptsAside,
    /// A longer one did, or one while reactive requests decode.
    LongPromptsAside,
    /// The iGPU took a chunk of a reactive prompt (4.3, Algorithm 1).
    Split,
    /// It did while proactive requests decode.
    SplitBesideProactive,
    /// The iGPU took a chunk of a proactive prompt (v1 6.5).
    Balance,
    /// The NPU took the remainder of a proactive prompt.
    NpuRemainders,
    /// A remainder waited for the chunks beside it (4.3).
    RemainderDeferral,
    /// The NPU took attention, with a kernel compiled for it (4.3).
    NpuAttention,
    /// Work gave way since both devices together want more bandwidth than there is (4.3).
    BandwidthDeferral,
    /// A batch beside a reactive request left proactive ones out (4.5).
    ReactiveFirstBatch,
    /// Length decided which ones (4.5).
    LongestLeftOut,
    /// An iteration gave way to a prompt (4.3).
    PrefillFirst,
    /// A layer was one kernel (4.2).
    FusedLayer,
    /// A proactive request became overdue (4.5).
    Ageing,
    /// The prompt of one did not get the iGPU yet, since it had waited for others of its class.
    AgeingFromTurn,
    /// A prompt that takes less time went on before an earlier one (v1 6.2).
    LeastTimeToCompletion,
    /// A proactive prompt filled a bubble (v1 6.3).
    Backfill,
    /// A kernel waited for memory pressure to fall (v1 6.4).
    Pressure,
    /// The iGPU rested for graphics (4.1).
    IgpuShare,
    /// Work waited since both devices together draw too much power (v1 6.2).
    PowerBudget,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::Preemption,
        Self::ShortPromptsFirst,
        Self::ShortPromptsAside,
        Self::LongPromptsAside,
        Self::Split,
        Self::SplitBesideProactive,
        Self::Balance,
        Self::NpuRemainders,
        Self::RemainderDeferral,
        Self::NpuAttention,
        Self::BandwidthDeferral,
        Self::ReactiveFirstBatch,
        Self::LongestLeftOut,
        Self::PrefillFirst,
        Self::FusedLayer,
        Self::Ageing,
        Self::AgeingFromTurn,
        Self::LeastTimeToCompletion,
        Self::Backfill,
        Self::Pressure,
        Self::IgpuShare,
        Self::PowerBudget,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Preemption => "kernel-level preemption (4.4)",
            Self::ShortPromptsFirst => "short reactive prompts first",
            Self::ShortPromptsAside => "short reactive prompts aside",
            Self::LongPromptsAside => "long reactive prompts aside",
            Self::Split => "elastic split of reactive prompts (4.3)",
            Self::SplitBesideProactive => "the same beside proactive decoding",
            Self::Balance => "load balancing of proactive prompts (v1 6.5)",
            Self::NpuRemainders => "proactive remainders on the NPU (4.3)",
            Self::RemainderDeferral => "deferral of the remainder (4.3)",
            Self::NpuAttention => "NPU attention on the fly (4.3)",
            Self::BandwidthDeferral => "deferral of memory-bound kernels (4.3)",
            Self::ReactiveFirstBatch => "reactive-first batches (4.5)",
            Self::LongestLeftOut => "eviction of the longest (4.5)",
            Self::PrefillFirst => "prefill first on the iGPU (4.3)",
            Self::FusedLayer => "fused decode layer (4.2)",
            Self::Ageing => "ageing (4.5)",
            Self::AgeingFromTurn => "ageing of prompts from their turn on",
            Self::LeastTimeToCompletion => "least time to completion first (v1 6.2)",
            Self::Backfill => "bubbles filled (v1 6.3)",
            Self::Pressure => "memory pressure tiers (v1 6.4)",
            Self::IgpuShare => "bounded use of the iGPU (4.1)",
            Self::PowerBudget => "power budget (v1 6.2)",
        }
    }

    /// Whether a policy has it.
    pub fn is_on(self, policy: &Policy) -> bool {
        let (prefill, decode) = (&policy.prefill, &policy.decode);
        let knows_classes = policy.scheduler == SchedulerKind::AgentXpu;
        match self {
            Self::Preemption => knows_classes && prefill.preempt,
            Self::ShortPromptsFirst => knows_classes && prefill.short_prompts_first.is_some(),
            Self::ShortPromptsAside => knows_classes && prefill.short_prompts_aside,
            Self::LongPromptsAside => knows_classes && prefill.long_prompts_aside_ms.is_some(),
            Self::Split => knows_classes && prefill.elastic,
            Self::SplitBesideProactive => {
                Self::Split.is_on(policy) && prefill.split_beside_proactive_ms.is_some()
            }
            Self::Balance => prefill.balance,
            Self::NpuRemainders => prefill.npu_remainder_tokens_min.is_some(),
            Self::RemainderDeferral => prefill.defer_remainder,
            Self::NpuAttention => prefill.attention != NpuAttention::Off,
            Self::BandwidthDeferral => knows_classes && prefill.joint_bandwidth_max.is_some(),
            Self::ReactiveFirstBatch => knows_classes && decode.reactive_batch_max.is_some(),
            Self::LongestLeftOut => decode.evict_longest,
            Self::PrefillFirst => decode.prefill_first,
            Self::FusedLayer => decode.fused_layer,
            Self::Ageing => knows_classes && policy.ageing.is_some(),
            Self::AgeingFromTurn => {
                let from = policy.ageing.map(|ageing| ageing.prompts_from);
                knows_classes && from == Some(AgeingStart::Turn)
            }
            Self::LeastTimeToCompletion => prefill.resume == Resume::LeastTimeToCompletion,
            Self::Backfill => policy.pressure.is_some_and(|tiers| tiers.duration_bound),
            Self::Pressure => policy.pressure.is_some(),
            Self::IgpuShare => policy.limits.igpu_percent_max.is_some(),
            Self::PowerBudget => policy.limits.power_watts_max.is_some(),
        }
    }
}

/// How often each mechanism acted, in steps of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActivationCounts([u64; Mechanism::ALL.len()]);

impl ActivationCounts {
    /// Steps in which a mechanism acted.
    pub fn of(&self, mechanism: Mechanism) -> u64 {
        self.0[mechanism as usize]
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.0.iter_mut().zip(other.0) {
            *sum += count;
        }
    }
}

/// Counts activations. Rules say that they act where they are asked, which may be more than once a step, and between two
/// steps where somebody asks what requests wait for.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    /// A bit for each mechanism that acted in this step.
    acted: Cell<u32>,
    counted: ActivationCounts,
}

impl Tally {
    /// A step begins: what rules were asked since the last one was for knowing, not for doing.
    pub(super) fn open_step(&mut self) {
        self.acted.take();
    }

    /// A mechanism acts.
    pub(super) fn note(&self, mechanism: Mechanism) {
        self.acted.set(self.acted.get() | 1 << mechanism as u32);
    }

    /// The step is over.
    pub(super) fn close_step(&mut self) {
        let mut acted = self.acted.take();
        while acted != 0 {
            self.counted.0[acted.trailing_zeros() as usize] += 1;
            acted &= acted - 1;
        }
    }

    pub(super) fn activations(&self) -> ActivationCounts {
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mechanism_counts_once_a_step_and_not_between_steps() {
        let mut tally = Tally::default();
        tally.open_step();
        tally.note(Mechanism::Split);
        tally.note(Mechanism::Split);
        tally.note(Mechanism::IgpuShare);
        tally.close_step();
        // Somebody asks.
        tally.note(Mechanism::Preemption);
        tally.open_step();
        tally.note(Mechanism::Split);
        tally.close_step();
        tally.open_step();
        tally.close_step();
        let mut sum = tally.activations();
        sum.add(&tally.activations());
        let counts = [
            Mechanism::Split,
            Mechanism::IgpuShare,
            Mechanism::Preemption,
        ];
        assert_eq!(counts.map(|it| sum.of(it)), [4, 2, 0]);
    }

    #[test]
    fn mechanisms_stand_in_the_order_of_their_numbers() {
        for (place, mechanism) in Mechanism::ALL.into_iter().enumerate() {
            assert_eq!(mechanism as usize, place);
        }
    }
}
