//! Keys and values of 8 bits, in groups of a head that share scales. Queries are rounded to 16 bits, and so are weights times
//! the scales of their values, so that products are sums of integers, which are exact: group by group for scores, block by
//! block for weighted values.

use super::block::{HeadRows, I8, transpose, transpose_steps};
use super::kernel::Item;
use super::next::Next;
use super::pairs::{PairProducts, Scores, pair_values};
use super::softmax::{vectors, within};
use super::tile::{STEP_TERMS, compute, steps};
use super::{BLOCK, WHOLE};
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

/// Elements of a head that the lanes of two rows of pairs have: see [`I8`].
const QUAD: usize = 4;

/// Rounds a head of a query to integers, padded with zeros, in the order of its keys' pairs; returns what one of them stands
/// for.
///
/// Plain Rust, which each instruction set vectorises: every operation is exact or rounded once.
///
/// # Safety
///
/// `query` has `head_dim` elements, and `to` as many, up to a multiple of [`CACHE_GROUP`].
#[inline(always)]
pub(super) unsafe fn round_query(query: *const f32, head_dim: usize, to: *mut i16) -> f32 {
    // Neighbouring floats from 2²³ to 2²⁴ are one apart, and so are their bits.
    const SHIFT: f32 = 12_582_912.0;
    // SAFETY: the caller has the elements, and room for their integers.
    let (query, to) = unsafe {
        let padded = head_dim.next_multiple_of(CACHE_GROUP);
        (
            std::slice::from_raw_parts(query, head_dim),
            std::slice::from_raw_parts_mut(to, padded),
        )
    };
    // The bits of magnitudes have the order of floats, and NaN is the largest.
    let mut largest = 0;
    for x in query {
        largest = u32::max(largest, x.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(largest);
    let inverse = STEPS / largest;
    to.fill(0);
    match (largest.is_finite(), inverse.is_finite()) {
        (true, true) => {
            for (x, to) in query.iter().zip(&mut *to) {
                let shifted = (x * inverse + SHIFT).to_bits();
                *to = shifted.wrapping_sub(SHIFT.to_bits()) as i16;
            }
            for quad in to.chunks_exact_mut(QUAD) {
                quad.swap(1, 2);
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
    /// Number of prefetch steps of a block of integers.
    pub(super) fn integer_steps<L: Lanes>(&self, rows: usize, visible: &Range<usize>) -> usize {
        let head_dim = self.shape.head_dim;
        let (groups, pairs) = (head_dim.div_ceil(CACHE_GROUP), visible.len().div_ceil(2));
        let scores = steps::<L>(rows, visible.len().div_ceil(LANES), CACHE_GROUP / 2);
        let values = steps::<L>(rows, CACHE_GROUP / LANES, pairs);
        transpose_steps(head_dim, visible) + pairs / STEP_TERMS + groups * (scores + values)
    }

    /// Widens the `visible` keys and values of a block, which are integers, to pairs, and copies their scales. Returns whether
    /// products of weights with the scales of all values are finite, and so are sums of these.
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
    ) -> bool {
        let width = self.shape.width;
        // SAFETY: the rows are readable; `keys` and `values` in scratch memory have a block of `width` elements, and their
        // scales one for each token.
        unsafe {
            gather_scales::<L>(keys, visible.clone(), self.scratch.key_scales.start());
            gather_scales::<L>(values, visible.clone(), self.scratch.value_scales.start());
            let to = self.scratch.keys.start();
            transpose::<L, I8>(keys, visible.clone(), to, next);
            let to = self.scratch.values.start();
            pair_values::<L>(values, visible.clone(), to, width, next);
            let groups = values.len.div_ceil(CACHE_GROUP);
            visible == WHOLE && has_finite_sums::<L>(self.scratch.value_scales.start(), groups)
        }
    }

    /// Computes scores of a tile with keys that are integers; `first` and `row` as for floats. Each dot product of a group is a
    /// float times the scale of its key's group, added up with one rounding each; the sum is multiplied by the query's unit.
    /// Lanes of tokens that a row does not see get any number.
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
        next: &mut Next,
    ) {
        let (Some(first_row), Some(last_row)) = (visible.first(), visible.last()) else {
            return;
        };
        let first_token = first_row.start / LANES * LANES;
        let vectors = (last_row.end - first_token).div_ceil(LANES);
        let (number, width, head_dim) = (first + row, self.shape.width, self.shape.head_dim);
        for column in (0..head_dim).step_by(CACHE_GROUP) {
            let columns = CACHE_GROUP.min(head_dim - column);
            // SAFETY: `queries` has the rows, each of integers in the place of floats, `units` one for each, `scores` the
            // strip, `keys` and `key_scales` the block.
            unsafe {
                let queries = self.scratch.queries.start().add(number * width);
                let keys = self.scratch.keys.start().cast::<i16>();
                let scales = column / CACHE_GROUP * BLOCK + first_token;
                let units = self.scratch.units.start().add(number).cast_const();
                let scores = row * BLOCK + first_token;
                let products = PairProducts {
                    factors: queries.cast::<i16>().add(column).cast_const(),
                    factors_stride: width * size_of::<f32>() / size_of::<i16>(),
                    terms: keys.add(column * BLOCK + 2 * first_token).cast_const(),
                    terms_stride: 2 * BLOCK,
                    count: 2 * columns.div_ceil(QUAD),
                    sink: Scores {
                        scores: self.scratch.scores.start().add(scores),
                        scales: self.scratch.key_scales.start().add(scales),
                        units: (column + columns == head_dim).then_some(units),
                        is_first: column == 0,
                    },
                };
                compute::<L, _>(products, visible.len(), vectors, next);
            }
        }
    }
}

/// Multiplies the weights of a row by the scales of one group of each value, and rounds them to integers; returns their unit.
/// Those of tokens that the row does not see are zero. A product that is no number makes the `total` lanes of the row none; no
/// total is given where no product can be.
///
/// # Safety
///
/// `weights`, `scales` and `integers` have a block, and `total` a vector.
#[inline(always)]
pub(super) unsafe fn round_weights<L: Lanes>(
    weights: *const f32,
    tokens: &Range<usize>,
    scales: *const f32,
    total: Option<*mut f32>,
    integers: *mut i16,
) -> f32 {
    // SAFETY: a block has these vectors.
    unsafe {
        let zero = L::splat(0.0);
        let mut products = [zero; BLOCK / LANES];
        for (vector, product) in products.iter_mut().enumerate() {
            let first = vector * LANES;
            let weights = L::load(weights.add(first));
            let all = weights.mul(L::load(scales.add(first)));
            *product = within(all, first, tokens, 0.0);
        }
        let [a, b, c, d] = products;
        if let Some(total) = total {
            // Zero, or not a number: then the largest is any, and so are the integers.
            let poison = a.add(b).add(c.add(d)).mul(zero);
            L::load(total).add(poison).store(total);
        }
        let largest = a.max(b).max(c.max(d)).largest();
        let inverse = STEPS / largest;
        // Too small to divide by, or infinite.
        let is_none = !inverse.is_finite() || !largest.is_finite();
        let inverse = if is_none { 0.0 } else { inverse };
        for (vector, product) in products.into_iter().enumerate() {
            let to = integers.add(vector * LANES);
            product.mul(L::splat(inverse)).store_i16(to);
        }
        if is_none { 0.0 } else { largest / STEPS }
    }
}

/// Whether sums of the magnitudes of a block's scales are finite, over its vectors and group by group: so are those of their
/// products with weights, which are at most one.
///
/// # Safety
///
/// `scales` has a block for each group.
#[inline(always)]
unsafe fn has_finite_sums<L: Lanes>(scales: *const f32, groups: usize) -> bool {
    // SAFETY: a block has these vectors.
    unsafe {
        let zero = L::splat(0.0);
        let mut poison = zero;
        for group in 0..groups {
            let mut magnitudes = [zero; BLOCK / LANES];
            for (vector, magnitudes) in magnitudes.iter_mut().enumerate() {
                *magnitudes = L::load(scales.add(group * BLOCK + vector * LANES)).abs();
            }
            // In the order of `round_weights`, whose sums are no larger then.
            let [a, b, c, d] = magnitudes;
            let sum = a.add(b).add(c.add(d));
            poison = sum.mul(zero).add(poison);
        }
        poison.sum() == 0.0
    }
}

/// Copies the scales of `tokens` of a block to `[groups, BLOCK]`, those of two groups with one load. Scales of other tokens
/// are any numbers then.
///
/// # Safety
///
/// Rows of `tokens` are readable, and `to` has a block for each group.
#[inline(always)]
unsafe fn gather_scales<L: Lanes>(rows: HeadRows, tokens: Range<usize>, to: *mut f32) {
    let groups = rows.len.div_ceil(CACHE_GROUP);
    for group in (0..groups).step_by(2) {
        let is_last = group + 1 == groups;
        // SAFETY: scales stand behind the head's elements, a byte each, and a block has the tokens.
        unsafe {
            let to = to.add(group * BLOCK);
            let column = rows.len + group * size_of::<u16>();
            for token in tokens.clone() {
                let from = rows.start.add(token * rows.stride_bytes + column);
                let scales = match is_last {
                    true => u32::from(u16::from_le(from.cast::<u16>().read_unaligned())),
                    false => u32::from_le(from.cast::<u32>().read_unaligned()),
                };
                *to.add(token).cast::<u32>() = scales;
            }
            for first in vectors(&tokens) {
                let to = to.add(first);
                let [lower, upper] = L::load(to).widen_bf16();
                lower.store(to);
                if !is_last {
                    upper.store(to.add(BLOCK));
                }
            }
        }
    }
}
