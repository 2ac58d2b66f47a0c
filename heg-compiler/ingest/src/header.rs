//! The header of one safetensors file, with all its checks.
//!
//! The format: u64 little-endian length `n` · `n` bytes of JSON, name to {dtype, shape, data_offsets} · tensor bytes
//! without gap. The words (`Dtype`, `TensorInfo`) are those of the `safetensors` crate; the parser is ours, because the
//! crate's `read_metadata` (0.8) lets the last of two equal names win, overflows on the sum of foreign offsets (a panic
//! in debug builds), and does not report which tensor broke which rule. A test compares the two: a file accepted here
//! is accepted there, with equal tensors.

#![deny(clippy::arithmetic_side_effects)]

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::path::Path;

use ::safetensors::Dtype;
use ::safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::error::IngestError;

/// One tensor of a file. Invariants: `bytes` is inside the file and exactly as long as shape and type require; all
/// entries of a file together cover its data once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// The type of its elements.
    pub dtype: Dtype,
    /// The tensor's shape: elements in each dimension.
    pub shape: Vec<usize>,
    /// Position in the file, not in its data part.
    pub bytes: Range<usize>,
}

/// Reads and checks the header of a whole file's bytes, which may be a map: only the header is touched. `path` is for
/// messages. This is the entry point for fuzzing.
pub fn check_header(
    path: &Path,
    file: &[u8],
) -> Result<BTreeMap<String, TensorEntry>, IngestError> {
    // Copied, so that the checked bytes are the ones in use even if the file changes meanwhile.
    let header = header_bytes(path, file)?.to_vec();
    let parsed: Result<RawHeader, _> = serde_json::from_slice(&header);
    let raw = parsed.map_err(|error| IngestError::Header {
        path: path.to_owned(),
        message: error.to_string(),
    })?;
    let data_start = LENGTH_BYTES.saturating_add(header.len());
    check_layout(path, raw.tensors, data_start, file.len())
}

/// The JSON part of the file.
fn header_bytes<'a>(path: &Path, file: &'a [u8]) -> Result<&'a [u8], IngestError> {
    let truncated = |expected_bytes| IngestError::Truncated {
        path: path.to_owned(),
        expected_bytes,
        found_bytes: file.len() as u64,
    };
    let (length, rest) = file
        .split_first_chunk::<LENGTH_BYTES>()
        .ok_or_else(|| truncated(LENGTH_BYTES as u64))?;
    if file.starts_with(LFS_POINTER) {
        return Err(IngestError::LfsPointer {
            path: path.to_owned(),
        });
    }
    let found_bytes = u64::from_le_bytes(*length);
    if found_bytes > HEADER_BYTES_MAX {
        return Err(IngestError::HeaderTooLong {
            path: path.to_owned(),
            found_bytes,
            limit_bytes: HEADER_BYTES_MAX,
        });
    }
    usize::try_from(found_bytes)
        .ok()
        .and_then(|bytes| rest.get(..bytes))
        .ok_or_else(|| truncated(found_bytes.saturating_add(LENGTH_BYTES as u64)))
}

/// Walks the tensors in the order of their bytes: each starts where the one before it ends, is as long as its shape and
/// type require, and the last ends with the file.
fn check_layout(
    path: &Path,
    raw: BTreeMap<String, TensorInfo>,
    data_start: usize,
    file_bytes: usize,
) -> Result<BTreeMap<String, TensorEntry>, IngestError> {
    let mut in_order: Vec<(&String, &TensorInfo)> = raw.iter().collect();
    in_order.sort_by_key(|(_, info)| info.data_offsets);
    let mut cursor = 0_usize;
    let mut before = "";
    for (tensor, info) in in_order {
        let (start, end) = info.data_offsets;
        check_tensor(path, tensor, info)?;
        if start < cursor {
            return Err(IngestError::Overlap {
                path: path.to_owned(),
                a: before.to_owned(),
                b: tensor.clone(),
            });
        }
        if start > cursor {
            return Err(IngestError::Hole {
                path: path.to_owned(),
                tensor: tensor.clone(),
                expected_bytes: cursor as u64,
                found_bytes: start as u64,
            });
        }
        cursor = end;
        before = tensor;
    }
    check_end(path, data_start, cursor, file_bytes)?;
    let entries = raw.into_iter().map(|(tensor, info)| {
        let (start, end) = info.data_offsets;
        // No overflow: `check_end` made sure that the largest of these sums is the file's length.
        let bytes = data_start.saturating_add(start)..data_start.saturating_add(end);
        let entry = TensorEntry {
            dtype: info.dtype,
            shape: info.shape,
            bytes,
        };
        (tensor, entry)
    });
    Ok(entries.collect())
}

/// Checks shape × type against the tensor's number of bytes.
fn check_tensor(path: &Path, tensor: &str, info: &TensorInfo) -> Result<(), IngestError> {
    let (start, end) = info.data_offsets;
    let found = end
        .checked_sub(start)
        .ok_or_else(|| IngestError::Backwards {
            path: path.to_owned(),
            tensor: tensor.to_owned(),
            start_bytes: start as u64,
            end_bytes: end as u64,
        })?;
    let expected =
        byte_length(&info.shape, info.dtype).ok_or_else(|| IngestError::ShapeAbsurd {
            path: path.to_owned(),
            tensor: tensor.to_owned(),
            dtype: info.dtype.to_string(),
            shape: info.shape.iter().copied().take(SHAPE_SHOWN).collect(),
        })?;
    if found == expected {
        return Ok(());
    }
    Err(IngestError::TensorBytes {
        path: path.to_owned(),
        tensor: tensor.to_owned(),
        expected_bytes: expected as u64,
        found_bytes: found as u64,
    })
}

/// Checks that the data end with the file.
fn check_end(
    path: &Path,
    data_start: usize,
    data_bytes: usize,
    file_bytes: usize,
) -> Result<(), IngestError> {
    let found_bytes = file_bytes as u64;
    let expected_bytes = (data_start as u64).saturating_add(data_bytes as u64);
    let path = path.to_owned();
    match expected_bytes.cmp(&found_bytes) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(IngestError::Truncated {
            path,
            expected_bytes,
            found_bytes,
        }),
        std::cmp::Ordering::Less => Err(IngestError::Trailing {
            path,
            expected_bytes,
            found_bytes,
        }),
    }
}

/// Bytes of a tensor; `None` if the product overflows or is not a whole number (types below a byte).
fn byte_length(shape: &[usize], dtype: Dtype) -> Option<usize> {
    let elements = element_count(shape)?;
    let bits = elements.checked_mul(dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits.checked_div(8)?)
}

/// Product of a shape; `None` if it overflows.
pub(super) fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().copied().try_fold(1, usize::checked_mul)
}

/// The header as parsed; its names are known to be distinct and printable.
struct RawHeader {
    tensors: BTreeMap<String, TensorInfo>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawHeaderVisitor)
    }
}

struct RawHeaderVisitor;

impl<'de> Visitor<'de> for RawHeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of tensor names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut tensors = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA_KEY {
                // Free text of the writer ("format": "pt"): checked for syntax, not used.
                map.next_value::<Option<HashMap<String, String>>>()?;
                continue;
            }
            if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
                return Err(A::Error::custom(
                    "a tensor name is too long or holds control characters",
                ));
            }
            let info = map.next_value::<TensorInfo>()?;
            if let Some(twice) = tensors.insert(name.clone(), info).map(|_| name) {
                return Err(A::Error::custom(format!("tensor `{twice}` occurs twice")));
            }
        }
        Ok(RawHeader { tensors })
    }
}

/// Size of the length field before the header (format).
const LENGTH_BYTES: usize = 8;

/// First bytes of a Git LFS pointer (git-lfs, docs/spec.md). As a length field they exceed every bound.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// Longest header, JSON included. The format allows 100 MB; a tensor takes about 120 bytes, so this has room for a
/// quarter of a million. Chosen.
pub const HEADER_BYTES_MAX: u64 = 32 << 20;

/// Longest tensor name. Chosen: published names stay below 200.
const NAME_BYTES_MAX: usize = 1024;

/// Dimensions shown in a message about a shape; a hostile shape may have millions.
const SHAPE_SHOWN: usize = 8;

/// The only key of the header that is not a tensor (format).
const METADATA_KEY: &str = "__metadata__";
