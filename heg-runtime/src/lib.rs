//! The runtime: maps a HEG bundle and generates text, kernel by kernel.
//!
//! To embed it, open a bundle with [`Loaded`], start its [`Engine`](engine::Engine), and hand in
//! [`Request`](engine::Request)s; `examples/embed.rs` does so in sixty lines. Tokens and text are [`text`]'s, and a
//! policy ([`read_policy`]) and a machine ([`read_soc`]) are what `graph-specs` ships or a file of your own.
//! Everything else here is for tools that measure and examine kernels: [`exec`] runs them one at a time, [`profile`]
//! measures them, [`verdicts`] and [`verified`] remember what was found out, [`history`] what was answered.
//!
//! A request travels from [`engine`] (a scheduler, and a thread for each lane) to `exec` (launches on OpenVINO, on
//! tensors in memory of `mem`), by way of `ladder` (which device runs which kernel). The runtime depends on neither the
//! compiler nor its inputs: all it knows of a model is in the bundle.
#![deny(missing_docs)]

pub mod engine;
mod error;
pub mod exec;
pub mod history;
mod ladder;
mod load;
mod mem;
#[allow(unsafe_code, reason = "advice on memory mappings")]
mod platform;
pub mod profile;
pub mod score;
mod soc;
mod spec_file;
pub mod verdicts;
pub mod verified;

pub use engine::FinishReason;
pub use error::{ExitStatus, RuntimeError};
pub use heg_text as text;
pub use ladder::{Descent, DeviceFacts, Misfit, NpuFacts, Reason, Rung, Source, Step, summary};
pub use load::Loaded;
pub use mem::KvCache;
pub use spec_file::{read_policy, read_soc};
