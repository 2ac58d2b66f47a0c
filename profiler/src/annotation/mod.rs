//! Annotations: the speed of each variant on each device of a machine, and the chunk sizes that follow from it.
//!
//! [`Annotations`] is the document: a bundle carries one (`Manifest::annotations`), and a device a second one with its
//! measurements, which [`Annotations::overlay`] lays over the first. [`estimate`] gives latency, bandwidth utilisation,
//! footprint and energy of any call (DESIGN §5, Agent.xpu §4.2); [`sweep`] chooses a chunk; [`annotate`] makes the
//! document of a bundle from data sheets and the vendor's tables.
//!
//! Pure: no clock, device, thread or file, so that the runtime can import it. Measuring, fitting and reading blobs are
//! left to other modules; their results come in as plain numbers.

mod annotate;
mod document;
mod error;
mod estimate;
#[cfg(test)]
pub(crate) mod llama_3b;
mod power;
mod sweep;
mod vendor_table;

pub use annotate::{BlobKey, VendorTables, annotate, of_data_sheet};
pub use document::{
    ANNOTATIONS_BYTES_MAX, ANNOTATIONS_REVISION, Annotations, DeviceAnnotation, NpuAnnotation,
    Prediction, SocAnnotation, VariantAnnotation,
};
pub use error::AnnotationError;
pub use estimate::{Estimate, KernelCall, RunWork, estimate, footprint_bytes, run_work};
pub use power::{Contention, DevicePower, RawContention, RawDevicePower, Regime};
pub use sweep::{ChunkCost, ChunkSweep, KernelCost, SweepLimits, choose, sweep};
pub use vendor_table::VendorTable;
