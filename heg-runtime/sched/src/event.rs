//! The scheduler's input and output: events and actions.

use std::ops::Range;
use std::sync::Arc;

use heg_spec::Group;

use super::prefill::PromptWindow;
use super::request::{FlowId, Lane, Micros, RequestId, Submission};

/// Names a launch until its lane reports back; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Names a cache on its way to flash until it is there or could not be written; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Transfer(pub u64);

/// A fact that the scheduler is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A request arrived.
    Submit(Submission),
    /// The request is no longer wanted.
    Cancel(RequestId),
    /// A flow has no further calls: its KV cache may go.
    EndFlow(FlowId),
    /// A launch is done.
    Done {
        /// The launch that is done.
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
    /// There was no memory for a launch; nothing that it should have written counts.
    OutOfMemory(Ticket),
    /// The memory that [`Action::Reserve`] asked for could not be had: the request has none, and the cache that its
    /// flow had kept is gone. Launches of the request issued meanwhile are dropped, and nothing else answers them.
    /// Never sent after [`Action::Release`].
    Unreserved(RequestId),
    /// A launch did nothing, since the cache that one of its requests reuses could not be read from flash.
    /// Nothing in the memory of that request counts.
    Unreadable {
        /// The launch that did nothing.
        ticket: Ticket,
        /// The request whose rows cannot be read.
        request: RequestId,
    },
    /// A cache is on flash, and its memory is no longer read or written.
    Offloaded(Transfer),
    /// A cache could not be written to flash: if its flow still keeps it, it does so in memory.
    OffloadFailed(Transfer),
    /// A lane is gone, and with it whatever ran on it: none of that is written any more. [`Event::Ready`] reports
    /// its return.
    Lost(Lane),
    /// A lane that was reset is present again, and has stopped its work; or a lost one is back, without the
    /// kernels that were compiled for it.
    Ready(Lane),
    /// A kernel that was asked for is compiled.
    Warmed(WarmKernel),
    /// A kernel that was asked for cannot be compiled.
    WarmFailed(WarmKernel),
    /// The time that [`Action::Timer`] set has come; it may be late, but not early.
    Timer,
}

/// A command to the executor. Actions are carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Run work on a lane, which is free; answered by [`Event::Done`], [`Event::Failed`], [`Event::OutOfMemory`]
    /// or [`Event::Unreadable`].
    Launch {
        /// The lane that runs it.
        lane: Lane,
        /// The name of the launch.
        ticket: Ticket,
        /// The kernel, or kernels, and the rows they run over.
        work: Work,
    },
    /// Stop a decode run after the layer that is running now; the lane answers [`Event::Done`].
    Yield(Ticket),
    /// Stop whatever runs on the lane, at any cost, and answer [`Event::Ready`] when it may be used again, or
    /// [`Event::Lost`]. Until then the lane may still write to the memory of the requests it worked for, so
    /// memory of theirs that is released meanwhile is not reused before the answer.
    Reset(Lane),
    /// Compile a static kernel on the CPU; answered by [`Event::Warmed`] or
    /// [`Event::WarmFailed`]. One at a time.
    Warm(WarmKernel),
    /// Unload a compiled kernel, which is not needed any more.
    Unload(WarmKernel),
    /// Reserve KV memory for a request, the first `reused` tokens of which are its flow's; answered by
    /// [`Event::Unreserved`] if that cannot be done, and by nothing if it can.
    Reserve {
        /// The request that it is reserved for.
        request: RequestId,
        /// Room for the prompt and the longest answer, in tokens.
        tokens: u32,
        /// Leading tokens that are in the cache already.
        reused: u32,
        /// The segments of its prompt that need rows of activations at once.
        window: PromptWindow,
    },
    /// Release the KV memory of a request; that of a flow is released by [`Action::ReleaseFlow`].
    Release(RequestId),
    /// Leave leading tokens of a request's KV memory to its flow.
    Keep {
        /// The request whose memory it is.
        request: RequestId,
        /// The flow that it stays with.
        flow: FlowId,
        /// Number of leading tokens that stay.
        tokens: u32,
    },
    /// Move the KV memory that a flow kept to flash, from which a call of the flow takes it back; answered once by
    /// [`Event::Offloaded`] or [`Event::OffloadFailed`], even if it was taken back or released meanwhile.
    Offload {
        /// The flow whose memory it is.
        flow: FlowId,
        /// The name of the transfer.
        transfer: Transfer,
    },
    /// Release the cache that a flow kept, in memory or on flash.
    ReleaseFlow(FlowId),
    /// Discard all that was computed for the request; its prefill starts over.
    Restart(RequestId),
    /// Hand over the request's next token.
    Emit(RequestId),
    /// Report the end of the request. No action names it afterwards.
    Finish(RequestId, Finish),
    /// Call back with [`Event::Timer`] at this time. A later call replaces an earlier one.
    Timer(Micros),
}

/// Actions in order.
pub type Actions = Vec<Action>;

/// The way in which a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Finish {
    /// It has its last token.
    Complete,
    /// It was cancelled, since it was no longer wanted.
    Cancelled,
    /// Its deadline passed.
    Deadline,
    /// A kernel failed, and nothing else could run it.
    Failed,
    /// It was given up, since there were too many requests.
    Shed,
}

/// The work that a lane runs in one launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// One kernel over a segment of a prompt.
    Prefill {
        /// The request whose prompt it is.
        request: RequestId,
        /// The part of the prompt.
        segment: Segment,
        /// The layer.
        layer: u32,
        /// The kernel of the layer.
        kernel: LayerKernel,
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
        /// Parts of prompts, with the requests that they belong to.
        prompts: Arc<[(RequestId, Segment)]>,
    },
}

impl Work {
    /// Returns the requests that it works for.
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

    /// Returns a request's entry in the decode batch, if it has one.
    pub fn decoding(&self, request: RequestId) -> Option<Decoding> {
        let batch = match self {
            Self::Decode(run) => &run.batch,
            Self::Mixed { batch, .. } => batch,
            Self::Prefill { .. } | Self::Head(_) => return None,
        };
        let mut members = batch.iter().copied();
        members.find(|member| member.request == request)
    }

    /// Whether it works for a request, possibly among others.
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
    /// Tokens in its cache, including the last one of its answer, which is fed now.
    pub context: u32,
    /// Leading tokens of its draft that are fed after that one, to be verified.
    pub drafted: u32,
}

impl Decoding {
    /// Number of rows that it takes.
    pub fn rows(self) -> u32 {
        1 + self.drafted
    }

    /// Number of rows that a batch takes.
    pub fn rows_of(batch: &[Self]) -> u32 {
        batch.iter().map(|member| member.rows()).sum()
    }
}

/// The results of a launch for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// The request.
    pub request: RequestId,
    /// Number of its new tokens: at least one, and after a verification at most one more than were drafted.
    pub tokens: u32,
    /// The probability that each token of its next draft is reached, in thousandths; never rising. Empty without a
    /// draft.
    pub draft: Arc<[u16]>,
}

/// A decode iteration, or the rest of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeRun {
    /// The requests of the iteration.
    pub batch: Arc<[Decoding]>,
    /// Layers to run.
    pub layers: Range<u32>,
    /// Whether each layer is one kernel, which a single request allows.
    pub fused: bool,
}

/// Kernels of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerKernel {
    /// Norm, projections, RoPE.
    Qkv,
    /// Attention.
    Mha,
    /// The rest of the layer.
    Ffn,
}

impl From<LayerKernel> for Group {
    fn from(kernel: LayerKernel) -> Self {
        match kernel {
            LayerKernel::Qkv => Self::Qkv,
            LayerKernel::Mha => Self::Mha,
            LayerKernel::Ffn => Self::Ffn,
        }
    }
}

impl LayerKernel {
    /// Returns the kernel of an op group; `None` for the head, which is in no layer.
    pub fn of(group: Group) -> Option<Self> {
        match group {
            Group::Qkv => Some(Self::Qkv),
            Group::Mha => Some(Self::Mha),
            Group::Ffn => Some(Self::Ffn),
            Group::Head => None,
        }
    }
}

/// Consecutive tokens of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Segment {
    /// Position of the first one in the request's context, counted from 0.
    pub position: u32,
    /// Number of tokens.
    pub tokens: u32,
}

impl Segment {
    /// Tokens that the last one sees, including itself.
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
