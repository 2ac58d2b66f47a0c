//! Dimensions of KV caches, and the memory that they take.

use std::io;

use heg_openvino::TensorType;

use super::kv::Half;
use crate::error::ExecError;

/// Dimensions of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// Elements of a row: K·d, and where they are i8, as many more as their scales have bytes.
    pub width: usize,
    /// Tokens of the longest context.
    pub context_tokens: usize,
    /// Rows reserved behind the longest context.
    pub padding_rows: usize,
    /// Element type of keys and values.
    pub element: TensorType,
}

impl KvShape {
    /// Bytes of address space that a cache takes; `None` if that does not fit an address space. Sizes of smaller
    /// parts need no check of their own.
    fn checked_bytes(&self) -> Option<usize> {
        let row_bytes = self.width.checked_mul(self.element.bytes())?;
        let rows = self.context_tokens.checked_add(self.padding_rows)?;
        let half_bytes = rows.checked_mul(row_bytes)?;
        let half_bytes = half_bytes.checked_next_multiple_of(PAGE_BYTES)?;
        let halves = self.layers.checked_mul(2)?;
        let bytes = halves.checked_mul(half_bytes)?;
        isize::try_from(bytes).ok().map(isize::cast_unsigned)
    }

    /// Checks that a cache of this shape can exist; returns its bytes of address space.
    ///
    /// # Errors
    ///
    /// [`ExecError::Reserve`] if it cannot.
    pub fn check(&self) -> Result<usize, ExecError> {
        self.checked_bytes().ok_or_else(|| ExecError::Reserve {
            bytes: usize::MAX,
            source: io::ErrorKind::OutOfMemory.into(),
        })
    }

    /// Bytes of a row of keys, or of values.
    pub fn row_bytes(&self) -> usize {
        self.width * self.element.bytes()
    }

    /// The halves of all layers, in the order in which rows are saved.
    pub fn halves(&self) -> impl Iterator<Item = (usize, Half)> + use<> {
        (0..self.layers).flat_map(|layer| [(layer, Half::Keys), (layer, Half::Values)])
    }

    /// Bytes of a token, over all layers.
    pub fn token_bytes(&self) -> usize {
        2 * self.layers * self.row_bytes()
    }

    /// Bytes of memory that this number of tokens takes: whole pages in each half of each layer.
    pub fn resident_bytes(&self, tokens: usize) -> usize {
        2 * self.layers * (tokens * self.row_bytes()).next_multiple_of(PAGE_BYTES)
    }

    /// Bytes of one half of one layer: whole pages, so that accelerators can import it (DESIGN §4.8).
    pub(super) fn half_bytes(&self) -> usize {
        ((self.context_tokens + self.padding_rows) * self.row_bytes()).next_multiple_of(PAGE_BYTES)
    }
}

const PAGE_BYTES: usize = 4096;
