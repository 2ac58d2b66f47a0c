//! The CPU role: our own kernels, which run programs compiled ahead of time over rows of the mapped bundle.
//!
//! Weights are read in place: start-up packs, copies and compiles nothing. A row's result depends neither on the other
//! rows of a call, nor on the length of a chunk, the number of threads or the instruction set: every sum has one order,
//! which all forms of a kernel keep. `lanes` has the vectors that kernels are written over, one module per instruction
//! set; `rows`, `product` and `attention` have the kernels.

mod asking;
mod attention;
#[allow(unsafe_code, reason = "a kernel of the portable form")]
mod cache_form;
mod call;
#[allow(unsafe_code, reason = "threads have memory of their own")]
mod device;
mod divider;
mod division;
mod error;
#[allow(unsafe_code, reason = "calls of kernels")]
mod execution;
mod kernel;
#[allow(unsafe_code, reason = "intrinsics")]
mod lanes;
mod listed;
#[allow(unsafe_code, reason = "rows in memory that others own")]
mod memory;
mod pace;
mod part_clock;
mod partner;
#[allow(unsafe_code, reason = "rows that a partner has computed")]
mod partner_rows;
mod placement;
mod platform;
#[allow(unsafe_code, reason = "a call lives as long as its threads work on it")]
mod pool;
mod prefetch;
mod product;
mod rests;
mod revision;
#[allow(unsafe_code, reason = "calls of kernels")]
mod row_steps;
mod rows;
mod share;
mod solo_tuner;

pub use attention::TREE_TOKENS_MAX;
pub use cache_form::CacheForm;
pub use call::{AffineBytes, Context, CpuCall, WeightBytes};
pub use device::{CpuDevice, CpuDeviceOptions};
pub use division::{Partition, WorkItem};
pub use error::CpuError;
pub use heg_spec::{Activations, Isa};
pub use kernel::CpuKernel;
pub use memory::ProgramRows;
pub use part_clock::PartTimes;
pub use partner::{
    Partner, PartnerArea, PartnerFailure, PartnerForms, PartnerKernel, PartnerMemory,
    PartnerProduct, PartnerSide,
};
pub use placement::Placement;
pub use pool::{HandOvers, PairWatch};
pub use product::TILE_OUTPUTS;
pub use revision::ARITHMETIC_REVISION;
