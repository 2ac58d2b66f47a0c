//! The runtime: maps a HEG bundle and generates text, kernel by kernel.
//!
//! To embed it, open a bundle with [`Loaded`], start its [`Engine`](engine::Engine), and submit
//! [`Request`](engine::Request)s; `examples/embed.rs` does so in sixty lines. [`text`] has the types of tokens and
//! text. A policy ([`read_policy`]) and a machine ([`read_soc`]) come with `graph-specs` or from a file of your own.
//!
//! ```no_run
//! use heg_runtime::engine::{EngineOptions, Request};
//! use heg_runtime::text::Special;
//! use heg_runtime::{Loaded, read_policy, read_soc};
//!
//! let loaded = Loaded::open("model.heg".as_ref())?;
//! let policy = read_policy("agent-xpu-one-device")?;
//! let engine = loaded.engine(&read_soc("host-cpu")?, policy, EngineOptions::default())?;
//! let tokenizer = loaded.tokenizer()?;
//! let prompt = tokenizer.encode("The capital of Norway is", Special::Add)?;
//! let (answer, ending) = engine.generate(Request::reactive(prompt)).wait()?;
//! println!("{} ({:?})", tokenizer.decode(&answer)?, ending.finish);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate is the front of two others: [`engine`] serves requests (a scheduler, and a thread for each lane), and
//! [`exec`] runs kernels on devices. Tools that measure and examine kernels use `exec` by itself, with [`profile`] and
//! [`verdicts`]; [`verified`] and [`history`] store findings and past answers. The runtime depends on neither the
//! compiler nor its inputs: all it knows of a model is in the bundle.

pub mod auto;
mod bake;
pub mod energy;
mod error;
pub mod fit;
mod load;
mod platform;
pub mod score;
mod spec_file;
mod texts;
pub mod verified;

pub use bake::{Baking, Beginning, bake};
pub use error::RuntimeError;
pub use heg_engine as engine;
pub use heg_engine::{EngineError, FinishReason, history};
pub use heg_exec as exec;
pub use heg_exec::mem::KvCache;
pub use heg_exec::{
    Descent, DescentStep, DeviceFacts, ExecError, ExitStatus, Misfit, NpuFacts, Reason, Rung,
    RungSource, profile, summary, verdicts,
};
pub use heg_text as text;
pub use load::{Loaded, TextFiles, TextSource, gpu_process};
pub use spec_file::{read_policy, read_soc};
pub use texts::{NoVector, TEXTS_MAX, Texts};
