//! Memory that kernels read and write: the mapped bundle, reserved KV ranges, activation rows.
//!
//! Nothing here knows of schedules or kernels. `region` and `platform` have the only unsafe code of the runtime outside
//! the OpenVINO boundary.

mod activations;
mod kv;
#[allow(unsafe_code, reason = "rows that our own kernels work on")]
mod program_rows;
#[allow(unsafe_code, reason = "memory mappings shared with OpenVINO")]
mod region;

pub(crate) use activations::{Activations, Rows, Scratch, Widths};
pub use kv::KvCache;
pub(crate) use kv::{Half, KvShape};
pub(crate) use program_rows::ProgramRows;
pub(crate) use region::BundleMemory;
