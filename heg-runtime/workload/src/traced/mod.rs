//! The events of a run: launches, the lives of requests and their holds, lanes that were away.
//!
//! [`TraceRecorder`] derives it from a scheduler's events and actions, [`TraceFile`] writes it as it happens, for
//! Perfetto and `chrome://tracing` too, and [`RunTrace::read`] reads it again. Engine and simulator record alike.

mod file;
mod json;
mod names;
mod read;
mod recorder;

use std::collections::BTreeMap;

use heg_sched::{
    Class, Finish, HoldReason, Lane, LayerKernel, Micros, RequestId, Segment, Submission,
    WarmKernel, Work,
};

pub use file::TraceFile;
pub use read::TraceReadError;
pub use recorder::TraceRecorder;

/// An event in a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceEvent {
    /// A request arrived.
    Arrived(TracedRequest),
    /// A request got its first token.
    FirstToken(RequestId, Micros),
    /// A request started over, and its work so far was discarded.
    Restarted(RequestId, Micros),
    /// A request ended.
    Ended(TracedRequest),
    /// A lane ran a launch.
    Launch(TracedLaunch),
    /// A request waited.
    Held(TracedHold),
    /// A lane could not be used.
    Away(TracedAbsence),
    /// A kernel was compiled for the NPU.
    WarmUp(TracedWarmUp),
}

/// The life of a request, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedRequest {
    /// The request.
    pub id: RequestId,
    /// Priority class.
    pub class: Class,
    /// Number of tokens of its prompt.
    pub prompt_tokens: u32,
    /// Number of tokens of its answer.
    pub output_tokens: u32,
    /// Time of its arrival.
    pub arrived: Micros,
    /// Time at which its first kernel started.
    pub started: Option<Micros>,
    /// Time of its first token.
    pub first_token: Option<Micros>,
    /// Time at which it last started over.
    pub restarted: Option<Micros>,
    /// Time and reason of its end.
    pub ended: Option<(Micros, Finish)>,
}

/// A launch from its start to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedLaunch {
    /// The lane.
    pub lane: Lane,
    /// The call that ran.
    pub call: TracedCall,
    /// The requests for which it ran.
    pub requests: Vec<RequestId>,
    /// The most urgent class of its requests.
    pub class: Class,
    /// Start time.
    pub start: Micros,
    /// End time, or the time at which it was given up.
    pub end: Micros,
    /// The outcome.
    pub outcome: LaunchOutcome,
    /// Number of tokens whose keys and values it read from flash before it ran.
    pub flash_tokens: u32,
    /// Number of tokens whose keys and values it read from kept state, or from the bundle, before it ran.
    pub kept_tokens: u32,
    /// Number of these tokens that it read from the bundle.
    pub baked_tokens: u32,
}

/// The call of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedCall {
    /// A kernel over a segment of a prompt.
    Prefill {
        /// The kernel.
        kernel: LayerKernel,
        /// The layer.
        layer: u32,
        /// The segment of the prompt.
        segment: Segment,
    },
    /// The head on a prompt's last row.
    Head,
    /// Layers of a decode iteration.
    Decode {
        /// The first layer.
        first_layer: u32,
        /// The layer after the last one.
        end_layer: u32,
        /// Whether each layer was a single kernel.
        fused: bool,
    },
    /// An iteration of continuous batching, with parts of prompts.
    Iteration {
        /// Number of prompt tokens in it.
        prompt_tokens: u32,
    },
}

/// The outcome of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchOutcome {
    /// It completed.
    Done,
    /// It failed.
    Failed,
    /// It ran out of memory.
    OutOfMemory,
    /// It could not read a cache from flash.
    Unreadable,
    /// It ran for too long, and its lane was told to stop it.
    Stopped,
    /// Its lane was lost.
    Lost,
}

/// A span in which nothing of a request ran, for a single reason.
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
    /// The reason.
    pub state: LaneAway,
    /// Start time.
    pub start: Micros,
    /// End time.
    pub end: Micros,
}

/// The reason why a lane cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneAway {
    /// The lane was told to stop its work, and has not answered.
    Resetting,
    /// The lane is lost.
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

/// A trace of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunTrace {
    pub(crate) requests: BTreeMap<RequestId, TracedRequest>,
    pub(crate) launches: Vec<TracedLaunch>,
    pub(crate) holds: Vec<TracedHold>,
    pub(crate) absences: Vec<TracedAbsence>,
    pub(crate) warm_ups: Vec<TracedWarmUp>,
    /// The latest time in the trace.
    pub(crate) end: Micros,
    /// Number of events for which its writer had no time.
    left_out: u64,
}

impl RunTrace {
    /// Returns the number of events for which its writer had no time: causes may be missing.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Adds the next event.
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

    /// Returns the requests of the trace, by number.
    pub fn requests(&self) -> impl Iterator<Item = &TracedRequest> {
        self.requests.values()
    }

    /// Returns the launches of the trace, in the order in which they ended.
    pub fn launches(&self) -> &[TracedLaunch] {
        &self.launches
    }

    /// Returns the request with the longest TTFT, of those that had their first token since a time.
    pub fn slowest(&self, since: Micros) -> Option<RequestId> {
        let answered = self.requests().filter_map(|request| {
            let at = request.first_token.filter(|at| *at >= since)?;
            Some((at.since(request.arrived), request.id))
        });
        answered.max().map(|(_, id)| id)
    }
}

impl TraceEvent {
    /// Returns the latest time in the trace.
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
    /// Creates a request at its arrival.
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
