//! What requests wait for. A scheduler says so when it is asked, for whoever explains why a request was slow; it decides
//! nothing by it.

use super::request::{Lane, RequestId};

/// A live request of which nothing runs, and what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The request.
    pub request: RequestId,
    /// What it waits for.
    pub why: HoldReason,
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HoldReason {
    /// The prompt of another request, which is under way or comes first in the queue.
    Prompt(RequestId),
    /// The prompt of another request, which took the lanes when its own had begun.
    Preempted(RequestId),
    /// The lane of its next kernel, which runs something else.
    Lane(Lane),
    /// The lane of its next kernel, which an overdue request has (`ageing`).
    Overdue(RequestId),
    /// Room in the KV cache.
    Memory,
    /// Room in the KV cache that idle flows have until they are on flash.
    Flash,
    /// A place in the decode batch, which is full (`decode.batch_max`, `decode.reactive_batch_max`).
    BatchFull,
    /// A place in the decode batch, whose reactive answers it would slow down (`decode.reactive_slowdown_max`).
    Company,
    /// The decode iteration under way, which began without it.
    Iteration,
    /// Answers, which go before its prompt.
    Answers,
    /// More urgent work that the bandwidth belongs to (`prefill.joint_bandwidth_max`).
    Bandwidth,
    /// A bubble that its kernel fits into (`pressure.duration_bound`).
    Bubble,
    /// Less memory pressure (`pressure`).
    Pressure,
    /// The chunks of its own prompt, with which its remainder is to end (`prefill.defer_remainder`).
    Remainder,
    /// The iGPU's rest for graphics (`limits.igpu_percent_max`).
    Graphics,
    /// The power budget (`limits.power_watts_max`).
    Power,
    /// A lane that is to stop what it ran of the request.
    Stopping,
    /// The lane of its next kernel, which is being reset.
    Reset(Lane),
    /// A lane that has its kernels: there is none.
    NoLane,
    /// Requests that run alone to find out whose launches fail.
    Trial,
    /// An earlier call of its flow; the engine says this of requests that the scheduler does not have yet.
    Flow,
}
