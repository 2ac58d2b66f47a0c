//! Scratch memory of a thread.

use super::{BLOCK, Shape, item::most_query_rows, tile::TILE_ROWS};
use crate::error::CpuError;
use crate::lanes::LANES;
use crate::rows::CACHE_GROUP;
use heg_artifacts::program::Attention;

/// Query rows that the softmax processes at once: their factors make one vector.
pub(super) const STRIP: usize = LANES;

/// Scratch memory of one thread, for the largest work item of the steps that it was allocated for.
pub(crate) struct AttentionScratch {
    /// Keys of a block, transposed: `[head_dim, BLOCK]`, or `[head_dim / 2, BLOCK]` pairs of integers.
    pub(super) keys: Floats,
    /// Values of a block: `[BLOCK, width]`, or `[BLOCK / 2, width]` pairs of integers.
    pub(super) values: Floats,
    /// Keys, then values, of a block with tokens of a tree, in elements of the cache: `[2, BLOCK, width]`.
    pub(super) gathered: Floats,
    /// Scales of a block's keys that are integers: `[groups, BLOCK]`.
    pub(super) key_scales: Floats,
    /// Scales of a block's values that are integers: `[groups, BLOCK]`.
    pub(super) value_scales: Floats,
    /// Weights of a tile times the scales of a group of values: `[TILE_ROWS, BLOCK]` integers of 16 bits.
    pub(super) weights: Floats,
    /// Scores of a strip, replaced by weights: `[STRIP, BLOCK]`.
    pub(super) scores: Floats,
    /// Rescaling factors of a strip's earlier sums: `[STRIP]`.
    pub(super) factors: Floats,
    /// Scaled queries: `[query rows, width]`. Beside keys of integers, rows of 16-bit integers, twice as many.
    pub(super) queries: Floats,
    /// Factors of dot products of integers: `[query rows]`.
    pub(super) units: Floats,
    /// Running weighted sums of values: `[query rows, width]`.
    pub(super) sums: Floats,
    /// Running sums of weights, lane by lane: `[query rows, LANES]`.
    pub(super) totals: Floats,
    /// Running maximum of scores: `[query rows]`.
    pub(super) largest: Floats,
}

impl AttentionScratch {
    /// Allocates for work items of all `steps`.
    ///
    /// # Errors
    ///
    /// [`CpuError::Memory`] if there is not enough: attributes come from a bundle.
    pub(crate) fn new<'a>(
        steps: impl IntoIterator<Item = &'a Attention>,
    ) -> Result<Self, CpuError> {
        let (mut width, mut query_rows, mut elements) = (0, 0, 0);
        for attributes in steps {
            let shape = Shape::of(attributes);
            let rows = most_query_rows(attributes);
            width = shape.width.max(width);
            query_rows = rows.max(query_rows);
            elements = rows.saturating_mul(shape.width).max(elements);
        }
        let block = width.saturating_mul(BLOCK);
        let scales = width.div_ceil(CACHE_GROUP).saturating_mul(BLOCK);
        Ok(Self {
            keys: Floats::new(block)?,
            values: Floats::new(block)?,
            gathered: Floats::new(block.saturating_mul(2))?,
            key_scales: Floats::new(scales)?,
            value_scales: Floats::new(scales)?,
            weights: Floats::new(TILE_ROWS * BLOCK / 2)?,
            scores: Floats::new(STRIP * BLOCK)?,
            factors: Floats::new(STRIP)?,
            queries: Floats::new(elements)?,
            units: Floats::new(query_rows)?,
            sums: Floats::new(elements)?,
            totals: Floats::new(query_rows.saturating_mul(LANES))?,
            largest: Floats::new(query_rows)?,
        })
    }
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

/// f32 elements, aligned to a cache line.
pub(super) struct Floats(Vec<Line>);

impl Floats {
    fn new(len: usize) -> Result<Self, CpuError> {
        let count = len.div_ceil(LANES);
        let mut lines = Vec::new();
        let bytes = len.saturating_mul(size_of::<f32>());
        let room = lines.try_reserve_exact(count);
        room.map_err(|_| CpuError::Memory { bytes })?;
        lines.resize(count, Line([0.0; LANES]));
        Ok(Self(lines))
    }

    /// The first element.
    pub(super) fn start(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use heg_spec::Sight;

    use super::*;

    #[test]
    fn heads_that_no_memory_holds_are_an_error() {
        let attributes = |heads, head_dim| Attention {
            heads,
            kv_heads: 1,
            head_dim,
            scale: 1.0,
            window: None,
            softcap: None,
            sight: Sight::Causal,
        };
        for attributes in [attributes(1, u32::MAX), attributes(u32::MAX, u32::MAX)] {
            let refused = AttentionScratch::new([&attributes]);
            assert!(matches!(refused, Err(CpuError::Memory { .. })));
        }
        assert!(AttentionScratch::new([&attributes(4, 64)]).is_ok());
    }
}
