//! The KV cache of one sequence: per layer, K and V as contiguous rows [token, K·d].
//!
//! The `qkv` kernel writes its keys and values straight into rows [n, n + c), and `mha` reads rows [0, n + c)
//! of the same memory. Room for the longest context is reserved, and committed as it is written.
//!
//! **Invariants**
//! - Rows below `tokens` hold keys and values of the sequence; rows above hold anything.
//! - A static kernel may write, and an attention may read, up to `padding_rows` rows past the longest context:
//!   they are reserved too, and hold finite numbers, since nothing but kernels writes here.

use std::io::{self, Read, Write};
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

    /// Gives back the memory of the rows from `tokens` on, which nobody wants any more and no kernel runs on.
    pub(crate) fn discard(&self, tokens: usize) {
        for (layer, half) in self.halves() {
            let end = self.offset(layer, half, 0) + self.shape.half_bytes();
            self.region.discard(self.offset(layer, half, tokens)..end);
        }
    }

    /// Writes the first `tokens` rows of every half of every layer, one after the other.
    pub(crate) fn save(&self, tokens: usize, to: &mut impl Write) -> io::Result<()> {
        let mut rows = vec![0; tokens * self.shape.row_bytes()];
        for (layer, half) in self.halves() {
            if !self.region.read(self.offset(layer, half, 0), &mut rows) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            to.write_all(&rows)?;
        }
        Ok(())
    }

    /// Reads what [`save`](Self::save) wrote for as many tokens.
    pub(crate) fn restore(&self, tokens: usize, from: &mut impl Read) -> io::Result<()> {
        let mut rows = vec![0; tokens * self.shape.row_bytes()];
        for (layer, half) in self.halves() {
            from.read_exact(&mut rows)?;
            if !self.region.write(self.offset(layer, half, 0), &rows) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        Ok(())
    }

    fn halves(&self) -> impl Iterator<Item = (usize, Half)> {
        (0..self.shape.layers).flat_map(|layer| [(layer, Half::Keys), (layer, Half::Values)])
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn discarded_rows_are_zeros_and_the_others_stay() {
        let shape = KvShape {
            layers: 2,
            width: 64,
            context_tokens: 1000,
            padding_rows: 0,
            element: ElementType::F32,
        };
        let cache = KvCache::reserve(shape).unwrap();
        let ones = vec![1; 1000 * shape.token_bytes()];
        cache.restore(1000, &mut ones.as_slice()).unwrap();
        cache.discard(300);
        let mut rows = Vec::new();
        cache.save(1000, &mut rows).unwrap();
        for half in rows.chunks(1000 * shape.row_bytes()) {
            let (kept, others) = half.split_at(300 * shape.row_bytes());
            assert!(kept.iter().all(|byte| *byte == 1));
            // The page of the last row that is kept stays, whatever its size.
            let page = rustix::param::page_size().min(others.len());
            assert!(others[page..].iter().all(|byte| *byte == 0));
        }
    }
}
