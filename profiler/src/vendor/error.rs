//! The errors of blobs and estimates, as data.

use super::compatibility::RECORD_BYTES_MAX;
use super::perf_metrics::{AXIS_MAX, STEPS, TICKS_MAX};

/// Reasons why the readers of this module refuse foreign bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// The bytes do not end like an export of OpenVINO's NPU plugin.
    #[error("not an NPU blob: it ends in `{}`, expected `OVNPU`", .found.escape_ascii())]
    NotABlob {
        /// The last bytes, five at most.
        found: Vec<u8>,
    },

    /// A part is shorter than it claims.
    #[error("the blob is truncated: {part} goes on for `{expected}` bytes, `{found}` are left")]
    Truncated {
        /// The part of the blob.
        part: &'static str,
        /// Length of the next item, in bytes.
        expected: u64,
        /// Length of the rest of the part, in bytes.
        found: u64,
    },

    /// The metadata may have another layout, or no compatibility record yet.
    #[error("the blob has metadata `{major}.{minor}`, expected `2.6` or a later `2`")]
    MetadataVersion {
        /// Major version; changes when fields move.
        major: u16,
        /// Minor version; changes when fields are added.
        minor: u16,
    },

    /// The compiler wrote no compatibility record.
    #[error("the blob's compatibility record is empty")]
    NoRecord,

    /// The compatibility record is longer than any that a compiler writes.
    #[error(
        "the blob's compatibility record has `{found}` bytes, expected `{RECORD_BYTES_MAX}` at most"
    )]
    RecordLong {
        /// Its length.
        found: u64,
    },

    /// The compatibility record is not a list of attributes.
    #[error("the blob's compatibility record has `{}`, expected visible ASCII", .found.escape_ascii())]
    RecordBytes {
        /// The invalid byte.
        found: u8,
    },

    /// An attribute of the compatibility record is invalid.
    #[error("the blob's compatibility record has `{found}`, expected {expected}")]
    Attribute {
        /// The attribute, verbatim.
        found: String,
        /// The valid values.
        expected: &'static str,
    },

    /// An attribute of the compatibility record occurs twice.
    #[error("the blob's compatibility record has `{key}` twice")]
    AttributeTwice {
        /// Its name.
        key: &'static str,
    },

    /// An attribute that every compatibility record has is missing.
    #[error("the blob's compatibility record has no `{key}`")]
    AttributeMissing {
        /// Its name.
        key: &'static str,
    },

    /// The payload is encrypted and cannot be read.
    #[error("the blob's payload is encrypted")]
    Encrypted,

    /// The payload is not an ELF file for the device.
    #[error("the blob's payload begins with `{}`, expected a little-endian ELF64 file", .found.escape_ascii())]
    NotElf {
        /// The first bytes of the payload.
        found: Vec<u8>,
    },

    /// The ELF header cannot be decoded.
    #[error("the blob's ELF header is unreadable")]
    ElfHeader(#[from] elf::ParseError),

    /// Section headers do not have the size of ELF64.
    #[error("the blob's section headers have `{found}` bytes each, expected `64`")]
    SectionHeaderBytes {
        /// The size in the ELF header.
        found: u16,
    },

    /// There is more than one section of a type that may occur once.
    #[error("the blob has more than one section of type `{section_type:#x}`")]
    SectionTwice {
        /// The type.
        section_type: u32,
    },

    /// The section of estimates has another layout.
    #[error("the blob's section of estimates has `{found}` bytes, expected `320`")]
    PerfMetricsBytes {
        /// Its length.
        found: u64,
    },

    /// The length of a tick is not known for this platform.
    #[error(
        "the blob is for NPU platform `{platform}`, expected one whose timer is known: `3720`, `4000`, `5010` or `5020`"
    )]
    Timer {
        /// The platform in the compatibility record.
        platform: u32,
    },

    /// The timer's frequency is invalid.
    #[error("the estimate's timer has `{found}` kHz, expected `1` to `{AXIS_MAX}`")]
    TimerFrequency {
        /// Its frequency, in kHz.
        found: u32,
    },

    /// A row or column of the table has a value that no device has.
    #[error(
        "the estimate's {axis} has base `{base}` and step `{step}`, expected both from `1` and `{STEPS}` values up to `{AXIS_MAX}`"
    )]
    Axis {
        /// The axis of the table, with its unit.
        axis: &'static str,
        /// The first value.
        base: u32,
        /// The distance between two values.
        step: u32,
    },

    /// An estimate that no kernel has.
    #[error("the estimate has `{found}` ticks, expected `1` to `{TICKS_MAX}`")]
    Ticks {
        /// The number in the table, in ticks.
        found: u64,
    },

    /// A scalability that no kernel has.
    #[error("the estimate has scalability `{found:?}`, expected a number from 0 to 1")]
    Scalability {
        /// The number in the table.
        found: f32,
    },

    /// An activity factor that no kernel has.
    #[error("the estimate has activity factor `{found:?}`, expected a finite number from 0")]
    ActivityFactor {
        /// The number in the table.
        found: f32,
    },
}
