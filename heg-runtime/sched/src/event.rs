//! What a scheduler hears, and what it says.

use std::ops::Range;
use std::sync::Arc;

use super::request::{FlowId, Lane, Micros, RequestId, Submission};

/// Names a launch until its lane reports back; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Names a cache on its way to flash until it is there or could not be written; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Transfer(pub u64);

/// Something happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A request came in.
    Submit(Submission),
    /// Nobody waits for the request any more.
    Cancel(RequestId),
    /// A flow has no further calls: its KV cache may go.
    EndFlow(FlowId),
    /// A lane did what it was told.
    Done {
        /// Which launch.
        ticket: Ticket,
        /// For decoding: layers that ran, counted from the model's first; all of them unless the lane was
        /// asked to yield. 0 otherwise.
        layers: u32,
        /// Requests for which this launch gave their last token.
        ended: Vec<RequestId>,
        /// Requests to which it gave more than one token, or whose next token has a draft.
        given: Vec<Given>,
    },
    /// A launch failed; nothing that it should have written counts.
    Failed(Ticket),
    /// There was no memory for what a launch needs; nothing that it should have written counts.
    OutOfMemory(Ticket),
    /// The memory that [`Action::Reserve`] asked for could not be had: the request has none, and what its flow had
    /// kept is gone. A launch with it that was said since is not carried out, and nothing else answers it. Not said
    /// any more once [`Action::Release`] has given the reservation up.
    Unreserved(RequestId),
    /// A launch did nothing, since what one of its requests reuses could not be read from flash. Nothing in the
    /// memory of that request counts.
    Unreadable {
        /// Which launch.
        ticket: Ticket,
        /// The request whose rows cannot be read.
        request: RequestId,
    },
    /// A cache is on flash, and nobody reads or writes the memory that it had.
    Offloaded(Transfer),
    /// A cache could not be written to flash: if its flow still keeps it, it does so in memory.
    OffloadFailed(Transfer),
    /// A lane is gone, and with it whatever ran on it: nothing of that is written any more. [`Event::Ready`] says
    /// when it is back.
    Lost(Lane),
    /// A lane that was reset is there again, and has stopped what ran on it; or one that was lost is back, without
    /// the kernels that were compiled for it.
    Ready(Lane),
    /// A kernel that was asked for is compiled.
    Warmed(WarmKernel),
    /// A kernel that was asked for cannot be compiled.
    WarmFailed(WarmKernel),
    /// A timer that was asked for; it may come late, but not early.
    Timer,
}

/// Something to do. Actions are carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Run this on a lane, which is free; answered by [`Event::Done`], [`Event::Failed`], [`Event::OutOfMemory`]
    /// or [`Event::Unreadable`].
    Launch {
        /// The lane that runs it.
        lane: Lane,
        /// Its name.
        ticket: Ticket,
        /// The kernel, or kernels, and the rows they run over.
        work: Work,
    },
    /// Stop a decode run after the layer that is running now; it answers as done.
    Yield(Ticket),
    /// Stop whatever runs on the lane, at any cost, and answer [`Event::Ready`] when it may be used again, or
    /// [`Event::Lost`]. Until then the lane may still write to the memory of the requests it worked for: what of
    /// that is released meanwhile is not used for others before the answer.
    Reset(Lane),
    /// Compile a static kernel on the CPU; answered by [`Event::Warmed`] or
    /// [`Event::WarmFailed`]. One at a time.
    Warm(WarmKernel),
    /// A compiled kernel is not needed any more.
    Unload(WarmKernel),
    /// Reserve KV memory for a request: so many tokens, of which the first are the flow's; answered by
    /// [`Event::Unreserved`] if that cannot be done, and by nothing if it can.
    Reserve {
        /// The request that it is reserved for.
        request: RequestId,
        /// Room for the prompt and the longest answer.
        tokens: u32,
        /// Leading tokens that are there already.
        reused: u32,
    },
    /// The KV memory of a request goes; that of a flow goes with [`Action::ReleaseFlow`].
    Release(RequestId),
    /// Leading tokens of a request's KV memory stay with its flow.
    Keep {
        /// The request whose memory it is.
        request: RequestId,
        /// The flow that it stays with.
        flow: FlowId,
        /// How many.
        tokens: u32,
    },
    /// The KV memory that a flow kept goes to flash, from which a call of the flow takes it back; answered once by
    /// [`Event::Offloaded`] or [`Event::OffloadFailed`], also where it was taken back or released meanwhile.
    Offload {
        /// The flow whose memory it is.
        flow: FlowId,
        /// Its name.
        transfer: Transfer,
    },
    /// What a flow kept goes, in memory or on flash.
    ReleaseFlow(FlowId),
    /// Nothing that was computed for the request counts any more; its prefill starts over.
    Restart(RequestId),
    /// The request's next token is there.
    Emit(RequestId),
    /// The request is over. No action names it afterwards.
    Finish(RequestId, Finish),
    /// Call back with [`Event::Timer`] at this time. A later call replaces an earlier one.
    Timer(Micros),
}

/// Actions in order.
pub type Actions = Vec<Action>;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Finish {
    /// With its last token.
    Complete,
    /// Nobody wanted it any more.
    Cancelled,
    /// Its deadline passed.
    Deadline,
    /// A kernel failed, and nothing else could run it.
    Failed,
    /// There was too much to do.
    Shed,
}

/// What a lane runs in one go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// One kernel over a segment of a prompt.
    Prefill {
        /// The request whose prompt it is.
        request: RequestId,
        /// Which part of it.
        segment: Segment,
        /// Which layer.
        layer: u32,
        /// Which kernel of it.
        kernel: Kernel,
    },
    /// The head on a prompt's last row; gives the request's first token.
    Head(RequestId),
    /// Layers of a decode iteration, and after the last one the head: gives a token for each request of the
    /// batch. A lane that is asked to yield stops between two layers.
    Decode(DecodeRun),
    /// A whole iteration of continuous batching: one token for each request of the batch, and parts of
    /// prompts beside them, the last part of a prompt giving the first token.
    Mixed {
        /// Requests that decode.
        batch: Arc<[Decoding]>,
        /// Prompts, by part.
        prompts: Arc<[(RequestId, Segment)]>,
    },
}

impl Work {
    /// Whose work it is.
    pub fn requests(&self) -> Vec<RequestId> {
        match self {
            Self::Prefill { request, .. } | Self::Head(request) => vec![*request],
            Self::Decode(run) => run.batch.iter().map(|member| member.request).collect(),
            Self::Mixed { batch, prompts } => {
                let prompts = prompts.iter().map(|(id, _)| *id);
                let batch = batch.iter().map(|member| member.request);
                batch.chain(prompts).collect()
            }
        }
    }

    /// How a request decodes in it, if it does.
    pub fn decoding(&self, request: RequestId) -> Option<Decoding> {
        let batch = match self {
            Self::Decode(run) => &run.batch,
            Self::Mixed { batch, .. } => batch,
            Self::Prefill { .. } | Self::Head(_) => return None,
        };
        let mut members = batch.iter().copied();
        members.find(|member| member.request == request)
    }

    /// Whether it is a request's, among others.
    pub fn is_of(&self, request: RequestId) -> bool {
        match self {
            Self::Prefill { request: id, .. } | Self::Head(id) => *id == request,
            Self::Decode(run) => run.batch.iter().any(|member| member.request == request),
            Self::Mixed { batch, prompts } => {
                batch.iter().any(|member| member.request == request)
                    || prompts.iter().any(|(id, _)| *id == request)
            }
        }
    }
}

/// A request in a decode iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoding {
    /// The request.
    pub request: RequestId,
    /// Tokens in its cache, the last of its answer included, which is fed now.
    pub context: u32,
    /// Leading tokens of its draft that are fed behind that one, to be verified.
    pub drafted: u32,
}

impl Decoding {
    /// Rows that it takes.
    pub fn rows(self) -> u32 {
        1 + self.drafted
    }

    /// Rows that a batch takes.
    pub fn rows_of(batch: &[Self]) -> u32 {
        batch.iter().map(|member| member.rows()).sum()
    }
}

/// What a launch gave to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// The request.
    pub request: RequestId,
    /// Its new tokens: at least one, and of a verification at most one more than were drafted.
    pub tokens: u32,
    /// How likely each token of its next draft is reached, in thousandths; never rising. Empty without a draft.
    pub draft: Arc<[u16]>,
}

/// A decode iteration, or what is left of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeRun {
    /// The requests.
    pub batch: Arc<[Decoding]>,
    /// Layers to run.
    pub layers: Range<u32>,
    /// Whether each layer is one kernel, which a single request allows.
    pub fused: bool,
}

/// Kernels of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kernel {
    /// Norm, projections, RoPE.
    Qkv,
    /// Attention.
    Mha,
    /// The rest of the layer.
    Ffn,
}

/// Consecutive tokens of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Segment {
    /// Position of the first one in the request's context, counted from 0.
    pub position: u32,
    /// How many.
    pub tokens: u32,
}

impl Segment {
    /// Tokens that the last one sees, itself included.
    pub fn context(self) -> u32 {
        self.position + self.tokens
    }
}

/// A static attention kernel that is compiled on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WarmKernel {
    /// Rows of queries.
    pub tokens: u32,
    /// Rows of the cache.
    pub context: u32,
}
