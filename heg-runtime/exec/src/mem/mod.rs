//! Memory that kernels read and write: the mapped bundle, reserved KV ranges, activation rows.
//!
//! This module knows no schedules or kernels. `program_rows`, `region` and the crate's `platform` have the
//! only unsafe code of this crate.

use heg_artifacts::manifest::{ElementType, Model};
use heg_openvino::TensorType;

mod activations;
mod changes;
mod home;
mod kv;
mod kv_files;
mod kv_room;
mod kv_shape;
#[allow(unsafe_code, reason = "rows that our own kernels work on")]
mod program_rows;
#[allow(unsafe_code, reason = "memory mappings shared with OpenVINO")]
mod region;
mod reserved;

pub use activations::{ActivationRows, RowBuffer, Scratch, Widths};
pub use home::MemoryHome;
pub(crate) use home::{Rows, Way};
pub use kv::Half;
pub use kv::KvCache;
pub(crate) use kv::KvStamp;
pub use kv_room::KvRoom;
pub use kv_shape::KvShape;
pub use program_rows::ProgramRows;
pub(crate) use program_rows::partner_memory;
pub use region::BundleMemory;

/// Elements of a row of a model's cache, scales among them: see [`KvShape::width`].
pub(crate) fn cache_width(model: &Model, element: ElementType) -> usize {
    let width = model.kv_heads.saturating_mul(model.head_dim);
    let bytes = element.cache_row_bytes(width, model.head_dim);
    // No memory holds more: `KvShape::check` says so.
    bytes.map_or(usize::MAX, |bytes| (bytes / element.bytes()) as usize)
}

/// Converts an element type of a bundle to OpenVINO's.
pub(crate) fn tensor_element(element: ElementType) -> TensorType {
    match element {
        ElementType::I4 => TensorType::I4,
        ElementType::U4 => TensorType::U4,
        ElementType::I8 => TensorType::I8,
        ElementType::F16 => TensorType::F16,
        ElementType::Bf16 => TensorType::Bf16,
        ElementType::F32 => TensorType::F32,
        ElementType::I64 => TensorType::I64,
    }
}
