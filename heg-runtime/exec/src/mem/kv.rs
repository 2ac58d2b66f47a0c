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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heg_gpu::{GpuCache, GpuDevice};
use heg_openvino::{Memory, Tensor};

use super::changes::Changes;
use super::home::MemoryHome;
use super::kv_shape::KvShape;
use super::program_rows::{ProgramRows, program_rows};
use super::region::Region;
use crate::error::{ExecError, openvino};

/// Keys and values of one sequence.
pub struct KvCache {
    pub(super) region: Arc<Region>,
    pub(super) shape: KvShape,
    tokens: usize,
    /// Its number among the caches of this process.
    number: u64,
    changes: Mutex<Changes>,
}

/// Stands for the content of a cache at a time: what was written since is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KvStamp {
    /// The cache.
    pub(crate) cache: u64,
    writes: u64,
}

/// Caches that were made so far.
static CACHES: AtomicU64 = AtomicU64::new(0);

/// Half of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The keys.
    Keys,
    /// The values.
    Values,
}

impl KvCache {
    /// Reserves address space for a cache.
    ///
    /// # Errors
    ///
    /// [`ExecError::Reserve`] if there is not enough.
    pub fn reserve(shape: KvShape) -> Result<Self, ExecError> {
        Ok(Self::over(Region::reserve(shape.check()?)?, shape))
    }

    /// Takes memory for a cache that a device knows: all of it, at once.
    ///
    /// # Errors
    ///
    /// [`ExecError::Reserve`] if there is not enough.
    pub(super) fn at(shape: KvShape, home: &MemoryHome) -> Result<Self, ExecError> {
        Ok(Self::over(Region::at(shape.check()?, home)?, shape))
    }

    fn over(region: Region, shape: KvShape) -> Self {
        Self {
            region: Arc::new(region),
            shape,
            tokens: 0,
            number: CACHES.fetch_add(1, Ordering::Relaxed),
            changes: Mutex::default(),
        }
    }

    /// Bytes of memory that it takes with this number of tokens in it: all of it, where a device knows it.
    pub(super) fn resident_bytes(&self, tokens: usize) -> usize {
        match self.is_known() {
            true => self.region.len(),
            false => self.shape.resident_bytes(tokens),
        }
    }

    /// Whether it was made where a device knows it.
    pub(super) fn is_known(&self) -> bool {
        matches!(*self.region, Region::Known(_) | Region::Gpu(_))
    }

    /// The cache as a GPU has it, if it is memory that the GPU works on, too.
    pub(crate) fn on_gpu(&self, device: &GpuDevice) -> Option<GpuCache> {
        match &*self.region {
            Region::Gpu(shared) if shared.is_on(device) => Some(GpuCache {
                region: shared.region().clone(),
                half_bytes: self.shape.half_bytes() as u64,
                rows: u32::try_from(self.shape.context_tokens + self.shape.padding_rows).ok()?,
            }),
            Region::Gpu(_) | Region::Known(_) | Region::Reserved(_) => None,
        }
    }

    /// Tokens that it has room for.
    pub(super) fn context_tokens(&self) -> usize {
        self.shape.context_tokens
    }

    /// The identity of the cache and of everything written to it. Rows that are handed out for work count as written.
    pub(crate) fn stamp(&self) -> KvStamp {
        KvStamp {
            cache: self.number,
            writes: self.changes().count(),
        }
    }

    /// The first row that may have been written since a stamp; `None` if none was.
    pub(crate) fn changed_since(&self, stamp: KvStamp) -> Option<usize> {
        match stamp.cache == self.number {
            true => self.changes().since(stamp.writes),
            false => Some(0),
        }
    }

    /// Notes that the rows from one on may have been written.
    pub(crate) fn note_write(&self, first: usize) {
        self.changes().note(first);
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of tokens in the cache.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Drops all tokens from position `tokens` on; the next tokens overwrite their rows.
    pub fn truncate(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens);
    }

    /// Adds tokens whose rows were written to the count.
    pub fn advance(&mut self, tokens: usize) {
        self.tokens += tokens;
    }

    /// Returns rows [first, first + count) of one half of a layer, as a tensor.
    pub fn rows(
        &self,
        layer: usize,
        half: Half,
        first: usize,
        count: usize,
    ) -> Result<Tensor, ExecError> {
        self.note_write(first);
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

    /// Returns rows [first, first + count) of one half of a layer, for a CPU program that writes them.
    pub fn for_program(
        &self,
        layer: usize,
        half: Half,
        first: usize,
        count: usize,
    ) -> Result<ProgramRows<'_>, ExecError> {
        self.note_write(first);
        self.read_by_program(layer, half, first, count)
    }

    /// Returns the same rows for a CPU program that only reads them.
    pub(crate) fn read_by_program(
        &self,
        layer: usize,
        half: Half,
        first: usize,
        count: usize,
    ) -> Result<ProgramRows<'_>, ExecError> {
        let start = self.offset(layer, half, 0);
        let limit = self.shape.context_tokens + self.shape.padding_rows;
        let rows = (first + count <= limit && layer < self.shape.layers)
            .then(|| program_rows(&*self.region, start, (first, count), self.shape.row_bytes()));
        rows.flatten().ok_or(ExecError::Context {
            asked: first + count,
            context: self.shape.context_tokens,
        })
    }

    /// Reads rows from `first` on of one half of a layer, as many as `into` has room for.
    ///
    /// # Errors
    ///
    /// [`ExecError::Context`] if it has no such rows.
    pub fn read_rows(
        &self,
        layer: usize,
        half: Half,
        first: usize,
        into: &mut [u8],
    ) -> Result<(), ExecError> {
        let row_bytes = self.shape.row_bytes().max(1);
        let end = first + into.len().div_ceil(row_bytes);
        let limit = self.shape.context_tokens + self.shape.padding_rows;
        let is_there = end <= limit && layer < self.shape.layers;
        if is_there && self.region.read(self.offset(layer, half, first), into) {
            return Ok(());
        }
        Err(ExecError::Context {
            asked: end,
            context: self.shape.context_tokens,
        })
    }

    /// Bytes of a row of keys, or of values.
    pub(crate) fn row_bytes(&self) -> usize {
        self.shape.row_bytes()
    }

    /// Writes one row of one half of a layer, or several from it on.
    pub fn write_row(
        &self,
        layer: usize,
        half: Half,
        row: usize,
        bytes: &[u8],
    ) -> Result<(), ExecError> {
        self.note_write(row);
        if self.region.write(self.offset(layer, half, row), bytes) {
            Ok(())
        } else {
            Err(ExecError::Context {
                asked: row + 1,
                context: self.shape.context_tokens,
            })
        }
    }

    /// Copies the keys and values of a token to the row of an earlier one, in every layer.
    pub fn copy_row(&self, from: usize, to: usize) -> Result<(), ExecError> {
        let mut row = vec![0; self.shape.row_bytes()];
        for (layer, half) in self.halves() {
            if !self.region.read(self.offset(layer, half, from), &mut row) {
                return Err(ExecError::Context {
                    asked: from + 1,
                    context: self.shape.context_tokens,
                });
            }
            self.write_row(layer, half, to, &row)?;
        }
        Ok(())
    }

    /// Returns a cache with only the last layer's keys and values of the first `tokens` tokens.
    pub fn last_layer(&self, tokens: usize) -> Result<Self, ExecError> {
        let copy = Self::reserve(self.shape)?;
        let mut rows = vec![0; tokens * self.shape.row_bytes()];
        for (layer, half) in self.halves().skip(2 * self.shape.layers.saturating_sub(1)) {
            if !self.region.read(self.offset(layer, half, 0), &mut rows) {
                return Err(ExecError::Context {
                    asked: tokens,
                    context: self.shape.context_tokens,
                });
            }
            copy.write_row(layer, half, 0, &rows)?;
        }
        Ok(copy)
    }

    /// Gives the memory of the rows from `tokens` on back to the system. No kernel may be running on them.
    pub fn discard(&self, tokens: usize) {
        for (layer, half) in self.halves() {
            let end = self.offset(layer, half, 0) + self.shape.half_bytes();
            self.region.discard(self.offset(layer, half, tokens)..end);
        }
    }

    pub(crate) fn halves(&self) -> impl Iterator<Item = (usize, Half)> {
        self.shape.halves()
    }

    pub(super) fn offset(&self, layer: usize, half: Half, row: usize) -> usize {
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

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use heg_openvino::TensorType;

    use super::*;

    #[test]
    fn a_cache_that_no_address_space_holds_is_an_error() {
        let shape = KvShape {
            layers: 1 << 31,
            width: 1 << 62,
            context_tokens: 4,
            padding_rows: 0,
            element: TensorType::F32,
        };
        // Multiplied without a check, all but the last wrap around to sizes that a system has.
        for (layers, width, context_tokens) in [
            (1, 1 << 62, 4),
            (1 << 31, 1 << 20, 1 << 30),
            (1, 3, usize::MAX),
            (1, 1 << 40, 1 << 20),
        ] {
            let shape = KvShape {
                layers,
                width,
                context_tokens,
                ..shape
            };
            let refused = KvCache::reserve(shape).unwrap_err();
            assert!(matches!(refused, ExecError::Reserve { .. }), "{refused:?}");
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

    /// Returns what the system reports on a cache's mapping: kibibytes in memory, and its flags.
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
                // Adjacent mappings with the same properties are shown as one.
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
        // The shape of a 1B model: a half of a layer is 8 MiB, and two rows of it are half a page.
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
        // As on a system that uses large pages for every process.
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
