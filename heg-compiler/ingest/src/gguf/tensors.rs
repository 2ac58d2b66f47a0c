//! The descriptions of a GGUF file's tensors, with all their checks.
//!
//! A description is a name (string), u32 count of dimensions, u64 dimensions (fastest first), u32 type, u64 offset in
//! the data; the data begin at the next multiple of `general.alignment`. Every accepted tensor is inside the file, is
//! as long as shape and type require, and overlaps with no other.

#![deny(clippy::arithmetic_side_effects)]

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::error::IngestError;
use super::super::header::element_count;
use super::element_type::{KNOWN, RowFormat, shown};
use super::metadata::Metadata;
use super::mistake::GgufMistake;
use super::reader::Reader;

/// A tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) format: RowFormat,
    /// Dimensions, slowest first, as everywhere else.
    pub(super) shape: Vec<usize>,
    /// Position in the file.
    pub(super) bytes: Range<usize>,
}

/// The tensors of a file by name, and the offset of their data.
pub(super) struct Tensors {
    pub(super) by_name: BTreeMap<String, Described>,
    pub(super) data_start: usize,
}

impl Tensors {
    /// Reads and checks all descriptions.
    pub(super) fn read(metadata: &Metadata<'_>, file: &[u8]) -> Result<Self, IngestError> {
        let mut reader = Reader::new(metadata.path(), file);
        reader.at = metadata.tensors_start;
        reader.room(metadata.tensor_count, TENSOR_BYTES_MIN, "tensors")?;
        reader.limit(metadata.tensor_count, TENSORS_MAX, "tensors")?;
        let mut raw = BTreeMap::new();
        for _ in 0..metadata.tensor_count {
            let at = reader.at;
            let (name, described) = Raw::read(&mut reader)?;
            if raw.insert(name.to_owned(), described).is_some() {
                let tensor = name.to_owned();
                return Err(reader.error_at(at, GgufMistake::TensorTwice { tensor }));
            }
        }
        let alignment = alignment(metadata)?;
        let data_start = reader
            .at
            .checked_next_multiple_of(alignment)
            .unwrap_or(usize::MAX);
        let mut by_name = BTreeMap::new();
        for (name, raw) in raw {
            let described = raw.placed(&reader, &name, (data_start, alignment), file.len())?;
            by_name.insert(name, described);
        }
        check_overlaps(metadata, &by_name)?;
        Ok(Self {
            by_name,
            data_start,
        })
    }
}

/// A description as read.
struct Raw {
    format: RowFormat,
    shape: Vec<usize>,
    /// Bytes of the data, from shape and type.
    bytes: usize,
    /// Offset in the data.
    offset: u64,
    /// Offset of the description in the file, for messages.
    at: usize,
}

impl Raw {
    fn read<'a>(reader: &mut Reader<'a, '_>) -> Result<(&'a str, Self), IngestError> {
        let at = reader.at;
        let name = reader.name("the name of a tensor", NAME_BYTES_MAX)?;
        let dimensions = reader.u32("a tensor's description")?;
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            let mistake = GgufMistake::Dimensions {
                tensor: name.to_owned(),
                found: dimensions,
            };
            return Err(reader.error_at(at, mistake));
        }
        let mut found = Vec::new();
        for _ in 0..dimensions {
            found.push(reader.u64("a tensor's description")?);
        }
        found.reverse();
        let number = reader.u32("a tensor's description")?;
        let offset = reader.u64("a tensor's description")?;
        let format = RowFormat::of_number(number).ok_or_else(|| {
            let mistake = GgufMistake::TensorType {
                tensor: name.to_owned(),
                found: shown(number),
                expected: KNOWN,
            };
            reader.error_at(at, mistake)
        })?;
        let (shape, bytes) = sized(&found, format).map_err(|reason| {
            let tensor = name.to_owned();
            reader.error_at(
                at,
                GgufMistake::Shape {
                    tensor,
                    shape: found,
                    format,
                    reason,
                },
            )
        })?;
        let described = Self {
            format,
            shape,
            bytes,
            offset,
            at,
        };
        Ok((name, described))
    }

    fn placed(
        self,
        reader: &Reader<'_, '_>,
        name: &str,
        (data_start, alignment): (usize, usize),
        file_bytes: usize,
    ) -> Result<Described, IngestError> {
        let tensor = name.to_owned();
        let start = usize::try_from(self.offset).ok();
        if !start.is_some_and(|start| start.is_multiple_of(alignment)) {
            let mistake = GgufMistake::Offset {
                tensor,
                found: self.offset,
                alignment: alignment as u64,
            };
            return Err(reader.error_at(self.at, mistake));
        }
        let start = start.and_then(|start| start.checked_add(data_start));
        let end = start.and_then(|start| start.checked_add(self.bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_bytes => Ok(Described {
                format: self.format,
                shape: self.shape,
                bytes: start..end,
            }),
            _ => Err(reader.error_at(
                self.at,
                GgufMistake::TensorEnds {
                    tensor,
                    end: u128::from(self.offset)
                        .saturating_add(data_start as u128)
                        .saturating_add(self.bytes as u128),
                    file_bytes: file_bytes as u64,
                },
            )),
        }
    }
}

/// The shape as usizes and its size in bytes, or the reason why it is invalid.
fn sized(found: &[u64], format: RowFormat) -> Result<(Vec<usize>, usize), &'static str> {
    const ABSURD: &str = "which is no possible number of bytes";
    let shape: Option<Vec<usize>> = found.iter().map(|dim| usize::try_from(*dim).ok()).collect();
    let shape = shape.ok_or(ABSURD)?;
    if shape.contains(&0) {
        return Err("expected dimensions of at least 1");
    }
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(format.block_elements()) {
        return Err("whose rows do not divide into blocks");
    }
    let packed = matches!(format, RowFormat::Blocks(_));
    if packed && shape.len() < 2 {
        return Err("expected F32, F16 or BF16 for a tensor of one dimension");
    }
    if packed && row > ROW_ELEMENTS_MAX {
        return Err("whose rows are longer than is read");
    }
    let elements = element_count(&shape).ok_or(ABSURD)?;
    let bytes = elements
        .checked_div(format.block_elements())
        .and_then(|blocks| blocks.checked_mul(format.block_bytes()));
    Ok((shape, bytes.ok_or(ABSURD)?))
}

/// `general.alignment`: a power of two.
fn alignment(metadata: &Metadata<'_>) -> Result<usize, IngestError> {
    let Some(found) = metadata.u32(ALIGNMENT)? else {
        return Ok(ALIGNMENT_DEFAULT);
    };
    usize::try_from(found)
        .ok()
        .filter(|bytes| bytes.is_power_of_two() && *bytes <= ALIGNMENT_MAX)
        .ok_or_else(|| metadata.wrong(ALIGNMENT, "a power of two of at most 65536"))
}

/// Checks that no two tensors share bytes.
fn check_overlaps(
    metadata: &Metadata<'_>,
    by_name: &BTreeMap<String, Described>,
) -> Result<(), IngestError> {
    let mut in_order: Vec<_> = by_name.iter().collect();
    in_order.sort_by_key(|(_, described)| described.bytes.start);
    for pair in in_order.windows(2) {
        if let [(a, first), (b, second)] = pair
            && second.bytes.start < first.bytes.end
        {
            return Err(IngestError::Overlap {
                path: metadata.path().to_owned(),
                a: (*a).clone(),
                b: (*b).clone(),
            });
        }
    }
    Ok(())
}

const ALIGNMENT: &str = "general.alignment";

/// Alignment of a file without that key (format).
const ALIGNMENT_DEFAULT: usize = 32;

/// Largest alignment. Chosen: the largest page of the systems that we build on.
const ALIGNMENT_MAX: usize = 1 << 16;

/// Smallest size of a description: an empty name, one dimension, a type, an offset (format).
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;

/// Largest number of tensors. Chosen, as for a safetensors header.
const TENSORS_MAX: u64 = 1 << 18;

/// Longest name (ggml: 63 bytes). Chosen, as for safetensors.
const NAME_BYTES_MAX: u64 = 1024;

/// Most dimensions of a tensor (ggml).
const DIMENSIONS_MAX: u32 = 4;

/// Longest row that is decoded whole: 4 MiB of f32. Chosen; rows of published models stay below 65 536.
const ROW_ELEMENTS_MAX: usize = 1 << 20;
