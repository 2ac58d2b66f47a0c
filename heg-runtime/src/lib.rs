//! The runtime: maps a HEG bundle and generates text, kernel by kernel.
//!
//! The road: [`Loaded`] (a mapped bundle, its devices) → `ladder` (which device runs what) → [`sched`] (what is
//! launched next) → [`exec`] (launches on OpenVINO) → [`text`] (tokens to text) → [`generate`](generate()).
//! It depends on neither the compiler nor its inputs: all it knows of a model is in the bundle.
#![deny(missing_docs)]

pub mod engine;
mod error;
pub mod exec;
mod generate;
mod ladder;
mod load;
mod mem;
pub mod profile;
mod soc;
mod spec_file;
pub mod verdicts;
pub mod verified;

pub use error::{ExitStatus, RuntimeError};
pub use generate::{
    Continue, FinishReason, GenerateOptions, Timing, generate, generate_restricted,
};
pub use ladder::{Descent, DeviceFacts, Misfit, NpuFacts, Reason, Rung, Source, Step, summary};
pub use load::Loaded;
pub use mem::KvCache;
pub use spec_file::{read_policy, read_soc};
