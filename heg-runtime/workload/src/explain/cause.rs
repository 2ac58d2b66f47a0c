//! The causes on which a request's time is spent.

use heg_sched::{HoldReason, Lane, Mechanism, RequestId};

/// A cause on which a request's time was spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SlowCause {
    /// Kernels of its own prompt.
    OwnPrompt,
    /// Decode iterations with it.
    OwnAnswer,
    /// The prompt of another request, which went first.
    Prompt(RequestId),
    /// The prompt of another request, which preempted its own.
    Preempted(RequestId),
    /// Kernels of another request on a lane that it needed.
    Kernel(RequestId, Lane),
    /// Decode iterations of others on a lane that it needed.
    Iterations(Lane),
    /// Another request, which had waited for too long (`ageing`).
    Overdue(RequestId),
    /// Requests of another client, whose turn it was.
    Turn,
    /// Room in the KV cache.
    Memory,
    /// The write of idle flows' caches to flash.
    FlashWrite,
    /// The read of its flow's cache from flash.
    FlashRead,
    /// The read of its prompt's beginning from kept state.
    KeptRead,
    /// A full decode batch.
    BatchFull,
    /// The decode iteration that began without it.
    NextIteration,
    /// Answers, which went before its prompt.
    Answers,
    /// A rule of the policy that held its work back.
    Rule(Mechanism),
    /// A kernel of a request that hung on a lane.
    Hung(RequestId, Lane),
    /// A kernel of a request that failed on a lane.
    Failed(RequestId, Lane),
    /// A lane that was told to stop hung work of the request.
    Stopping,
    /// A lane that was being reset.
    Reset(Lane),
    /// The absence of a lane with its kernels.
    NoLane,
    /// Kernels on another lane, because their own was lost.
    WithoutLane(Lane),
    /// Attention on another lane while the NPU's kernel was being compiled.
    WarmUp,
    /// Requests that ran alone after a failure.
    Trial,
    /// An earlier call of its flow.
    Flow,
    /// Work that was repeated after a restart.
    StartedOver,
    /// The time that its kernels took longer beside those of another lane.
    Contention(Lane),
    /// The time that its kernels took longer on a lane than they usually do, with nothing beside them.
    Device(Lane),
    /// Time between kernels, for which the trace has no reason.
    Between,
}

impl SlowCause {
    /// Returns the cause for a hold reason, if it is the same whatever else runs.
    pub(super) fn of(why: HoldReason) -> Self {
        match why {
            HoldReason::Prompt(of) => Self::Prompt(of),
            HoldReason::Preempted(of) => Self::Preempted(of),
            HoldReason::Overdue(of) => Self::Overdue(of),
            HoldReason::Lane(lane) => Self::Iterations(lane),
            HoldReason::Turn => Self::Turn,
            HoldReason::Memory => Self::Memory,
            HoldReason::Flash => Self::FlashWrite,
            HoldReason::BatchFull => Self::BatchFull,
            HoldReason::Iteration => Self::NextIteration,
            HoldReason::Answers => Self::Answers,
            HoldReason::Rule(mechanism) => Self::Rule(mechanism),
            HoldReason::Stopping => Self::Stopping,
            HoldReason::Reset(lane) => Self::Reset(lane),
            HoldReason::NoLane => Self::NoLane,
            HoldReason::Trial => Self::Trial,
            HoldReason::Flow => Self::Flow,
        }
    }

    /// Returns whether the cause also explains the wait of requests behind the one that it held up. The ordinary stages
    /// of a prompt do not: others waited for the prompt.
    pub(super) fn holds_up_others(self) -> bool {
        match self {
            Self::OwnPrompt | Self::OwnAnswer | Self::Kernel(..) | Self::Iterations(_) => false,
            Self::NextIteration | Self::BatchFull => false,
            Self::WithoutLane(_) | Self::WarmUp | Self::StartedOver | Self::FlashRead => false,
            Self::KeptRead => false,
            Self::Between => false,
            Self::Prompt(_) | Self::Preempted(_) | Self::Overdue(_) => true,
            Self::Turn | Self::Memory => true,
            Self::FlashWrite | Self::Answers => true,
            Self::Rule(mechanism) => mechanism.holds_up_others(),
            Self::Hung(..) | Self::Failed(..) | Self::Stopping => true,
            Self::Reset(_) | Self::NoLane | Self::Trial | Self::Flow => true,
            Self::Contention(_) | Self::Device(_) => true,
        }
    }

    /// Returns the cause's name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OwnPrompt => "own prompt",
            Self::OwnAnswer => "own answer",
            Self::Prompt(_) => "prompt",
            Self::Preempted(_) => "preempted",
            Self::Kernel(..) => "kernel",
            Self::Iterations(_) => "iterations",
            Self::Overdue(_) => "overdue",
            Self::Turn => "turn",
            Self::Memory => "memory",
            Self::FlashWrite => "flash write",
            Self::FlashRead => "flash read",
            Self::KeptRead => "kept read",
            Self::BatchFull => "full batch",
            Self::NextIteration => "next iteration",
            Self::Answers => "answers",
            Self::Rule(mechanism) => mechanism.word().unwrap_or("rule"),
            Self::Hung(..) => "hung kernel",
            Self::Failed(..) => "failed kernel",
            Self::Stopping => "stopping",
            Self::Reset(_) => "reset",
            Self::NoLane => "no lane",
            Self::WithoutLane(_) => "lost lane",
            Self::WarmUp => "warm-up",
            Self::Trial => "trial",
            Self::Flow => "flow",
            Self::StartedOver => "started over",
            Self::Contention(_) => "contention",
            Self::Device(_) => "device",
            Self::Between => "between kernels",
        }
    }

    /// Returns the request that the cause names, if any.
    pub fn request(self) -> Option<RequestId> {
        match self {
            Self::Prompt(of) | Self::Preempted(of) | Self::Overdue(of) => Some(of),
            Self::Kernel(of, _) | Self::Hung(of, _) | Self::Failed(of, _) => Some(of),
            _ => None,
        }
    }

    /// Returns the lane that the cause names, if any.
    pub fn lane(self) -> Option<Lane> {
        match self {
            Self::Kernel(_, lane) | Self::Hung(_, lane) | Self::Failed(_, lane) => Some(lane),
            Self::Iterations(lane) | Self::Reset(lane) | Self::WithoutLane(lane) => Some(lane),
            Self::Contention(lane) | Self::Device(lane) => Some(lane),
            _ => None,
        }
    }
}
