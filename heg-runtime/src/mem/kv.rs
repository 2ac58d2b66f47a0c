//! The KV cache of one sequence: per layer, K and V as contiguous rows [token, K·d].
//!
//! The `qkv` kernel writes its keys and values straight into rows [n, n + c), and `mha` reads rows [0, n + c)
//! of the same memory. Room for the longest context is reserved, and committed as it is written.
//!
//! **Invariants**
//! - Rows below `tokens` hold keys and values of the sequence; rows above are unspecified.
//! - Kernels may run on any `KvCache`: a cache that is still on flash is of another type, and reading it gives a
//!   `KvCache`.
//! - A static kernel may write, and an attention may read, up to `padding_rows` rows past the longest context:
//!   they are reserved too, and hold finite numbers, because only kernels write here.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use heg_openvino::{Memory, Tensor, TensorType};

use super::program_rows::{ProgramRows, program_rows};
use super::region::Region;
use crate::error::{RuntimeError, openvino};

/// Keys and values of one sequence.
pub struct KvCache {
    region: Arc<Region>,
    shape: KvShape,
    tokens: usize,
}

/// Half of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Keys,
    Values,
}

/// Dimensions of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KvShape {
    pub(crate) layers: usize,
    /// Width of a row: K·d elements.
    pub(crate) width: usize,
    /// Tokens of the longest context.
    pub(crate) context_tokens: usize,
    /// Rows reserved behind the longest context.
    pub(crate) padding_rows: usize,
    pub(crate) element: TensorType,
}

impl KvShape {
    fn row_bytes(&self) -> usize {
        self.width * self.element.bytes()
    }

    /// Bytes that a token takes, all layers together.
    pub(crate) fn token_bytes(&self) -> usize {
        2 * self.layers * self.row_bytes()
    }

    /// Bytes of memory that so many tokens take: whole pages in each half of each layer.
    pub(crate) fn resident_bytes(&self, tokens: usize) -> usize {
        2 * self.layers * (tokens * self.row_bytes()).next_multiple_of(PAGE_BYTES)
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

    /// Drops all tokens from position `tokens` on; the next tokens overwrite their rows.
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

    /// Rows [first, first + count) of one half of a layer, for a CPU program.
    pub(crate) fn for_program(
        &self,
        layer: usize,
        half: Half,
        first: usize,
        count: usize,
    ) -> Result<ProgramRows<'_>, RuntimeError> {
        let start = self.offset(layer, half, 0);
        let limit = self.shape.context_tokens + self.shape.padding_rows;
        let rows = (first + count <= limit && layer < self.shape.layers)
            .then(|| program_rows(&*self.region, start, (first, count), self.shape.row_bytes()));
        rows.flatten().ok_or(RuntimeError::Context {
            asked: first + count,
            context: self.shape.context_tokens,
        })
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

    /// Copies the keys and values of a token to the row of an earlier one, in every layer.
    pub(crate) fn copy_row(&self, from: usize, to: usize) -> Result<(), RuntimeError> {
        let mut row = vec![0; self.shape.row_bytes()];
        for (layer, half) in self.halves() {
            if !self.region.read(self.offset(layer, half, from), &mut row) {
                return Err(RuntimeError::Context {
                    asked: from + 1,
                    context: self.shape.context_tokens,
                });
            }
            self.write_row(layer, half, to, &row)?;
        }
        Ok(())
    }

    /// A cache with the keys and values of the first `tokens` tokens in the last layer, and nothing else.
    pub(crate) fn last_layer(&self, tokens: usize) -> Result<Self, RuntimeError> {
        let copy = Self::reserve(self.shape)?;
        let mut rows = vec![0; tokens * self.shape.row_bytes()];
        for (layer, half) in self.halves().skip(2 * self.shape.layers.saturating_sub(1)) {
            if !self.region.read(self.offset(layer, half, 0), &mut rows) {
                return Err(RuntimeError::Context {
                    asked: tokens,
                    context: self.shape.context_tokens,
                });
            }
            copy.write_row(layer, half, 0, &rows)?;
        }
        Ok(copy)
    }

    /// Gives the memory of the rows from `tokens` on back to the system. No kernel may be running on them.
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

    /// Reads the first `tokens` rows of every half from what [`save`](Self::save) wrote for `saved` tokens.
    pub(crate) fn restore(
        &self,
        tokens: usize,
        saved: usize,
        from: &mut impl Read,
    ) -> io::Result<()> {
        let mut rows = vec![0; saved * self.shape.row_bytes()];
        let wanted = tokens.min(saved) * self.shape.row_bytes();
        for (layer, half) in self.halves() {
            from.read_exact(&mut rows)?;
            let rows = rows.get(..wanted).unwrap_or(&rows);
            if !self.region.write(self.offset(layer, half, 0), rows) {
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

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KvCache({} tokens)", self.tokens)
    }
}

const PAGE_BYTES: usize = 4096;

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_what_was_saved_is_restored_and_the_rest_stays_untouched() {
        let shape = KvShape {
            layers: 2,
            width: 3,
            context_tokens: 10,
            padding_rows: 0,
            element: TensorType::F32,
        };
        let saved: Vec<u8> = (0..10 * shape.token_bytes())
            .map(|at| at as u8 | 1)
            .collect();
        let cache = KvCache::reserve(shape).unwrap();
        cache.restore(4, 10, &mut saved.as_slice()).unwrap();
        let mut rows = Vec::new();
        cache.save(10, &mut rows).unwrap();
        let (read, untouched) = (4 * shape.row_bytes(), 10 * shape.row_bytes());
        for (found, expected) in rows.chunks(untouched).zip(saved.chunks(untouched)) {
            assert_eq!(found[..read], expected[..read]);
            assert!(found[read..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn memory_is_counted_in_pages_of_each_half() {
        let shape = KvShape {
            layers: 4,
            width: 96,
            context_tokens: 1000,
            padding_rows: 32,
            element: TensorType::F32,
        };
        assert_eq!(shape.resident_bytes(0), 0);
        assert_eq!(shape.resident_bytes(1), 8 * 4096);
        assert_eq!(shape.resident_bytes(11), 8 * 2 * 4096);
    }

    /// What the system says of a cache's mapping: kibibytes in memory, and its flags.
    fn mapping(cache: &KvCache) -> (usize, String) {
        let first = cache.region.as_ptr() as usize;
        let range = first..first + cache.region.len();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut inside, mut kibibytes, mut flags) = (false, 0, String::new());
        for line in maps.lines() {
            let bounds = line.split(' ').next().and_then(|word| word.split_once('-'));
            let bounds = bounds.and_then(|(from, to)| {
                let from = usize::from_str_radix(from, 16).ok()?;
                Some(from..usize::from_str_radix(to, 16).ok()?)
            });
            if let Some(bounds) = bounds {
                // Mappings that touch and are alike are shown as one.
                inside = bounds.start < range.end && range.start < bounds.end;
            } else if let (true, Some(rss)) = (inside, line.strip_prefix("Rss:")) {
                kibibytes += rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
            } else if let (true, Some(found)) = (inside, line.strip_prefix("VmFlags:")) {
                flags += found;
            }
        }
        (kibibytes, flags)
    }

    #[test]
    fn a_small_cache_takes_no_large_pages() {
        // A 1B model's: a half of a layer is 8 MiB, and two rows of it are half a page.
        let shape = KvShape {
            layers: 16,
            width: 512,
            context_tokens: 8192,
            padding_rows: 0,
            element: TensorType::Bf16,
        };
        let rows = vec![1; 2 * shape.token_bytes()];
        let cache = KvCache::reserve(shape).unwrap();
        cache.restore(2, 2, &mut rows.as_slice()).unwrap();
        let (taken, flags) = mapping(&cache);
        assert!(flags.split(' ').any(|flag| flag == "nh"), "{flags}");
        // As on a system that has them for everybody.
        let large = KvCache::reserve(shape).unwrap();
        large.region.ask_for_large_pages();
        large.restore(2, 2, &mut rows.as_slice()).unwrap();
        println!("{taken} KiB; with large pages {}", mapping(&large).0);
    }

    #[test]
    fn discarded_rows_are_zeros_and_the_others_stay() {
        let shape = KvShape {
            layers: 2,
            width: 64,
            context_tokens: 1000,
            padding_rows: 0,
            element: TensorType::F32,
        };
        let cache = KvCache::reserve(shape).unwrap();
        let ones = vec![1; 1000 * shape.token_bytes()];
        cache.restore(1000, 1000, &mut ones.as_slice()).unwrap();
        cache.discard(300);
        let mut rows = Vec::new();
        cache.save(1000, &mut rows).unwrap();
        for half in rows.chunks(1000 * shape.row_bytes()) {
            let (kept, others) = half.split_at(300 * shape.row_bytes());
            assert!(kept.iter().all(|byte| *byte == 1));
            // The page of the last row that is kept stays, whatever its size.
            let page = crate::platform::page_bytes().min(others.len());
            assert!(others[page..].iter().all(|byte| *byte == 0));
        }
    }
}
