//! Workloads for measurements: requests, their arrival times, and the outcomes of their answers.
//!
//! Request files ([`Workload`]) and rates become a [`Trace`]. The simulator serves it in virtual time. With prompts, as
//! [`ReplayRequest`]s, it is sent to servers; [`ReplyReader`] parses their replies, and [`Figures`] are computed from
//! the [`Outcome`]s.

mod benchmark;
mod engine_figures;
mod explain;
mod mechanisms;
mod outcome;
mod replay;
mod reply;
mod request_file;
mod trace;
mod traced;

pub use benchmark::benchmarks;
pub use engine_figures::{EngineFigures, WaitFigures};
pub use explain::{
    CauseShare, CausedInterval, Explanation, SlowCause, Stretch, UnknownRequest, explain,
};
pub use mechanisms::MechanismUse;
pub use outcome::{ClassFigures, Figures, Outcome};
pub use replay::{Prompt, Prompts, ReplayRequest};
pub use reply::{EndlessEvent, ReplyEvent, ReplyReader};
pub use request_file::{Workload, WorkloadError, WorkloadRequest};
pub use trace::{AnswerLengths, Arrival, Spacing, Trace, TraceRequest, TraceSpec};
pub use traced::{
    LaneAway, LaunchOutcome, RunTrace, TraceEvent, TraceFile, TraceReadError, TraceRecorder,
    TracedAbsence, TracedCall, TracedHold, TracedLaunch, TracedRequest, TracedWarmUp,
};
