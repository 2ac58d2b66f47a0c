//! The offline compiler: compiles a declarative model spec and Hugging Face weights into one HEG bundle.
//!
//! The way, one module per step: [`target`] (the model to compile) → [`heg_ingest`] (config, weights, text) → [`graph`]
//! (operators of each layer) → [`fuse`] (op groups) → [`heg`] (kernels and their uses) → `lower` (OpenVINO IR) and
//! `program` (CPU programs), `precompile` and [`npu`] (blobs), [`heg_quant`] and `encode` (weights) and `reference` (known
//! answers) → [`compile`](compile()) (the bundle). The runtime depends on none of it.

mod assemble;
mod compile;
mod emit;
mod encode;
mod error;
#[cfg(test)]
mod fixture;
pub mod fuse;
pub mod graph;
pub mod heg;
mod lower;
pub mod npu;
mod options;
mod phase;
mod plan;
mod precompile;
mod products;
mod program;
mod provenance;
mod reference;
mod rope;
pub mod target;
mod variants;
mod verify;

pub use compile::{NarrowKv, Places, Summary, compile};
pub use emit::{Emit, emit};
pub use error::CompileError;
pub use heg_artifacts::{StoreKey, StoreSharing};
pub use lower::{Lowering, WeightsFirst};
pub use options::{CompileOptions, GpuModules, NpuBlobs, Verify};
pub use phase::{Phase, Progress, Silent, Unit};
pub use plan::Plan;
pub use precompile::BlobSummary;
pub use target::Target;
pub use verify::BrokenInvariant;
