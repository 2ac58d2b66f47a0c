//! A tensor of the checkpoint, as bytes with a shape.
//!
//! A view: it borrows the map and copies nothing. Fused projections (`qkv_proj`, `gate_up_proj`) are split with
//! [`SourceTensor::rows`], which gives views again. Numbers are decoded in `heg-quant`, not here. A tensor of a GGUF file
//! may be packed (`packing.rs`): its rows are then unpacked to f32, a few at a time.

use std::fmt;
use std::ops::Range;

use ::safetensors::Dtype;

use heg_artifacts::Mapping;

use super::error::IngestError;
use super::header::{TensorEntry, element_count};
use super::packing::Packing;

/// Number format of source weights. Other formats are refused when the tensor is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SourceDtype {
    /// IEEE 754 single precision: 4 bytes.
    F32,
    /// IEEE 754 half precision: 2 bytes.
    F16,
    /// bfloat16, the upper half of an `F32`: 2 bytes.
    Bf16,
}

impl SourceDtype {
    /// Bytes of one element.
    pub const fn element_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

impl fmt::Display for SourceDtype {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        })
    }
}

/// A tensor, or a range of its rows.
///
/// Invariants:
/// - `bytes` is as long as `shape` and `dtype` imply, little-endian, row-major, of any alignment; for a packed tensor
///   it is the whole stored tensor, also in a view of some rows, and `dtype` is the type of unpacked rows.
/// - A row is one index of the first dimension; a scalar is one row of one element.
#[derive(Debug, Clone)]
pub struct SourceTensor<'a> {
    name: &'a str,
    dtype: SourceDtype,
    shape: Vec<usize>,
    bytes: &'a [u8],
    /// Row of the stored tensor at which this view starts, for messages.
    row_start: usize,
    /// The map that `bytes` is part of, and its offset there.
    origin: Option<(&'a Mapping, usize)>,
    pub(crate) packing: Option<Packing>,
}

impl<'a> SourceTensor<'a> {
    /// Makes a tensor over bytes in memory.
    pub fn from_bytes(
        name: &'a str,
        dtype: SourceDtype,
        shape: Vec<usize>,
        bytes: &'a [u8],
    ) -> Result<Self, IngestError> {
        let expected =
            element_count(&shape).and_then(|elements| elements.checked_mul(dtype.element_bytes()));
        if expected != Some(bytes.len()) {
            return Err(IngestError::TensorBytes {
                path: name.into(),
                tensor: name.to_owned(),
                expected_bytes: expected.map_or(u64::MAX, |bytes| bytes as u64),
                found_bytes: bytes.len() as u64,
            });
        }
        Ok(Self {
            name,
            dtype,
            shape,
            bytes,
            row_start: 0,
            origin: None,
            packing: None,
        })
    }

    /// Makes a tensor whose rows have to be unpacked. `bytes` of the map have the length that shape and format require.
    pub fn packed(
        name: &'a str,
        packing: Packing,
        shape: Vec<usize>,
        (mapping, bytes): (&'a Mapping, Range<usize>),
    ) -> Self {
        Self {
            name,
            dtype: SourceDtype::F32,
            shape,
            bytes: mapping.get(bytes.clone()).unwrap_or_default(),
            row_start: 0,
            origin: Some((mapping, bytes.start)),
            packing: Some(packing),
        }
    }

    /// Makes a tensor of a file whose header was checked.
    pub(super) fn from_entry(
        name: &'a str,
        entry: &TensorEntry,
        mapping: &'a Mapping,
    ) -> Result<Self, IngestError> {
        let dtype = match entry.dtype {
            Dtype::F32 => SourceDtype::F32,
            Dtype::F16 => SourceDtype::F16,
            Dtype::BF16 => SourceDtype::Bf16,
            other => {
                return Err(IngestError::DtypeUnsupported {
                    tensor: name.to_owned(),
                    found: other.to_string(),
                    expected: "F32, F16 or BF16",
                });
            }
        };
        Self::mapped(
            name,
            dtype,
            entry.shape.clone(),
            (mapping, entry.bytes.clone()),
        )
    }

    /// Makes a tensor over bytes of a map.
    pub(super) fn mapped(
        name: &'a str,
        dtype: SourceDtype,
        shape: Vec<usize>,
        (mapping, bytes): (&'a Mapping, Range<usize>),
    ) -> Result<Self, IngestError> {
        let start = bytes.start;
        let bytes = mapping.get(bytes).unwrap_or_default();
        let mut tensor = Self::from_bytes(name, dtype, shape, bytes)?;
        tensor.origin = Some((mapping, start));
        Ok(tensor)
    }

    /// Name in the checkpoint.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Number format of the elements; for a packed tensor that of the unpacked ones.
    pub fn dtype(&self) -> SourceDtype {
        self.dtype
    }

    /// Elements in each dimension; for a packed tensor the unpacked ones.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The stored bytes: little-endian, row-major, not aligned.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Length of the first dimension; 1 for a scalar.
    pub fn row_count(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Elements of one row: the product of the other dimensions.
    pub fn row_elements(&self) -> usize {
        // No overflow unless another dimension is 0: then any result will do.
        element_count(self.shape.get(1..).unwrap_or_default()).unwrap_or(0)
    }

    /// Number of all elements.
    pub fn element_count(&self) -> usize {
        match self.packing {
            None => self.bytes.len() / self.dtype.element_bytes(),
            // No overflow: the tensor has its bytes.
            Some(_) => element_count(&self.shape).unwrap_or(0),
        }
    }

    /// Row of the stored tensor at which this view starts.
    pub fn row_start(&self) -> usize {
        self.row_start
    }

    /// The rows `range` of this view, without a copy. Used to split fused projections.
    pub fn rows(&self, range: Range<usize>) -> Result<Self, IngestError> {
        let rows = self.row_count();
        let row_bytes = self.row_elements().checked_mul(self.dtype.element_bytes());
        let slice = || {
            if self.packing.is_some() {
                return Some((0, self.bytes));
            }
            let row_bytes = row_bytes?;
            let start = range.start.checked_mul(row_bytes)?;
            let end = range.end.checked_mul(row_bytes)?;
            Some((start, self.bytes.get(start..end)?))
        };
        // The count is checked separately: rows without elements have bytes in any range.
        let (start, bytes) = slice()
            .filter(|_| range.start <= range.end && range.end <= rows)
            .ok_or_else(|| IngestError::RowRange {
                tensor: self.name.to_owned(),
                start: range.start,
                end: range.end,
                rows,
            })?;
        let mut shape = self.shape.clone();
        match shape.first_mut() {
            Some(first) => *first = range.len(),
            None => shape.push(range.len()),
        }
        Ok(Self {
            name: self.name,
            dtype: self.dtype,
            shape,
            bytes,
            row_start: self.row_start.saturating_add(range.start),
            origin: self
                .origin
                .map(|(mapping, offset)| (mapping, offset.saturating_add(start))),
            packing: self.packing,
        })
    }

    /// Makes a plain tensor over unpacked rows of this one.
    pub fn over<'b>(&'b self, rows: Range<usize>, unpacked: &'b [u8]) -> SourceTensor<'b> {
        let mut shape = self.shape.clone();
        match shape.first_mut() {
            Some(first) => *first = rows.len(),
            None => shape.push(rows.len()),
        }
        SourceTensor {
            name: self.name,
            dtype: self.dtype,
            shape,
            bytes: unpacked,
            row_start: self.row_start.saturating_add(rows.start),
            origin: None,
            packing: None,
        }
    }

    /// Fails unless the shape is `expected`; returns the tensor, for chaining.
    pub fn expect_shape(self, expected: &[usize]) -> Result<Self, IngestError> {
        if self.shape == expected {
            return Ok(self);
        }
        Err(IngestError::ShapeMismatch {
            tensor: self.name.to_owned(),
            found: self.shape,
            expected: expected.to_vec(),
        })
    }

    /// Gives back the source pages of a byte range of this view, after use. Reading them again is correct, only slower;
    /// on a buffer this does nothing.
    pub fn advise_done(&self, range: Range<usize>) {
        if let Some((mapping, offset)) = self.origin {
            let end = range.end.min(self.bytes.len());
            // Whole pages only, so that neighbours keep theirs.
            let start = offset
                .saturating_add(range.start)
                .next_multiple_of(PAGE_BYTES_MAX);
            let end = offset.saturating_add(end) / PAGE_BYTES_MAX * PAGE_BYTES_MAX;
            // Only advice: if it is refused, pages stay.
            let _ = mapping.give_back(start as u64..end as u64);
        }
    }
}

/// The largest page of the systems that we build on (arm64 Linux: 64 KiB). Ranges to be given back are rounded inwards
/// to it.
const PAGE_BYTES_MAX: usize = 64 * 1024;
