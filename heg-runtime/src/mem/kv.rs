//! The KV cache of one sequence: per layer, K and V as contiguous rows [token, K·d].
//!
//! The `qkv` kernel writes its keys and values straight into rows [n, n + c), and `mha` reads rows [0, n + c)
//! of the same memory. Room for the longest context is reserved, and committed as it is written.
//!
//! **Invariants**
//! - Rows below `tokens` hold keys and values of the sequence; rows above hold anything.
//! - A static kernel may write, and an attention may read, up to `padding_rows` rows past the longest context:
//!   they are reserved too, and hold finite numbers, since nothing but kernels writes here.

use std::sync::Arc;

use heg_openvino::{ElementType, Memory, Tensor};

use super::region::Region;
use crate::error::{RuntimeError, openvino};

/// Keys and values of one sequence.
pub struct KvCache {
    region: Arc<Region>,
    shape: KvShape,
    tokens: usize,
}

/// Which half of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Keys,
    Values,
}

/// Dimensions of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KvShape {
    pub(crate) layers: usize,
    /// K·d.
    pub(crate) width: usize,
    /// Longest context.
    pub(crate) context_tokens: usize,
    /// Rows reserved behind it.
    pub(crate) padding_rows: usize,
    pub(crate) element: ElementType,
}

impl KvShape {
    fn row_bytes(&self) -> usize {
        self.width * self.element.bytes()
    }

    /// Bytes that a token takes, all layers together.
    pub(crate) fn token_bytes(&self) -> usize {
        2 * self.layers * self.row_bytes()
    }

    /// Bytes of one half of one layer: whole pages, so that accelerators can import it (DESIGN §4.8).
    fn half_bytes(&self) -> usize {
        ((self.context_tokens + self.padding_rows) * self.row_bytes()).next_multiple_of(PAGE_BYTES)
    }
}

impl KvCache {
    pub(crate) fn reserve(shape: KvShape) -> Result<Self, RuntimeError> {
        let region = Region::reserve(2 * shape.layers * shape.half_bytes())?;
        Ok(Self {
            region: Arc::new(region),
            shape,
            tokens: 0,
        })
    }

    /// Tokens in the cache.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Forgets all tokens from `tokens` on; the rows are written anew when the sequence goes on.
    pub fn truncate(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens);
    }

    pub(crate) fn advance(&mut self, tokens: usize) {
        self.tokens += tokens;
    }

    /// Rows [first, first + count) of one half of a layer, as a tensor.
    pub(crate) fn rows(
        &self,
        layer: usize,
        half: Half,
        first: usize,
        count: usize,
    ) -> Result<Tensor, RuntimeError> {
        let memory: Arc<dyn Memory> = self.region.clone();
        let offset = self.offset(layer, half, first);
        Tensor::new(
            memory,
            offset,
            self.shape.element,
            &[count, self.shape.width],
        )
        .map_err(openvino("view of the KV cache"))
    }

    /// Writes one row of one half of a layer.
    pub(crate) fn write_row(
        &self,
        layer: usize,
        half: Half,
        row: usize,
        bytes: &[u8],
    ) -> Result<(), RuntimeError> {
        if self.region.write(self.offset(layer, half, row), bytes) {
            Ok(())
        } else {
            Err(RuntimeError::Context {
                asked: row + 1,
                context: self.shape.context_tokens,
            })
        }
    }

    fn offset(&self, layer: usize, half: Half, row: usize) -> usize {
        let half = match half {
            Half::Keys => 0,
            Half::Values => 1,
        };
        (2 * layer + half) * self.shape.half_bytes() + row * self.shape.row_bytes()
    }
}

const PAGE_BYTES: usize = 4096;
