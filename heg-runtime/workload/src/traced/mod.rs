//! What happened in a run: launches, the lives of requests and what they waited for, lanes that were away.
//!
//! [`TraceRecorder`] makes it out of what a scheduler hears and says, [`TraceFile`] writes it as it happens, for Perfetto
//! and `chrome://tracing` too, and [`RunTrace::read`] reads it again. Engine and simulator record alike.

mod file;
mod json;
mod names;
mod read;
mod recorder;

use std::collections::BTreeMap;

use heg_sched::{
    Class, Finish, HoldReason, Kernel, Lane, Micros, RequestId, Segment, Submission, WarmKernel,
    Work,
};

pub use file::TraceFile;
pub use read::TraceReadError;
pub use recorder::TraceRecorder;

/// Something that a trace tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceEvent {
    /// A request came in.
    Arrived(TracedRequest),
    /// A request has its first token.
    FirstToken(RequestId, Micros),
    /// What was computed for a request counts no more.
    Restarted(RequestId, Micros),
    /// A request is over.
    Ended(TracedRequest),
    /// A lane ran something.
    Launch(TracedLaunch),
    /// A request waited.
    Held(TracedHold),
    /// A lane could not be used.
    Away(TracedAbsence),
    /// A kernel was compiled for the NPU.
    WarmUp(TracedWarmUp),
}

/// A request, as far as its life is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedRequest {
    /// The request.
    pub id: RequestId,
    /// How urgent it is.
    pub class: Class,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens of its answer.
    pub output_tokens: u32,
    /// Time of its arrival.
    pub arrived: Micros,
    /// Time at which a kernel of it first ran.
    pub started: Option<Micros>,
    /// Time of its first token.
    pub first_token: Option<Micros>,
    /// Time at which it last started over.
    pub restarted: Option<Micros>,
    /// Time of its end, and how it ended.
    pub ended: Option<(Micros, Finish)>,
}

/// A launch from its start to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedLaunch {
    /// The lane.
    pub lane: Lane,
    /// What ran.
    pub call: TracedCall,
    /// Whose it was.
    pub requests: Vec<RequestId>,
    /// The most urgent class of its requests.
    pub class: Class,
    /// Start time.
    pub start: Micros,
    /// End time, or the time at which it was given up.
    pub end: Micros,
    /// What came of it.
    pub outcome: LaunchOutcome,
    /// Tokens whose keys and values it read from flash before it ran.
    pub flash_tokens: u32,
}

/// What a launch ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedCall {
    /// A kernel over a segment of a prompt.
    Prefill {
        /// Which kernel.
        kernel: Kernel,
        /// Which layer.
        layer: u32,
        /// Which part of the prompt.
        segment: Segment,
    },
    /// The head on a prompt's last row.
    Head,
    /// Layers of a decode iteration.
    Decode {
        /// The first of them.
        first_layer: u32,
        /// The one behind the last of them.
        end_layer: u32,
        /// Whether each was one kernel.
        fused: bool,
    },
    /// An iteration of continuous batching, with so many tokens of prompts.
    Iteration {
        /// Tokens of prompts in it.
        prompt_tokens: u32,
    },
}

/// What came of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchOutcome {
    /// It came to its end.
    Done,
    /// It failed.
    Failed,
    /// It found no memory.
    OutOfMemory,
    /// It could not read a cache from flash.
    Unreadable,
    /// It ran for too long, and its lane was told to stop it.
    Stopped,
    /// Its lane was lost.
    Lost,
}

/// A span in which nothing of a request ran, for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedHold {
    /// The request.
    pub request: RequestId,
    /// The reason.
    pub why: HoldReason,
    /// Start time.
    pub start: Micros,
    /// End time.
    pub end: Micros,
}

/// A span in which a lane could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedAbsence {
    /// The lane.
    pub lane: Lane,
    /// Why not.
    pub state: LaneAway,
    /// Start time.
    pub start: Micros,
    /// End time.
    pub end: Micros,
}

/// Why a lane cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneAway {
    /// It was told to stop what it runs, and has not answered.
    Resetting,
    /// It is lost.
    Lost,
}

/// The compilation of a kernel for the NPU while requests wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedWarmUp {
    /// The kernel.
    pub kernel: WarmKernel,
    /// Start time.
    pub start: Micros,
    /// End time.
    pub end: Micros,
}

/// All that a trace tells of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunTrace {
    pub(crate) requests: BTreeMap<RequestId, TracedRequest>,
    pub(crate) launches: Vec<TracedLaunch>,
    pub(crate) holds: Vec<TracedHold>,
    pub(crate) absences: Vec<TracedAbsence>,
    pub(crate) warm_ups: Vec<TracedWarmUp>,
    /// The last time that it tells of.
    pub(crate) end: Micros,
}

impl RunTrace {
    /// Takes in what comes next.
    pub fn add(&mut self, event: TraceEvent) {
        self.end = self.end.max(event.time());
        match event {
            TraceEvent::Arrived(request) => {
                self.requests.insert(request.id, request);
            }
            TraceEvent::FirstToken(id, at) => {
                self.change(id, |request| request.first_token = Some(at));
            }
            TraceEvent::Restarted(id, at) => {
                self.change(id, |request| request.restarted = Some(at));
            }
            TraceEvent::Ended(TracedRequest {
                id,
                output_tokens,
                ended,
                ..
            }) => self.change(id, |request| {
                request.output_tokens = output_tokens;
                request.ended = ended;
            }),
            TraceEvent::Launch(launch) => {
                for id in &launch.requests {
                    if let Some(request) = self.requests.get_mut(id) {
                        request.started.get_or_insert(launch.start);
                    }
                }
                self.launches.push(launch);
            }
            TraceEvent::Held(hold) => self.holds.push(hold),
            TraceEvent::Away(absence) => self.absences.push(absence),
            TraceEvent::WarmUp(warm_up) => self.warm_ups.push(warm_up),
        }
    }

    fn change(&mut self, id: RequestId, change: impl FnOnce(&mut TracedRequest)) {
        if let Some(request) = self.requests.get_mut(&id) {
            change(request);
        }
    }

    /// Its requests, by number.
    pub fn requests(&self) -> impl Iterator<Item = &TracedRequest> {
        self.requests.values()
    }

    /// The request that took longest for its first token, of those that have one since a time.
    pub fn slowest(&self, since: Micros) -> Option<RequestId> {
        let answered = self.requests().filter_map(|request| {
            let at = request.first_token.filter(|at| *at >= since)?;
            Some((at.since(request.arrived), request.id))
        });
        answered.max().map(|(_, id)| id)
    }
}

impl TraceEvent {
    /// The last time that it tells of.
    pub fn time(&self) -> Micros {
        match self {
            Self::Arrived(request) => request.arrived,
            Self::FirstToken(_, at) | Self::Restarted(_, at) => *at,
            Self::Ended(request) => request.ended.map_or(request.arrived, |(at, _)| at),
            Self::Launch(launch) => launch.end,
            Self::Held(hold) => hold.end,
            Self::Away(absence) => absence.end,
            Self::WarmUp(warm_up) => warm_up.end,
        }
    }
}

impl TracedRequest {
    /// A request that comes in.
    fn arriving(submission: &Submission, arrived: Micros) -> Self {
        Self {
            id: submission.id,
            class: submission.class,
            prompt_tokens: submission.prompt_tokens,
            output_tokens: 0,
            arrived,
            started: None,
            first_token: None,
            restarted: None,
            ended: None,
        }
    }
}

impl TracedCall {
    fn of(work: &Work) -> Self {
        match work {
            Work::Prefill {
                segment,
                layer,
                kernel,
                ..
            } => Self::Prefill {
                kernel: *kernel,
                layer: *layer,
                segment: *segment,
            },
            Work::Head(_) => Self::Head,
            Work::Decode(run) => Self::Decode {
                first_layer: run.layers.start,
                end_layer: run.layers.end,
                fused: run.fused,
            },
            Work::Mixed { prompts, .. } => Self::Iteration {
                prompt_tokens: prompts.iter().map(|(_, segment)| segment.tokens).sum(),
            },
        }
    }
}
