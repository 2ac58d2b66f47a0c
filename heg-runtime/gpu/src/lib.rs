//! The GPU role: the programs of a bundle (`heg_artifacts::program`) as SPIR-V modules, run by a thin Vulkan host.
//!
//! A program's steps are the same as on the CPU, and so are the results, bit by bit, on a device whose arithmetic passes
//! the [`Probe`]: every float operation is rounded once and stands in one order. A device that does not pass is *close*.
//!
//! 1. [`GpuDevice::open`] loads the system's Vulkan library, chooses a device and probes it. A machine without any is an
//!    error value with its reason.
//! 2. [`GpuProgram::new`] makes a kernel's program ready, once for all places that use it.
//! 3. [`GpuOrder::record`] writes the calls of some programs down as commands, for a number of rows. What changes from
//!    one token to the next is in a [`CallState`].
//! 4. [`GpuPass`] submits orders in groups, with the [`GpuCopies`] that they need; [`GpuOrder::run`] carries one out.
//!
//! Modules are those of the bundle, or those of `heg-spirv`, committed with their sources (`shaders`, `spirv`).

mod arithmetic;
mod device;
mod error;
mod kept;
mod lookup;
mod model;
mod order;
mod pass;
mod pipelines;
mod probe;
mod program;
mod region;
mod shared;
mod sharing;
mod state;
mod vulkan;
mod weights;

pub use arithmetic::{Arithmetic, Means};
pub use device::{
    FoundGpu, GpuDevice, GpuFindings, GpuInfo, GpuOptions, ModuleOrigin, Sharing, Treatment,
};
pub use error::GpuError;
pub use kept::KeptPipelines;
pub use lookup::{EmbeddingCall, GatherCall};
pub use model::{GpuModel, GpuModelOptions};
pub use order::{GpuOrder, GpuTask};
pub use pass::{GpuCopies, GpuPass, GpuTaken};
pub use probe::{Fidelity, Probe};
pub use program::{GpuArea, GpuCall, GpuProduct, GpuProgram, GpuRows, GpuWeight, row_counts};
pub use region::GpuRegion;
pub use shared::{CacheMemory, SharedMemory};
pub use state::{CallState, GpuCache, RowState, StateLimits, WAY_TOKENS_MAX};
pub use weights::GpuSections;
