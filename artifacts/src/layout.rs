//! The layout of a bundle: the only place with offsets.
//!
//! A bundle is a header page, the manifest, then the sections, each starting at a multiple of
//! [`ALIGNMENT`] and padded to the next with zeros. Offsets of sections are not stored: they follow from
//! the length of the manifest and the lengths in it, so they cannot disagree with it. Numbers are
//! little-endian. The byte table for people is `FORMAT.md`; a test there and here keeps both honest.
//!
//! ```text
//! 0         8        12        16          24               32              40       72      104   4096
//! ┌─────────┬────────┬─────────┬───────────┬────────────────┬───────────────┬────────┬───────┬──────┐
//! │ magic   │version │ header  │ file      │ manifest       │ manifest      │blake3: │blake3:│ zero │
//! │HEGBNDL\0│  u32   │bytes u32│ bytes u64 │ offset u64     │ bytes u64     │manifest│ 0..72 │      │
//! └─────────┴────────┴─────────┴───────────┴────────────────┴───────────────┴────────┴───────┴──────┘
//! ```

#![deny(clippy::arithmetic_side_effects)]

use std::ops::Range;

use crate::content_id::SectionId;
use crate::error::{BundlePart, Error};
use crate::manifest::Section;

/// The first bytes of every bundle, for ever.
pub const MAGIC: [u8; 8] = *b"HEGBNDL\0";

/// Version of the layout that is written, and the newest version that is read.
pub const FORMAT_VERSION: u32 = 1;

/// Sections start at multiples of this many bytes: no two share a page, and blobs start at whole ones, which OpenVINO's
/// NPU plugin requires of memory that it imports. Weights need no more than the alignment of their elements: a device is
/// lent the mapped file as a whole, once.
pub const ALIGNMENT: u64 = 4096;

/// Length of the header page, and so the offset of the manifest.
pub const HEADER_BYTES: usize = 4096;

/// Longest manifest that is read or written. Chosen, not measured: a thousand times a usual one.
pub const MANIFEST_BYTES_MAX: u64 = 256 << 20;

const VERSION: Range<usize> = 8..12;
const HEADER_LENGTH: Range<usize> = 12..16;
const FILE_LENGTH: Range<usize> = 16..24;
const MANIFEST_OFFSET: Range<usize> = 24..32;
const MANIFEST_LENGTH: Range<usize> = 32..40;
const MANIFEST_HASH: Range<usize> = 40..72;
const HEADER_HASH: Range<usize> = 72..104;
/// The prefix that every version of the format shares: magic, version, length of the header.
const STABLE_PREFIX: usize = HEADER_LENGTH.end;

const _: () = {
    assert!(VERSION.start == MAGIC.len());
    assert!(HEADER_HASH.start == MANIFEST_HASH.end);
    assert!(HEADER_HASH.end <= HEADER_BYTES);
    assert!((HEADER_BYTES as u64).is_multiple_of(ALIGNMENT));
    assert!(ALIGNMENT.is_power_of_two());
};

/// The variable fields of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Length of the whole file, in bytes.
    pub(crate) file_bytes: u64,
    /// Length of the manifest without padding, in bytes.
    pub(crate) manifest_bytes: u64,
    /// blake3 of the manifest.
    pub(crate) manifest_id: SectionId,
}

impl Header {
    /// The header page.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut page = [0; HEADER_BYTES];
        page[..MAGIC.len()].copy_from_slice(&MAGIC);
        page[VERSION].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        page[HEADER_LENGTH].copy_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
        page[FILE_LENGTH].copy_from_slice(&self.file_bytes.to_le_bytes());
        page[MANIFEST_OFFSET].copy_from_slice(&(HEADER_BYTES as u64).to_le_bytes());
        page[MANIFEST_LENGTH].copy_from_slice(&self.manifest_bytes.to_le_bytes());
        page[MANIFEST_HASH].copy_from_slice(self.manifest_id.as_bytes());
        let hash = SectionId::of(&page[..HEADER_HASH.start]);
        page[HEADER_HASH].copy_from_slice(hash.as_bytes());
        page
    }

    /// Reads the header of a whole file and checks magic, version, checksum, zero padding, the length of the file, and
    /// that the manifest is within the file and within [`MANIFEST_BYTES_MAX`]. Does not look at the manifest itself.
    pub(crate) fn decode(file: &[u8]) -> Result<Self, Error> {
        let header = Self::decode_page(file)?;
        header.check_lengths(file.len() as u64)?;
        Ok(header)
    }

    /// Reads the header of a file's first bytes up to its first section, with the same checks; the file has the length
    /// that the header says.
    pub(crate) fn decode_head(head: &[u8]) -> Result<Self, Error> {
        let header = Self::decode_page(head)?;
        header.check_lengths(header.file_bytes)?;
        check_file_bytes(header.head_bytes(), head.len() as u64)?;
        Ok(header)
    }

    /// Length of header, manifest and the padding behind it: the offset of the first section.
    pub(crate) fn head_bytes(&self) -> u64 {
        let end = (HEADER_BYTES as u64).checked_add(self.manifest_bytes);
        end.and_then(align_up).unwrap_or(u64::MAX)
    }

    fn decode_page(file: &[u8]) -> Result<Self, Error> {
        let found = file.len() as u64;
        let prefix = file.get(..MAGIC.len()).unwrap_or(file);
        if !MAGIC.starts_with(prefix) {
            return Err(Error::NotABundle {
                found: prefix.to_vec(),
                expected: &MAGIC,
            });
        }
        let truncated = Error::Truncated {
            expected: HEADER_BYTES as u64,
            found,
        };
        if file.len() < STABLE_PREFIX {
            return Err(truncated);
        }
        check_version(u32_at(file, VERSION))?;
        let Some(page) = file.get(..HEADER_BYTES) else {
            return Err(truncated);
        };
        check_hash(page)?;
        check_field(
            "header bytes",
            u32_at(page, HEADER_LENGTH).into(),
            HEADER_BYTES as u64,
        )?;
        check_field(
            "manifest offset",
            u64_at(page, MANIFEST_OFFSET),
            HEADER_BYTES as u64,
        )?;
        check_zero(&page[HEADER_HASH.end..], HEADER_HASH.end as u64, || {
            BundlePart::Header
        })?;
        Ok(Self {
            file_bytes: u64_at(page, FILE_LENGTH),
            manifest_bytes: u64_at(page, MANIFEST_LENGTH),
            manifest_id: id_at(page, MANIFEST_HASH),
        })
    }

    /// The manifest within the file, without padding.
    pub(crate) fn manifest_range(&self) -> Result<Range<usize>, Error> {
        let end = (HEADER_BYTES as u64).checked_add(self.manifest_bytes);
        let end = end
            .and_then(|end| usize::try_from(end).ok())
            .ok_or(Error::TooLarge {
                what: "the manifest",
                found: self.manifest_bytes,
                supported: MANIFEST_BYTES_MAX,
            })?;
        Ok(HEADER_BYTES..end)
    }

    fn check_lengths(&self, found: u64) -> Result<(), Error> {
        check_file_bytes(self.file_bytes, found)?;
        if self.manifest_bytes > MANIFEST_BYTES_MAX {
            return Err(Error::Header {
                field: "manifest bytes",
                found: self.manifest_bytes,
                expected: format!("at most `{MANIFEST_BYTES_MAX}`"),
            });
        }
        let end = (HEADER_BYTES as u64)
            .checked_add(self.manifest_bytes)
            .and_then(align_up);
        match end {
            Some(end) if end <= found => Ok(()),
            Some(_) | None => Err(Error::Header {
                field: "manifest bytes",
                found: self.manifest_bytes,
                expected: format!("at most what is in the file's `{found}`"),
            }),
        }
    }
}

/// One section's place in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Position of the first byte; a multiple of [`ALIGNMENT`].
    pub(crate) offset: u64,
    /// Length without padding.
    pub(crate) bytes: u64,
}

impl Extent {
    /// The bytes without padding. Only for extents from [`place`], whose ends were checked.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.bytes)
    }

    /// The padding after the bytes.
    pub(crate) fn padding(&self) -> Range<u64> {
        let end = self.range().end;
        end..align_up(end).unwrap_or(end)
    }
}

/// Places sections after a manifest, in their order. Also returns the length of the whole file.
///
/// Errors: [`Error::TooLarge`] when the sum does not fit.
pub(crate) fn place(
    manifest_bytes: u64,
    sections: &[Section],
) -> Result<(Vec<Extent>, u64), Error> {
    let too_large = |found| Error::TooLarge {
        what: "the bundle",
        found,
        supported: i64::MAX as u64,
    };
    let mut offset = (HEADER_BYTES as u64)
        .checked_add(manifest_bytes)
        .and_then(align_up)
        .ok_or_else(|| too_large(manifest_bytes))?;
    let mut extents = Vec::with_capacity(sections.len());
    for section in sections {
        extents.push(Extent {
            offset,
            bytes: section.bytes,
        });
        offset = offset
            .checked_add(section.bytes)
            .and_then(align_up)
            .filter(|end| *end <= i64::MAX as u64)
            .ok_or_else(|| too_large(u64::MAX))?;
    }
    Ok((extents, offset))
}

/// The next multiple of [`ALIGNMENT`], or the number itself if it is one.
pub(crate) fn align_up(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

/// Checks that a file has exactly the expected length.
pub(crate) fn check_file_bytes(expected: u64, found: u64) -> Result<(), Error> {
    if found < expected {
        return Err(Error::Truncated { expected, found });
    }
    if found > expected {
        return Err(Error::TooLong { expected, found });
    }
    Ok(())
}

/// Checks that the padding that begins at `offset` of the file is zero.
pub(crate) fn check_zero(
    padding: &[u8],
    offset: u64,
    part: impl FnOnce() -> BundlePart,
) -> Result<(), Error> {
    match padding.iter().zip(offset..).find(|(byte, _)| **byte != 0) {
        None => Ok(()),
        Some((&found, offset)) => Err(Error::Padding {
            part: part(),
            offset,
            found,
        }),
    }
}

/// Writes a header that matches the rest of the file: for fuzzing and tests that want to get past the hashes. Keeps the
/// manifest's length if it fits into the file. Leaves files shorter than a header alone.
#[doc(hidden)]
pub fn reseal(file: &mut [u8]) {
    let file_bytes = file.len() as u64;
    if file.len() < HEADER_BYTES {
        return;
    }
    let manifest_bytes =
        u64_at(file, MANIFEST_LENGTH).min(file_bytes.saturating_sub(HEADER_BYTES as u64));
    let header = Header {
        file_bytes,
        manifest_bytes,
        manifest_id: SectionId::of(b""),
    };
    let Ok(range) = header.manifest_range() else {
        return;
    };
    let manifest_id = SectionId::of(file.get(range).unwrap_or_default());
    file[..HEADER_BYTES].copy_from_slice(
        &Header {
            manifest_id,
            ..header
        }
        .encode(),
    );
}

/// Returns a file with `manifest` as its manifest, right hashes, and `section_bytes` zeros as its sections: for fuzzing
/// the checks behind the hashes without mutating the padding.
#[doc(hidden)]
pub fn wrap(manifest: &[u8], section_bytes: usize) -> Vec<u8> {
    let manifest_bytes = manifest.len() as u64;
    let mut file = Header {
        file_bytes: 0,
        manifest_bytes,
        manifest_id: SectionId::of(b""),
    }
    .encode()
    .to_vec();
    file.extend_from_slice(manifest);
    file.resize(file.len().next_multiple_of(HEADER_BYTES), 0);
    file.resize(file.len().saturating_add(section_bytes), 0);
    reseal(&mut file);
    file
}

fn check_version(found: u32) -> Result<(), Error> {
    if found == 0 {
        let expected = format!("`1` to `{FORMAT_VERSION}`");
        return Err(Error::Header {
            field: "format version",
            found: 0,
            expected,
        });
    }
    if found > FORMAT_VERSION {
        return Err(Error::TooNew {
            part: BundlePart::FormatVersion,
            found,
            supported: FORMAT_VERSION,
        });
    }
    Ok(())
}

fn check_hash(page: &[u8]) -> Result<(), Error> {
    let expected = id_at(page, HEADER_HASH);
    let found = SectionId::of(&page[..HEADER_HASH.start]);
    if found == expected {
        return Ok(());
    }
    Err(Error::Corrupt {
        part: BundlePart::Header,
        expected,
        found,
    })
}

fn check_field(field: &'static str, found: u64, expected: u64) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Header {
        field,
        found,
        expected: format!("`{expected}`"),
    })
}

/// Returns the `N` bytes at `range`. Callers have checked that `page` is long enough; missing bytes read as zeros, so
/// that no caller's mistake can panic.
fn array_at<const N: usize>(page: &[u8], range: Range<usize>) -> [u8; N] {
    page.get(range)
        .and_then(|bytes| bytes.try_into().ok())
        .unwrap_or([0; N])
}

fn u32_at(page: &[u8], range: Range<usize>) -> u32 {
    u32::from_le_bytes(array_at(page, range))
}

fn u64_at(page: &[u8], range: Range<usize>) -> u64 {
    u64::from_le_bytes(array_at(page, range))
}

fn id_at(page: &[u8], range: Range<usize>) -> SectionId {
    SectionId::from_bytes(array_at(page, range))
}
