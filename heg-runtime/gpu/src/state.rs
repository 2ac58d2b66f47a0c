//! The facts about their rows that recorded commands read when they run: positions, places in the KV cache, tokens.
//!
//! Commands are recorded once for a number of rows and then serve every token, because everything that changes from one
//! token to the next is in this memory. The device follows its numbers unchecked, so they are checked here.

use std::sync::{Arc, Mutex, PoisonError};

use crate::device::GpuDevice;
use crate::error::GpuError;
use crate::region::GpuRegion;
use crate::vulkan::Memory;

/// Words of a row, as `shaders/include/memory.glsl` has them.
const ROW_WORDS: usize = 8;

/// Tokens of a tree at most, as CPU programs take them.
pub const WAY_TOKENS_MAX: usize = 64;

/// Row state that no tree is in.
const NO_WAY: u32 = u32::MAX;

/// Bounds of what a row's state may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// Rows of a call.
    pub rows: u32,
    /// Layers of KV caches.
    pub layers: u32,
    /// Bytes of a row of keys, or of values.
    pub cache_row_bytes: u64,
    /// Positions of rotary tables.
    pub positions: u32,
    /// Rows of the embedding table.
    pub tokens: u32,
}

/// Keys and values of all layers: for each layer its keys, and then its values.
#[derive(Clone)]
pub struct GpuCache {
    /// The memory.
    pub region: GpuRegion,
    /// Bytes from the keys or values of a layer to the values or keys behind them: a multiple of 16.
    pub half_bytes: u64,
    /// Rows of each half.
    pub rows: u32,
}

impl GpuCache {
    /// A cache in memory where host and device both work, or where the device is fastest if there is none.
    ///
    /// # Errors
    ///
    /// Error of the driver, above all that there is no more memory.
    pub fn new(
        device: &GpuDevice,
        layers: u32,
        rows: u32,
        row_bytes: u64,
    ) -> Result<Self, GpuError> {
        let too_large = GpuError::Range {
            first: 0,
            end: u64::MAX,
            bytes: 1 << 32,
        };
        let half_bytes = u64::from(rows).checked_mul(row_bytes);
        let half_bytes = half_bytes.and_then(|bytes| bytes.checked_next_multiple_of(HALF_BYTES));
        let bytes = half_bytes.and_then(|bytes| bytes.checked_mul(2 * u64::from(layers)));
        let (half_bytes, bytes) = half_bytes.zip(bytes).ok_or(too_large)?;
        Ok(Self {
            region: match device.shared_memory(bytes)? {
                Some(shared) => shared.region().clone(),
                None => device.memory(bytes)?,
            },
            half_bytes,
            rows,
        })
    }
}

/// Halves are a multiple of this, as pages of the host are.
const HALF_BYTES: u64 = 4096;

/// One row of a call.
#[derive(Clone, Copy, Default)]
pub struct RowState<'a> {
    /// Position in its sequence: it sees what is before it, and itself.
    pub position: u32,
    /// The cache of its sequence. Without one there is a cache of a single row, which holds nothing.
    pub cache: Option<&'a GpuCache>,
    /// Row for its keys and values, counted from the sequence's first row of the cache.
    pub cache_row: u32,
    /// First row of its sequence in the cache.
    pub first_cache_row: u32,
    /// For a token of a tree, the rows of the cache that its way leads through, itself the last, counted as `cache_row`
    /// is; positions before the way lie in order. Empty for others, whose positions all lie in order.
    pub way: &'a [u32],
    /// The token, for the embedding.
    pub token: u32,
}

/// State of the rows of a call.
pub struct CallState {
    region: GpuRegion,
    limits: StateLimits,
    /// The cache of rows that have none.
    none: GpuCache,
    named: NamedCaches,
}

/// The rows that were set last, kept by the state and by all commands that read it.
pub(crate) type NamedCaches = Arc<Mutex<Named>>;

#[derive(Default)]
pub(crate) struct Named {
    rows: usize,
    /// The memories that they lead to.
    _memories: Vec<Arc<Memory>>,
}

impl CallState {
    /// State for calls within limits. All rows are at position 0 of a sequence without a cache.
    ///
    /// # Errors
    ///
    /// The driver's description of the memory.
    pub fn new(device: &GpuDevice, limits: StateLimits) -> Result<Self, GpuError> {
        let rows = limits.rows as usize;
        let words = rows * (ROW_WORDS + WAY_TOKENS_MAX + 1);
        let region = device.written_memory(4 * words as u64)?;
        region.write(0, &vec![0; 4 * words])?;
        let none = GpuCache {
            region: device.memory(limits.cache_row_bytes)?,
            half_bytes: 0,
            rows: 1,
        };
        let state = Self {
            region,
            limits,
            none,
            named: NamedCaches::default(),
        };
        state.set(&vec![RowState::default(); rows])?;
        Ok(state)
    }

    /// Sets the first rows; all others have no cache. No call that reads them may be under way.
    ///
    /// # Errors
    ///
    /// [`GpuError::Call`] where a row names what is not there.
    pub fn set(&self, rows: &[RowState<'_>]) -> Result<(), GpuError> {
        let StateLimits { rows: most, .. } = self.limits;
        within("rows of a state", 0, rows.len() as u64, u64::from(most) + 1)?;
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that were set before must not lead to memory that may be gone.
        let count = named.rows.max(rows.len());
        let mut words = Vec::with_capacity(count * ROW_WORDS);
        let mut ways = Vec::with_capacity(count * WAY_TOKENS_MAX);
        let mut memories: Vec<Arc<Memory>> = Vec::new();
        let ways_start = most as usize * ROW_WORDS;
        let others = std::iter::repeat_n(&NO_ROW, count - rows.len());
        for (index, row) in rows.iter().chain(others).enumerate() {
            let cache = row.cache.unwrap_or(&self.none);
            self.check(index, row, cache)?;
            let memory = cache.region.memory();
            if !memories.iter().any(|known| Arc::ptr_eq(known, &memory)) {
                memories.push(memory);
            }
            let way_start = match row.way.is_empty() {
                true => NO_WAY,
                false => row.position + 1 - row.way.len() as u32,
            };
            let first = u64::from(row.first_cache_row) * self.limits.cache_row_bytes;
            let address = cache.region.address() + first;
            words.extend([
                row.position,
                row.cache_row,
                address as u32,
                (address >> 32) as u32,
                // Checked: all halves lie within the memory, and there are more than one.
                cache.half_bytes as u32,
                (ways_start + index * WAY_TOKENS_MAX) as u32,
                way_start,
                row.token,
            ]);
            ways.extend_from_slice(row.way);
            ways.resize((index + 1) * WAY_TOKENS_MAX, 0);
        }
        self.region.write(0, &bytes(&words))?;
        self.region.write(4 * ways_start as u64, &bytes(&ways))?;
        *named = Named {
            rows: rows.len(),
            _memories: memories,
        };
        Ok(())
    }

    /// Sets which rows the head takes, in order.
    ///
    /// # Errors
    ///
    /// [`GpuError::Call`] where there is no such row.
    pub fn set_head_rows(&self, rows: &[u32]) -> Result<(), GpuError> {
        let most = u64::from(self.limits.rows);
        within("rows of a head", 0, rows.len() as u64, most + 1)?;
        for (index, row) in rows.iter().enumerate() {
            within("row of a head", index, u64::from(*row), most)?;
        }
        self.region.write(self.head_rows_start(), &bytes(rows))
    }

    fn check(&self, index: usize, row: &RowState<'_>, cache: &GpuCache) -> Result<(), GpuError> {
        let StateLimits {
            positions, tokens, ..
        } = self.limits;
        self.check_cache(index, cache)?;
        let cache_rows = u64::from(cache.rows);
        let (first, position) = (u64::from(row.first_cache_row), u64::from(row.position));
        let steps = row.way.len() as u64;
        within("position of row", index, position, u64::from(positions))?;
        within(
            "token of row",
            index,
            u64::from(row.token),
            u64::from(tokens),
        )?;
        within(
            "way of row",
            index,
            steps,
            (WAY_TOKENS_MAX as u64 + 1).min(position + 2),
        )?;
        let in_order = position + 1 - steps;
        within("cache of row", index, first + in_order, cache_rows + 1)?;
        let own = std::iter::once(&row.cache_row);
        for at in own.chain(row.way) {
            within("cache of row", index, first + u64::from(*at), cache_rows)?;
        }
        Ok(())
    }

    /// Fails where a cache has not the memory of its halves, as modules find them.
    fn check_cache(&self, index: usize, cache: &GpuCache) -> Result<(), GpuError> {
        let StateLimits {
            layers,
            cache_row_bytes,
            ..
        } = self.limits;
        let half = u64::from(cache.rows).checked_mul(cache_row_bytes);
        let last = (2 * u64::from(layers)).saturating_sub(1);
        let last = last.checked_mul(cache.half_bytes);
        let end = half
            .zip(last)
            .and_then(|(half, last)| half.checked_add(last));
        let end = end.unwrap_or(u64::MAX);
        within(
            "bytes of the cache of row",
            index,
            end,
            cache.region.bytes() + 1,
        )?;
        let half_bytes = cache.half_bytes;
        within(
            "bytes of a half of the cache of row",
            index,
            half_bytes,
            1 << 32,
        )?;
        // Modules read words, and quads of them.
        let start = cache.region.address() | half_bytes;
        within("first byte of the cache of row", index, start % 16, 1)
    }

    fn head_rows_start(&self) -> u64 {
        4 * u64::from(self.limits.rows) * (ROW_WORDS + WAY_TOKENS_MAX) as u64
    }

    /// Bounds of the numbers in its rows.
    pub fn limits(&self) -> StateLimits {
        self.limits
    }

    pub(crate) fn named(&self) -> NamedCaches {
        Arc::clone(&self.named)
    }

    pub(crate) fn region(&self) -> &GpuRegion {
        &self.region
    }

    /// The numbers of the head's rows.
    pub(crate) fn head_rows(&self) -> Result<GpuRegion, GpuError> {
        let bytes = 4 * u64::from(self.limits.rows);
        self.region.part(self.head_rows_start(), bytes)
    }
}

/// A row that nobody has set.
const NO_ROW: RowState<'static> = RowState {
    position: 0,
    cache: None,
    cache_row: 0,
    first_cache_row: 0,
    way: &[],
    token: 0,
};

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Fails unless `found` is below `end`.
fn within(what: &'static str, index: usize, found: u64, end: u64) -> Result<(), GpuError> {
    match found < end {
        true => Ok(()),
        false => Err(GpuError::Call {
            what,
            index,
            expected: end.saturating_sub(1),
            found,
        }),
    }
}
