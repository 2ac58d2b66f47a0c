//! Alternative assumptions, to see how far the evaluation's figures depend on its own.

use heg_sched::Lane;
use heg_sim::{Contender, Platform};
use heg_workload::{AnswerLengths, TraceSpec};

/// A set of assumptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Assumption {
    /// The SoC file's figures, and the workloads' own lengths.
    Own,
    /// Attention on the iGPU is as slow as the paper measured it.
    SlowAttention,
    /// Devices compete for memory as little as possible.
    LeastContention,
    /// Devices compete for memory as much as possible.
    MostContention,
    /// Answers are long-tailed, and prompts are cut instead of dropped.
    LongAnswers,
    /// A decode layer of one row is a single kernel, as GPU programs record it.
    FusedLayer,
}

/// Attention over 2048 tokens of the 8B model takes 97 ms (v2 4.4): 4 · 32 · 128 · 2048² FLOP.
const ATTENTION_FLOPS_PER_SEC: f64 = 0.71e12;

/// Longest answer of [`Assumption::LongAnswers`], in tokens: the paper's outliers (v2 6.1).
const LONGEST_ANSWER: u32 = 1600;

impl Assumption {
    /// All except the evaluation's own.
    pub(crate) const OTHERS: [Self; 5] = [
        Self::SlowAttention,
        Self::LeastContention,
        Self::MostContention,
        Self::LongAnswers,
        Self::FusedLayer,
    ];

    /// Name in tables and records; `None` for the evaluation's own.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::Own => None,
            Self::SlowAttention => Some("iGPU attention at 0.71 TFLOP/s"),
            Self::LeastContention => Some("least contention"),
            Self::MostContention => Some("most contention"),
            Self::LongAnswers => Some("long answers"),
            Self::FusedLayer => Some("fused layer"),
        }
    }

    /// The meaning, in a sentence.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Own => "the SoC file's anchors, answers as long as the references",
            Self::SlowAttention => "attention over 2048 tokens takes 97 ms (v2 4.4), not 27",
            Self::LeastContention => "both devices together draw the whole bandwidth",
            Self::MostContention => "both together draw no more than the iGPU alone",
            Self::LongAnswers => {
                "lognormal answers of 214.5 tokens in the mean, at most 1,600; long prompts are cut"
            }
            Self::FusedLayer => {
                "a decode layer of one row is one launch, as GPU programs record it; blobs and OpenVINO have three"
            }
        }
    }

    /// The platform under this assumption.
    pub(crate) fn platform(self, platform: &Platform) -> Platform {
        let mut platform = platform.clone();
        let memory = &mut platform.machine.memory;
        match self {
            Self::Own | Self::LongAnswers | Self::FusedLayer => {}
            Self::SlowAttention => {
                let costs = platform.costs;
                platform.costs = costs.with_attention(Lane::Igpu, ATTENTION_FLOPS_PER_SEC);
            }
            Self::LeastContention => memory.shared = 1.0,
            Self::MostContention => memory.shared = memory.lanes[Lane::Igpu as usize],
        }
        platform
    }

    /// The trace settings under this assumption.
    pub(crate) fn spec(self, spec: TraceSpec) -> TraceSpec {
        match self {
            Self::LongAnswers => TraceSpec {
                answers: AnswerLengths::LongTailed,
                output_tokens_max: LONGEST_ANSWER,
                context_tokens: spec.context_tokens + LONGEST_ANSWER,
                ..spec
            },
            _ => spec,
        }
    }

    /// The policy under this assumption. A layer is three kernels, as in a bundle, unless the assumption is another.
    pub(crate) fn policy(self, whole: &Contender) -> Contender {
        let mut whole = whole.clone();
        whole.policy.decode.fused_layer &= self == Self::FusedLayer;
        whole
    }
}
