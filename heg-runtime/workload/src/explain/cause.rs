//! What time of a request is spent on.

use heg_sched::{HoldReason, Lane, RequestId};

/// What time of a request was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SlowCause {
    /// Kernels of its own prompt.
    OwnPrompt,
    /// Decode iterations with it.
    OwnAnswer,
    /// The prompt of another request, which went first.
    Prompt(RequestId),
    /// The prompt of another request, which took the lanes when its own had begun.
    Preempted(RequestId),
    /// Kernels of another request on a lane that was needed.
    Kernel(RequestId, Lane),
    /// Decode iterations of others on a lane that was needed.
    Iterations(Lane),
    /// Another request, which had waited for too long (`ageing`).
    Overdue(RequestId),
    /// Room in the KV cache.
    Memory,
    /// The writing of idle flows' caches to flash.
    FlashWrite,
    /// The reading of its flow's cache from flash.
    FlashRead,
    /// A full decode batch.
    BatchFull,
    /// A batch whose reactive answers it would have slowed down.
    Company,
    /// The decode iteration that began without it.
    NextIteration,
    /// Answers, which went before its prompt.
    Answers,
    /// More urgent work that the bandwidth belongs to.
    Bandwidth,
    /// A bubble to fit into.
    Bubble,
    /// Memory pressure.
    Pressure,
    /// Chunks of its own prompt, before its remainder.
    Remainder,
    /// A kernel of a request that hung on a lane.
    Hung(RequestId, Lane),
    /// A kernel of a request that failed on a lane.
    Failed(RequestId, Lane),
    /// The iGPU's rest for graphics.
    Graphics,
    /// The power budget.
    Power,
    /// A lane that was to stop what had hung of it.
    Stopping,
    /// A lane that was being reset.
    Reset(Lane),
    /// The lack of a lane with its kernels.
    NoLane,
    /// Kernels on another lane than that which was lost.
    WithoutLane(Lane),
    /// Attention on another lane while the NPU's kernel was being compiled.
    WarmUp,
    /// Requests that ran alone after a failure.
    Trial,
    /// An earlier call of its flow.
    Flow,
    /// Work that was done again, since it had started over.
    StartedOver,
    /// Nothing that the trace tells: time between kernels.
    Between,
}

impl SlowCause {
    /// The cause behind what a request waited for, where that is the same whatever else runs.
    pub(super) fn of(why: HoldReason) -> Self {
        match why {
            HoldReason::Prompt(of) => Self::Prompt(of),
            HoldReason::Preempted(of) => Self::Preempted(of),
            HoldReason::Overdue(of) => Self::Overdue(of),
            HoldReason::Lane(lane) => Self::Iterations(lane),
            HoldReason::Memory => Self::Memory,
            HoldReason::Flash => Self::FlashWrite,
            HoldReason::BatchFull => Self::BatchFull,
            HoldReason::Company => Self::Company,
            HoldReason::Iteration => Self::NextIteration,
            HoldReason::Answers => Self::Answers,
            HoldReason::Bandwidth => Self::Bandwidth,
            HoldReason::Bubble => Self::Bubble,
            HoldReason::Pressure => Self::Pressure,
            HoldReason::Remainder => Self::Remainder,
            HoldReason::Graphics => Self::Graphics,
            HoldReason::Power => Self::Power,
            HoldReason::Stopping => Self::Stopping,
            HoldReason::Reset(lane) => Self::Reset(lane),
            HoldReason::NoLane => Self::NoLane,
            HoldReason::Trial => Self::Trial,
            HoldReason::Flow => Self::Flow,
        }
    }

    /// Whether it also explains the wait of those behind a request that it held up. What any prompt goes through does
    /// not: they waited for the prompt.
    pub(super) fn holds_up_others(self) -> bool {
        match self {
            Self::OwnPrompt | Self::OwnAnswer | Self::Kernel(..) | Self::Iterations(_) => false,
            Self::NextIteration | Self::BatchFull | Self::Company | Self::Remainder => false,
            Self::WithoutLane(_) | Self::WarmUp | Self::StartedOver | Self::FlashRead => false,
            Self::Between => false,
            Self::Prompt(_) | Self::Preempted(_) | Self::Overdue(_) | Self::Memory => true,
            Self::FlashWrite | Self::Answers | Self::Bandwidth | Self::Bubble => true,
            Self::Pressure | Self::Graphics | Self::Power => true,
            Self::Hung(..) | Self::Failed(..) | Self::Stopping => true,
            Self::Reset(_) | Self::NoLane | Self::Trial | Self::Flow => true,
        }
    }

    /// Its name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OwnPrompt => "own prompt",
            Self::OwnAnswer => "own answer",
            Self::Prompt(_) => "prompt",
            Self::Preempted(_) => "preempted",
            Self::Kernel(..) => "kernel",
            Self::Iterations(_) => "iterations",
            Self::Overdue(_) => "overdue",
            Self::Memory => "memory",
            Self::FlashWrite => "flash write",
            Self::FlashRead => "flash read",
            Self::BatchFull => "full batch",
            Self::Company => "company",
            Self::NextIteration => "next iteration",
            Self::Answers => "answers",
            Self::Bandwidth => "bandwidth",
            Self::Bubble => "bubble",
            Self::Pressure => "pressure",
            Self::Remainder => "remainder",
            Self::Hung(..) => "hung kernel",
            Self::Failed(..) => "failed kernel",
            Self::Graphics => "graphics",
            Self::Power => "power",
            Self::Stopping => "stopping",
            Self::Reset(_) => "reset",
            Self::NoLane => "no lane",
            Self::WithoutLane(_) => "lost lane",
            Self::WarmUp => "warm-up",
            Self::Trial => "trial",
            Self::Flow => "flow",
            Self::StartedOver => "started over",
            Self::Between => "between kernels",
        }
    }

    /// The request that it names.
    pub fn request(self) -> Option<RequestId> {
        match self {
            Self::Prompt(of) | Self::Preempted(of) | Self::Overdue(of) => Some(of),
            Self::Kernel(of, _) | Self::Hung(of, _) | Self::Failed(of, _) => Some(of),
            _ => None,
        }
    }

    /// The lane that it names.
    pub fn lane(self) -> Option<Lane> {
        match self {
            Self::Kernel(_, lane) | Self::Hung(_, lane) | Self::Failed(_, lane) => Some(lane),
            Self::Iterations(lane) | Self::Reset(lane) | Self::WithoutLane(lane) => Some(lane),
            _ => None,
        }
    }
}
