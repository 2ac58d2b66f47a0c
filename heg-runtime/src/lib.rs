//! The runtime: maps a HEG bundle and generates text, kernel by kernel.
//!
//! The road: [`Loaded`] (a mapped bundle, its devices) → `bind` (which device runs what) → [`sched`] (what is
//! launched next) → [`exec`] (launches on OpenVINO) → [`text`] (tokens to text) → [`generate`](generate()).
//! It depends on neither the compiler nor its inputs: all it knows of a model is in the bundle.
#![deny(missing_docs)]

mod bind;
mod error;
pub mod exec;
mod generate;
mod load;
mod mem;
pub mod sched;
#[cfg(feature = "sim")]
pub mod sim;
#[allow(missing_docs, reason = "error fields are named by their messages")]
pub mod text;
pub mod verified;

pub use error::{ExitStatus, RuntimeError};
pub use generate::{Continue, FinishReason, GenerateOptions, Timing, generate};
pub use load::{Loaded, read_soc};
pub use mem::KvCache;
