//! Requests to measure with: which they are, and when they come.
//!
//! Request files ([`Workload`]) and rates become a [`Trace`]. The simulator serves it in virtual time.

mod benchmark;
mod request_file;
mod seeded;
mod trace;

pub use benchmark::benchmarks;
pub use request_file::{Workload, WorkloadError, WorkloadRequest};
pub use seeded::Seeded;
pub use trace::{Arrival, Spacing, Trace, TraceRequest, TraceSpec};
