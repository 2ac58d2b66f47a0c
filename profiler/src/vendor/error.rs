//! Everything that a blob or an estimate is refused for, as data.

use super::compatibility::RECORD_BYTES_MAX;
use super::perf_metrics::{AXIS_MAX, STEPS, TICKS_MAX};

/// What the readers of this module return instead of trusting foreign bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// The bytes do not end as OpenVINO's NPU plugin ends what it exports.
    #[error("not an NPU blob: it ends in `{}`, expected `OVNPU`", .found.escape_ascii())]
    NotABlob {
        /// The last bytes, five at most.
        found: Vec<u8>,
    },

    /// Something is shorter than it says.
    #[error("the blob is truncated: {part} goes on for `{expected}` bytes, `{found}` are left")]
    Truncated {
        /// The part of the blob.
        part: &'static str,
        /// Length of what should come next, in bytes.
        expected: u64,
        /// Length of the rest of the part, in bytes.
        found: u64,
    },

    /// The metadata may be laid out in another way, or have no compatibility record yet.
    #[error("the blob has metadata `{major}.{minor}`, expected `2.6` or a later `2`")]
    MetadataVersion {
        /// Changes when fields move.
        major: u16,
        /// Changes when fields are added.
        minor: u16,
    },

    /// The compiler wrote no compatibility record.
    #[error("the blob's compatibility record is empty")]
    NoRecord,

    /// The compatibility record is longer than any compiler's.
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
        /// The byte that cannot be.
        found: u8,
    },

    /// An attribute of the compatibility record has no meaning.
    #[error("the blob's compatibility record has `{found}`, expected {expected}")]
    Attribute {
        /// The attribute as it stands.
        found: String,
        /// The valid values.
        expected: &'static str,
    },

    /// An attribute of the compatibility record is there twice.
    #[error("the blob's compatibility record has `{key}` twice")]
    AttributeTwice {
        /// Its name.
        key: &'static str,
    },

    /// An attribute that every compatibility record has is not there.
    #[error("the blob's compatibility record has no `{key}`")]
    AttributeMissing {
        /// Its name.
        key: &'static str,
    },

    /// The payload is encrypted: there is nothing to read.
    #[error("the blob's payload is encrypted")]
    Encrypted,

    /// The payload is not what the device loads.
    #[error("the blob's payload begins with `{}`, expected a little-endian ELF64 file", .found.escape_ascii())]
    NotElf {
        /// The first bytes of the payload.
        found: Vec<u8>,
    },

    /// The ELF header cannot be decoded.
    #[error("the blob's ELF header is unreadable")]
    ElfHeader(#[from] elf::ParseError),

    /// Section headers of another size are not ELF64.
    #[error("the blob's section headers have `{found}` bytes each, expected `64`")]
    SectionHeaderBytes {
        /// The size in the ELF header.
        found: u16,
    },

    /// There is more than one section of a type that a device reads once.
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

    /// Ticks of this platform have no known length.
    #[error(
        "the blob is for NPU platform `{platform}`, expected one whose timer is known: `3720`, `4000`, `5010` or `5020`"
    )]
    Timer {
        /// The platform in the compatibility record.
        platform: u32,
    },

    /// A timer that does not tick.
    #[error("the estimate's timer has `{found}` kHz, expected `1` to `{AXIS_MAX}`")]
    TimerFrequency {
        /// Its frequency, in kHz.
        found: u32,
    },

    /// A row or column of the table belongs to nothing that a device could have.
    #[error(
        "the estimate's {axis} has base `{base}` and step `{step}`, expected both from `1` and `{STEPS}` values up to `{AXIS_MAX}`"
    )]
    Axis {
        /// The axis of the table, with its unit.
        axis: &'static str,
        /// The first value.
        base: u32,
        /// The distance to the next.
        step: u32,
    },

    /// No kernel takes this long.
    #[error("the estimate has `{found}` ticks, expected `1` to `{TICKS_MAX}`")]
    Ticks {
        /// The number in the table.
        found: u64,
    },

    /// No kernel has this scalability.
    #[error("the estimate has scalability `{found:?}`, expected a number from 0 to 1")]
    Scalability {
        /// The number in the table.
        found: f32,
    },

    /// No kernel has this activity factor.
    #[error("the estimate has activity factor `{found:?}`, expected a finite number from 0")]
    ActivityFactor {
        /// The number in the table.
        found: f32,
    },
}
