//! The vendor compiler's own estimate of a kernel, read from the NPU blob that it wrote.
//!
//! A blob is what OpenVINO's NPU plugin exports: an ELF64 file for the device, then the plugin's metadata
//! with the record of what the blob is compatible with. [`NpuBlob::read`] takes it apart; [`PerfMetrics`] is
//! the estimate. Nothing else of the ELF file is looked at, no device is needed, and whether a blob fits a
//! device is for the runtime to say. Blobs are foreign bytes: bounds come before memory, nothing panics.
//!
//! ```text
//! ┌──────────────────────────────┬─────────────────────────────┬─────────────┬───────┐
//! │ payload: ELF64, little-endian│ metadata, from its version  │ payload     │ OVNPU │
//! │ with a section of estimates  │ to the blob type            │ bytes u64   │       │
//! └──────────────────────────────┴─────────────────────────────┴─────────────┴───────┘
//! ```

mod bytes;
mod compatibility;
mod error;
mod metadata;
mod perf_metrics;
mod sections;

pub use compatibility::{BlobCompatibility, Version};
pub use error::BlobError;
pub use metadata::Metadata;
pub use perf_metrics::{Axis, PerfMetrics, RawPerfMetrics, STEPS};

/// A blob whose metadata are read; it borrows the bytes for [`NpuBlob::perf_metrics`].
#[derive(Debug, Clone, PartialEq)]
pub struct NpuBlob<'a> {
    payload: &'a [u8],
    metadata: Metadata,
}

impl<'a> NpuBlob<'a> {
    /// Reads the metadata behind the payload; the payload itself is only measured.
    ///
    /// Refuses what does not end like a blob, is shorter than it says, or has no readable
    /// [`BlobCompatibility`] record: metadata older than 2.6 have none.
    pub fn read(blob: &'a [u8]) -> Result<Self, BlobError> {
        let (payload, metadata) = metadata::split(blob)?;
        let metadata = Metadata::read(metadata)?;
        Ok(NpuBlob { payload, metadata })
    }

    /// The metadata: which OpenVINO exported the blob, and how.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// What the blob needs of a device and its driver.
    pub fn compatibility(&self) -> &BlobCompatibility {
        &self.metadata.compatibility
    }

    /// The compiler's estimate; `None` if it made none, which is a section that is absent or has no ticks.
    ///
    /// Refuses an encrypted payload, one that is not the ELF file that a blob should hold, a table of
    /// nonsense, and a platform whose timer is not known.
    pub fn perf_metrics(&self) -> Result<Option<PerfMetrics>, BlobError> {
        if self.metadata.is_encrypted {
            return Err(BlobError::Encrypted);
        }
        match sections::of_type(self.payload, sections::PERF_METRICS)? {
            None => Ok(None),
            Some(section) => PerfMetrics::read(section, self.compatibility().platform()),
        }
    }
}

#[cfg(test)]
mod tests;
