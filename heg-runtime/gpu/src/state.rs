//! The facts about their rows that recorded commands read when they run: positions, places in the KV cache, tokens.
//!
//! Commands are recorded once for a number of rows and then serve every token, because everything that changes from one
//! token to the next is in this memory. The device follows its numbers unchecked, so they are checked here.

use crate::device::GpuDevice;
use crate::error::GpuError;
use crate::region::GpuRegion;

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
    /// Rows of a layer's KV cache, over all sequences.
    pub cache_rows: u32,
    /// Positions of rotary tables.
    pub positions: u32,
    /// Rows of the embedding table.
    pub tokens: u32,
}

/// One row of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowState<'a> {
    /// Position in its sequence: it sees what is before it, and itself.
    pub position: u32,
    /// Where its keys and values go, counted from the sequence's first row of the cache.
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
}

impl CallState {
    /// State for calls within limits. All rows are at position 0 of a sequence that begins with the cache.
    ///
    /// # Errors
    ///
    /// The driver's description of the memory.
    pub fn new(device: &GpuDevice, limits: StateLimits) -> Result<Self, GpuError> {
        let rows = limits.rows as usize;
        let words = rows * (ROW_WORDS + WAY_TOKENS_MAX + 1);
        let region = device.written_memory(4 * words as u64)?;
        region.write(0, &vec![0; 4 * words])?;
        let state = Self { region, limits };
        state.set(&vec![RowState::default(); rows])?;
        Ok(state)
    }

    /// Sets the first rows. No call that reads them may be under way.
    ///
    /// # Errors
    ///
    /// [`GpuError::Call`] where a row names what is not there.
    pub fn set(&self, rows: &[RowState<'_>]) -> Result<(), GpuError> {
        let StateLimits { rows: most, .. } = self.limits;
        within("rows of a state", 0, rows.len() as u64, u64::from(most) + 1)?;
        let mut words = Vec::with_capacity(rows.len() * ROW_WORDS);
        let mut ways = Vec::with_capacity(rows.len() * WAY_TOKENS_MAX);
        let ways_start = most as usize * ROW_WORDS;
        for (index, row) in rows.iter().enumerate() {
            self.check(index, row)?;
            let way_start = match row.way.is_empty() {
                true => NO_WAY,
                false => row.position + 1 - row.way.len() as u32,
            };
            let way_at = ways_start + index * WAY_TOKENS_MAX;
            let RowState {
                position,
                cache_row,
                first_cache_row,
                way,
                token,
            } = *row;
            let way_at = way_at as u32;
            words.extend([
                position,
                cache_row,
                first_cache_row,
                way_at,
                way_start,
                token,
                0,
                0,
            ]);
            ways.extend_from_slice(way);
            ways.resize((index + 1) * WAY_TOKENS_MAX, 0);
        }
        self.region.write(0, &bytes(&words))?;
        self.region.write(4 * ways_start as u64, &bytes(&ways))
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

    fn check(&self, index: usize, row: &RowState<'_>) -> Result<(), GpuError> {
        let StateLimits {
            cache_rows,
            positions,
            tokens,
            ..
        } = self.limits;
        let cache_rows = u64::from(cache_rows);
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

    fn head_rows_start(&self) -> u64 {
        4 * u64::from(self.limits.rows) * (ROW_WORDS + WAY_TOKENS_MAX) as u64
    }

    /// Bounds of the numbers in its rows.
    pub fn limits(&self) -> StateLimits {
        self.limits
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
