//! Workloads for measurements: requests, their arrival times, and the outcomes of their answers.
//!
//! Request files ([`Workload`]) and rates become a [`Trace`]. The simulator serves it in virtual time; as
//! [`ReplayRequest`]s, with prompts, it is sent to servers, and [`Figures`] are computed from their [`Outcome`]s.

mod benchmark;
mod engine_figures;
mod explain;
mod outcome;
mod replay;
mod request_file;
mod trace;
mod traced;

pub use benchmark::benchmarks;
pub use engine_figures::{EngineFigures, WaitFigures};
pub use explain::{
    CauseShare, CausedInterval, Explanation, SlowCause, Stretch, UnknownRequest, explain,
};
pub use outcome::{ClassFigures, Figures, Outcome};
pub use replay::{Prompt, Prompts, ReplayRequest};
pub use request_file::{Workload, WorkloadError, WorkloadRequest};
pub use trace::{AnswerLengths, Arrival, Spacing, Trace, TraceRequest, TraceSpec};
pub use traced::{
    LaneAway, LaunchOutcome, RunTrace, TraceEvent, TraceFile, TraceReadError, TraceRecorder,
    TracedAbsence, TracedCall, TracedHold, TracedLaunch, TracedRequest, TracedWarmUp,
};
