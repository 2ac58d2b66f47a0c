//! Keys and values of 8 bits, in groups of a head that share scales. Queries are rounded to 16 bits, and so are weights times
//! the scales of their values, so that products are sums of integers, which are exact: group by group for scores, block by
//! block for weighted values.

use super::BLOCK;
use super::block::{HeadRows, Next, transpose};
use super::kernel::Item;
use super::pairs::{Neighbours, PairProducts, Scores, pair_values};
use super::softmax::within;
use super::tile::{TILE_ROWS, compute};
use crate::lanes::{LANES, Lanes};
use crate::rows::CACHE_GROUP;
use std::ops::Range;

/// Largest magnitude of a key or value, were it any byte.
const MAGNITUDE_MAX: usize = 128;

/// Largest magnitude of a query's or a weight's integers: every sum of a group, or of a block, fits in 32 bits.
pub(super) const STEPS: f32 = i16::MAX as f32;

const _: () = assert!(i16::MAX as usize * MAGNITUDE_MAX * CACHE_GROUP <= i32::MAX as usize);
const _: () = assert!(i16::MAX as usize * MAGNITUDE_MAX * BLOCK <= i32::MAX as usize);
const _: () = assert!(CACHE_GROUP.is_multiple_of(LANES) && BLOCK == 4 * LANES);

/// Rounds `count` floats to integers, padded with zeros; returns what one of them stands for.
///
/// Plain Rust, which each instruction set vectorises: every operation is exact or rounded once.
///
/// # Safety
///
/// `from` has `count` elements, and `to` as many, up to a multiple of [`CACHE_GROUP`].
#[inline(always)]
pub(super) unsafe fn round(from: *const f32, count: usize, to: *mut i16) -> f32 {
    // Neighbouring floats from 2²³ to 2²⁴ are one apart, and so are their bits.
    const SHIFT: f32 = 12_582_912.0;
    // SAFETY: the caller has the elements, and room for their integers.
    let (from, to) = unsafe {
        let padded = count.next_multiple_of(CACHE_GROUP);
        (
            std::slice::from_raw_parts(from, count),
            std::slice::from_raw_parts_mut(to, padded),
        )
    };
    // The bits of magnitudes have the order of floats, and NaN is the largest.
    let mut largest = 0;
    for x in from {
        largest = u32::max(largest, x.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(largest);
    let inverse = STEPS / largest;
    to.fill(0);
    match (largest.is_finite(), inverse.is_finite()) {
        (true, true) => {
            for (x, to) in from.iter().zip(to) {
                let shifted = (x * inverse + SHIFT).to_bits();
                *to = shifted.wrapping_sub(SHIFT.to_bits()) as i16;
            }
            largest / STEPS
        }
        // Too small to divide by.
        (true, false) => 0.0,
        (false, _) => f32::NAN,
    }
}

// As in `kernel`: keys and values are those of the item's positions, and scratch memory has room for a block and a strip.
impl Item<'_> {
    /// Widens the `visible` keys and values of a block, which are integers, to pairs, and copies their scales.
    ///
    /// # Safety
    ///
    /// Rows of the `visible` tokens are readable.
    #[inline(always)]
    pub(super) unsafe fn pair<L: Lanes>(
        &mut self,
        [keys, values]: [HeadRows; 2],
        visible: Range<usize>,
        next: &mut Next,
    ) {
        // The last pair of a head with an odd element has a byte of a scale, which is multiplied by zero.
        let pairs = HeadRows {
            len: keys.len.div_ceil(2),
            ..keys
        };
        let width = self.shape.width;
        // SAFETY: the rows are readable; `keys` and `values` in scratch memory have a block of `width` elements, and their
        // scales one for each token.
        unsafe {
            gather_scales(keys, visible.clone(), self.scratch.key_scales.start());
            gather_scales(values, visible.clone(), self.scratch.value_scales.start());
            let to = self.scratch.keys.start();
            transpose::<L, Neighbours>(pairs, visible.clone(), to, next);
            let to = self.scratch.values.start();
            pair_values::<L>(values, visible, to, width, next);
        }
    }

    /// Computes scores of a tile with keys that are integers; `first` and `row` as for floats.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    pub(super) unsafe fn score_integers<L: Lanes>(
        &mut self,
        first: usize,
        row: usize,
        visible: &[Range<usize>],
    ) {
        let (number, width) = (first + row, self.shape.width);
        // SAFETY: `queries` has the rows, each of integers in the place of floats, `units` one for each, `scores` the strip,
        // `keys` and `key_scales` the block.
        unsafe {
            let queries = self.scratch.queries.start().add(number * width);
            score_tile::<L>(Tile {
                queries: queries.cast(),
                stride: width * size_of::<f32>() / size_of::<i16>(),
                units: self.scratch.units.start().add(number),
                scores: self.scratch.scores.start().add(row * BLOCK),
                keys: self.scratch.keys.start().cast(),
                head_dim: self.shape.head_dim,
                scales: self.scratch.key_scales.start(),
                visible,
            });
        }
    }
}

/// Queries of a tile, and the part of a block that its rows are multiplied with.
#[derive(Clone, Copy)]
struct Tile<'a> {
    /// First of the rows of integers.
    queries: *const i16,
    /// Integers from one row to the next.
    stride: usize,
    /// Units of the rows' integers.
    units: *const f32,
    /// Scores of the first row: `[rows, BLOCK]`.
    scores: *mut f32,
    /// Keys of the block in pairs: `[head_dim / 2, BLOCK]`.
    keys: *const i16,
    /// Elements of a head.
    head_dim: usize,
    /// Scales of the keys: `[groups, BLOCK]`.
    scales: *const f32,
    /// Tokens that each row sees, ascending; as many as rows.
    visible: &'a [Range<usize>],
}

/// Computes the scores of a tile. Each dot product of a group is a float times the scale of its key's group, added up with one
/// rounding each; the sum is multiplied by the query's unit. Lanes of tokens that a row does not see get any number.
///
/// # Safety
///
/// Pointers have all rows, groups and vectors with tokens that a row sees; a tile has at most [`TILE_ROWS`] rows.
#[inline(always)]
unsafe fn score_tile<L: Lanes>(tile: Tile<'_>) {
    let (Some(first_row), Some(last_row)) = (tile.visible.first(), tile.visible.last()) else {
        return;
    };
    let first = first_row.start / LANES * LANES;
    let vectors = (last_row.end - first).div_ceil(LANES);
    for column in (0..tile.head_dim).step_by(CACHE_GROUP) {
        let columns = CACHE_GROUP.min(tile.head_dim - column);
        let is_last = column + columns == tile.head_dim;
        // SAFETY: the caller has the rows, the group and the vectors.
        unsafe {
            let products = PairProducts {
                factors: tile.queries.add(column),
                factors_stride: tile.stride,
                terms: tile.keys.add(column * BLOCK + 2 * first),
                terms_stride: 2 * BLOCK,
                count: columns.div_ceil(2),
                sink: Scores {
                    scores: tile.scores.add(first),
                    scales: tile.scales.add(column / CACHE_GROUP * BLOCK + first),
                    units: match is_last {
                        true => tile.units,
                        false => std::ptr::null(),
                    },
                    is_first: column == 0,
                },
            };
            compute::<L, _>(products, tile.visible.len(), vectors);
        }
    }
}

/// Multiplies weights of a tile's rows, `[rows, BLOCK]`, by the scales of one group of each value, and rounds each row to
/// integers, `[rows, BLOCK]`, with their units. Those of tokens that a row does not see are zero. A product that is no number
/// makes the row's `totals`, `[rows, LANES]`, none.
///
/// # Safety
///
/// `weights` and the integers have a block for each row, at most [`TILE_ROWS`], and `scales` one; `totals` has the rows.
#[inline(always)]
pub(super) unsafe fn round_weights<L: Lanes>(
    weights: *const f32,
    visible: &[Range<usize>],
    scales: *const f32,
    totals: *mut f32,
    integers: *mut i16,
    units: &mut [f32; TILE_ROWS],
) {
    for ((row, tokens), unit) in visible.iter().enumerate().zip(units) {
        // SAFETY: a block has these vectors.
        unsafe {
            let zero = L::splat(0.0);
            let mut products = [zero; BLOCK / LANES];
            for (vector, product) in products.iter_mut().enumerate() {
                let first = vector * LANES;
                if first >= tokens.end || first + LANES <= tokens.start {
                    continue;
                }
                let weights = L::load(weights.add(row * BLOCK + first));
                *product = weights.mul(L::load(scales.add(first)));
                if first < tokens.start || first + LANES > tokens.end {
                    *product = within(*product, first, tokens, 0.0);
                }
            }
            let [a, b, c, d] = products;
            // Zero, or not a number: then the largest is any, and so are the integers.
            let poison = a.add(b).add(c.add(d)).mul(zero);
            let total = totals.add(row * LANES);
            L::load(total).add(poison).store(total);
            let largest = a.max(b).max(c.max(d)).largest();
            let inverse = STEPS / largest;
            // Too small to divide by, or infinite.
            let is_none = !inverse.is_finite() || !largest.is_finite();
            let inverse = if is_none { 0.0 } else { inverse };
            *unit = if is_none { 0.0 } else { largest / STEPS };
            for (vector, product) in products.into_iter().enumerate() {
                let to = integers.add(row * BLOCK + vector * LANES);
                product.mul(L::splat(inverse)).store_i16(to);
            }
        }
    }
}

/// Copies the scales of `tokens` of a block to `[groups, BLOCK]`: those of two groups with one load.
///
/// # Safety
///
/// Rows of `tokens` are readable, and `to` has a block for each group.
#[inline(always)]
unsafe fn gather_scales(rows: HeadRows, tokens: Range<usize>, to: *mut f32) {
    let groups = rows.len.div_ceil(CACHE_GROUP);
    for group in (0..groups).step_by(2) {
        let column = rows.len + group * size_of::<u16>();
        for token in tokens.clone() {
            // SAFETY: scales stand behind the head's elements, a byte each, and the token lies in the block.
            unsafe {
                let from = rows.start.add(token * rows.stride_bytes + column);
                let to = to.add(group * BLOCK + token);
                if group + 1 == groups {
                    let scale = u32::from(from.cast::<u16>().read_unaligned());
                    *to = f32::from_bits(scale << 16);
                } else {
                    let scales = u32::from_le(from.cast::<u32>().read_unaligned());
                    *to = f32::from_bits(scales << 16);
                    *to.add(BLOCK) = f32::from_bits(scales & 0xffff_0000);
                }
            }
        }
    }
}
