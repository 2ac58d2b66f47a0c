//! Reasons why requests wait. A scheduler reports them when asked, to explain why a request was slow; they decide
//! nothing.

use super::mechanism::Mechanism;
use super::request::{Lane, RequestId};

/// A live request that has nothing running, and the reason why it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The request.
    pub request: RequestId,
    /// The reason why it waits.
    pub why: HoldReason,
}

/// A reason why a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HoldReason {
    /// The prompt of another request, which is in progress or comes first in the queue.
    Prompt(RequestId),
    /// The prompt of another request, which took the lanes after this request's prompt had begun.
    Preempted(RequestId),
    /// Its client's turn: another client's requests of the same rank come first.
    Turn,
    /// The lane of its next kernel, which runs other work.
    Lane(Lane),
    /// The lane of its next kernel, which an overdue request has (`ageing`).
    Overdue(RequestId),
    /// Room in the KV cache.
    Memory,
    /// Room in the KV cache that idle flows occupy until they are on flash.
    Flash,
    /// A place in the decode batch, which is full (`decode.batch_max`, `decode.reactive_batch_max`).
    BatchFull,
    /// The decode iteration in progress, which began without it.
    Iteration,
    /// Answers, which go before its prompt.
    Answers,
    /// A rule of the policy that holds its work back.
    Rule(Mechanism),
    /// A lane that is to stop its work on the request.
    Stopping,
    /// The lane of its next kernel, which is being reset.
    Reset(Lane),
    /// A lane that has its kernels: there is none.
    NoLane,
    /// Requests that run alone to find out whose launches fail.
    Trial,
    /// An earlier call of its flow; the engine reports this for requests that the scheduler does not have yet.
    Flow,
}
