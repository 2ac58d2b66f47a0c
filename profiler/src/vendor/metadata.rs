//! The metadata after a blob's payload, and their layout.
//!
//! OpenVINO writes them (`src/plugins/intel_npu/src/plugin/src/metadata.cpp`). All numbers are
//! little-endian, there is no padding:
//!
//! ```text
//! version              u32   major << 16 | minor
//! OpenVINO             u16 × 3
//! init schedules       u64 count, u64 size each          since 2.1
//! batch size           i64                               since 2.2
//! layouts              u64 inputs, u64 outputs,          since 2.3
//!                      then u16 length and text each
//! compiler             u32   major << 16 | minor         since 2.4
//! encrypted            u8                                since 2.5
//! compatibility        u64 length, text                  since 2.6
//! blob type            u8                                since 2.7, not read
//! footer               u64 bytes of the payload, then OVNPU
//! ```
//!
//! A new minor version only adds fields at the end, so later ones are read up to the compatibility record.

#![deny(clippy::arithmetic_side_effects)]

use super::bytes::Bytes;
use super::compatibility::{BlobCompatibility, Version};
use super::error::BlobError;

/// The metadata that the exporting plugin appends to a blob.
#[derive(Debug, Clone, PartialEq)]
pub struct Metadata {
    /// The OpenVINO that exported the blob.
    pub openvino: Version,
    /// Whether the payload is encrypted by the caller, and so cannot be read as an ELF file.
    pub is_encrypted: bool,
    /// The blob's requirements on a device and its driver.
    pub compatibility: BlobCompatibility,
}

impl Metadata {
    /// Reads everything between payload and footer.
    pub(super) fn read(metadata: &[u8]) -> Result<Self, BlobError> {
        let mut bytes = Bytes::new("metadata", metadata);
        let minor = bytes.u16()?;
        let major = bytes.u16()?;
        if major != MAJOR || minor < MINOR_MIN {
            return Err(BlobError::MetadataVersion { major, minor });
        }
        let openvino = Version {
            major: bytes.u16()?.into(),
            minor: bytes.u16()?.into(),
            patch: bytes.u16()?.into(),
        };
        let init_count = bytes.u64()?;
        bytes.take(init_count.saturating_mul(8))?;
        let _batch_size = bytes.u64()?;
        let (input_count, output_count) = (bytes.u64()?, bytes.u64()?);
        // Each layout takes two bytes at least, so the input's end limits a false count.
        for _ in 0..input_count.saturating_add(output_count) {
            let length = bytes.u16()?;
            bytes.take(length.into())?;
        }
        let _compiler = bytes.u32()?;
        let is_encrypted = bytes.u8()? != 0;
        let length = bytes.u64()?;
        if length == 0 {
            return Err(BlobError::NoRecord);
        }
        let record = bytes.take(length)?;
        Ok(Metadata {
            openvino,
            is_encrypted,
            compatibility: BlobCompatibility::read(record)?,
        })
    }
}

/// Splits a blob into its payload and its metadata, without the footer.
pub(super) fn split(blob: &[u8]) -> Result<(&[u8], &[u8]), BlobError> {
    let Some((rest, MAGIC)) = blob.split_last_chunk() else {
        let from = blob.len().saturating_sub(MAGIC.len());
        return Err(BlobError::NotABlob {
            found: blob.get(from..).unwrap_or_default().to_vec(),
        });
    };
    let footer = |rest: &[u8]| BlobError::Truncated {
        part: "footer",
        expected: 8,
        found: rest.len() as u64,
    };
    let (rest, payload_bytes) = rest.split_last_chunk().ok_or_else(|| footer(rest))?;
    let payload_bytes = u64::from_le_bytes(*payload_bytes);
    let mut bytes = Bytes::new("payload", rest);
    let payload = bytes.take(payload_bytes)?;
    Ok((payload, bytes.rest()))
}

/// The last bytes of every blob.
const MAGIC: &[u8; 5] = b"OVNPU";

const MAJOR: u16 = 2;
/// The first minor version with a compatibility record.
const MINOR_MIN: u16 = 6;
