//! Keys and values of 8 bits, in groups of a head that share scales. Scores are products of queries rounded to 16 bits with keys
//! as they lie in the cache: exact sums, group by group, each times the scale of its key's group.

use super::BLOCK;
use super::block::{HeadRows, Next};
use super::softmax::vectors;
use super::tile::TILE_ROWS;
use crate::lanes::{DOT_COLUMNS, DOT_KEYS, Lanes, Queries};
use crate::rows::CACHE_GROUP;
use std::ops::Range;

/// Largest magnitude of a key.
const KEY_MAX: usize = 127;

/// Largest magnitude of a query's integers: every sum of a group fits in 32 bits.
pub(super) const STEPS: f32 = i16::MAX as f32;

const _: () = assert!(i16::MAX as usize * KEY_MAX * CACHE_GROUP <= i32::MAX as usize);
const _: () = assert!(CACHE_GROUP == DOT_COLUMNS);

/// Rounds a head of a query to integers, padded with zeros; returns what one of them stands for.
///
/// Plain Rust, which each instruction set vectorises: every operation is exact or rounded once.
///
/// # Safety
///
/// `query` has `head_dim` elements, and `to` as many, up to a multiple of [`DOT_COLUMNS`].
#[inline(always)]
pub(super) unsafe fn round_query(query: *const f32, head_dim: usize, to: *mut i16) -> f32 {
    // Neighbouring floats from 2²³ to 2²⁴ are one apart, and so are their bits.
    const SHIFT: f32 = 12_582_912.0;
    // SAFETY: the caller has the elements, and room for their integers.
    let (query, to) = unsafe {
        let padded = head_dim.next_multiple_of(DOT_COLUMNS);
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
            for (x, to) in query.iter().zip(to) {
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

/// Queries of a tile, and the part of a block that its rows are multiplied with.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// First of the rows of integers.
    pub(super) queries: *const i16,
    /// Integers from one row to the next.
    pub(super) stride: usize,
    /// Units of the rows' integers.
    pub(super) units: *const f32,
    /// Scores of the first row: `[rows, BLOCK]`.
    pub(super) scores: *mut f32,
    /// Keys of the block.
    pub(super) keys: HeadRows,
    /// Scales of the keys: `[groups, BLOCK]`.
    pub(super) scales: *const f32,
    /// Tokens that each row sees, ascending; as many as rows.
    pub(super) visible: &'a [Range<usize>],
}

/// Computes the scores of a tile. Each dot product of a group is a float times the scale of its key's group, added up with one
/// rounding each; the sum is multiplied by the query's unit. Lanes of tokens that a row does not see get any number.
///
/// # Safety
///
/// Keys that a row sees are readable, `dots` has `[groups, rows, BLOCK]`, and the tile has at most [`TILE_ROWS`] rows.
#[inline(always)]
pub(super) unsafe fn score_tile<L: Lanes>(tile: Tile<'_>, dots: *mut i32, next: &mut Next) {
    let (Some(first_row), Some(last_row)) = (tile.visible.first(), tile.visible.last()) else {
        return;
    };
    let groups = tile.keys.len.div_ceil(CACHE_GROUP);
    let tokens = first_row.start..last_row.end;
    let mut first = tokens.start / DOT_KEYS * DOT_KEYS;
    while first < tokens.end {
        next.step();
        let mut keys = [std::ptr::null::<i8>(); DOT_KEYS];
        for (number, key) in keys.iter_mut().enumerate() {
            // Lanes of other tokens get a neighbour's products.
            let token = (first + number).max(tokens.start).min(tokens.end - 1);
            let row = token * tile.keys.stride_bytes;
            *key = tile.keys.start.wrapping_add(row).cast();
        }
        for group in 0..groups {
            let column = group * CACHE_GROUP;
            let mut four = keys;
            for key in &mut four {
                *key = key.wrapping_add(column);
            }
            let queries = Queries {
                first: tile.queries.wrapping_add(column),
                stride: tile.stride,
                len: CACHE_GROUP.min(tile.keys.len - column),
                dots: dots.wrapping_add(group * TILE_ROWS * BLOCK + first),
                dots_stride: BLOCK,
            };
            // SAFETY: the caller has the rows and the keys, and four tokens lie within a block.
            unsafe {
                match tile.visible.len() {
                    1 => L::dots::<1>(queries, four),
                    2 => L::dots::<2>(queries, four),
                    3 => L::dots::<3>(queries, four),
                    _ => L::dots::<4>(queries, four),
                }
            }
        }
        first += DOT_KEYS;
    }
    for (row, tokens) in tile.visible.iter().enumerate() {
        for first in vectors(tokens) {
            // SAFETY: vectors with visible tokens lie within a block, of which each group has a row.
            unsafe {
                let mut sum = L::splat(0.0);
                for group in 0..groups {
                    let dots = dots.add((group * TILE_ROWS + row) * BLOCK + first);
                    let scales = L::load(tile.scales.add(group * BLOCK + first));
                    sum = L::load_i32(dots.cast_const()).mul_add(scales, sum);
                }
                let score = sum.mul(L::splat(*tile.units.add(row)));
                score.store(tile.scores.add(row * BLOCK + first));
            }
        }
    }
}

/// Multiplies weights of a tile's rows, `[rows, BLOCK]`, by the scales of one group of each value.
///
/// # Safety
///
/// `weights` and `scaled` have a block for each row, and `scales` one.
#[inline(always)]
pub(super) unsafe fn scale_weights<L: Lanes>(
    weights: *const f32,
    visible: &[Range<usize>],
    scales: *const f32,
    scaled: *mut f32,
) {
    for (row, tokens) in visible.iter().enumerate() {
        for first in vectors(tokens) {
            // SAFETY: vectors with visible tokens lie within a block.
            unsafe {
                let at = row * BLOCK + first;
                let product = L::load(weights.add(at)).mul(L::load(scales.add(first)));
                product.store(scaled.add(at));
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
pub(super) unsafe fn gather_scales(rows: HeadRows, tokens: Range<usize>, to: *mut f32) {
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
