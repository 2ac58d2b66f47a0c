//! The vendor compiler's own estimate of a kernel, read from the compiled NPU blob.
//!
//! A blob is an export of OpenVINO's NPU plugin: an ELF64 file for the device, then the plugin's metadata with the
//! record of the blob's compatibility. [`NpuBlob::read`] parses it; [`PerfMetrics`] is the estimate. Nothing else of
//! the ELF file is read, no device is needed, and the runtime decides whether a blob fits a device. Blobs are foreign
//! bytes: lengths are checked before memory is allocated, and nothing panics.
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

/// A blob with parsed metadata; it borrows the bytes for [`NpuBlob::perf_metrics`].
#[derive(Debug, Clone, PartialEq)]
pub struct NpuBlob<'a> {
    payload: &'a [u8],
    metadata: Metadata,
}

impl<'a> NpuBlob<'a> {
    /// Reads the metadata after the payload; checks only the length of the payload itself.
    ///
    /// Refuses bytes that do not end like a blob, are shorter than they claim, or have no readable
    /// [`BlobCompatibility`] record: metadata older than 2.6 have none.
    pub fn read(blob: &'a [u8]) -> Result<Self, BlobError> {
        let (payload, metadata) = metadata::split(blob)?;
        let metadata = Metadata::read(metadata)?;
        Ok(NpuBlob { payload, metadata })
    }

    /// The metadata, with the version of OpenVINO that exported the blob.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The blob's requirements on a device and its driver.
    pub fn compatibility(&self) -> &BlobCompatibility {
        &self.metadata.compatibility
    }

    /// The compiler's estimate; `None` if it made none, so that the section is absent or has no ticks.
    ///
    /// Refuses an encrypted payload, one that is not the ELF file of a blob, an invalid table, and a platform whose
    /// timer is not known.
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
