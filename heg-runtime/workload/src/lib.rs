//! Workloads for measurements: requests, their arrival times, and the outcomes of their answers.
//!
//! Request files ([`Workload`]) and rates become a [`Trace`]. The simulator serves it in virtual time; as
//! [`ReplayRequest`]s, with prompts, it is sent to servers, and [`Figures`] are computed from their [`Outcome`]s.

mod benchmark;
mod engine_figures;
mod outcome;
mod replay;
mod request_file;
mod trace;
pub mod trace_event;

pub use benchmark::benchmarks;
pub use engine_figures::{EngineFigures, WaitFigures};
pub use outcome::{ClassFigures, Figures, Outcome};
pub use replay::{Prompt, Prompts, ReplayRequest};
pub use request_file::{Workload, WorkloadError, WorkloadRequest};
pub use trace::{Arrival, Spacing, Trace, TraceRequest, TraceSpec};
pub use trace_event::TraceFile;
