//! Products of pairs of 16-bit integers: queries with keys, and weights with values. Keys and values of a block are widened
//! once, to pairs that all rows read: keys of dimensions two apart, a token in each lane; values of neighbouring tokens, a
//! dimension in each lane.

use super::BLOCK;
use super::block::HeadRows;
use super::next::Next;
use super::tile::{STEP_TERMS, Tiled};
use crate::lanes::{LANES, Lanes};
use std::ops::Range;

/// Widens the values of `tokens` to pairs of tokens, `[BLOCK / 2, width]`, with zeros behind the head. A token beside them has
/// a neighbour's values.
///
/// # Safety
///
/// `tokens` is not empty and its rows are readable, `width` is a multiple of [`LANES`] and no less than `rows.len`, and `to`
/// has `BLOCK / 2 · width` elements.
#[inline(always)]
pub(super) unsafe fn pair_values<L: Lanes>(
    rows: HeadRows,
    tokens: Range<usize>,
    to: *mut f32,
    width: usize,
    next: &mut Next,
) {
    let row = |token: usize| {
        let token = token.max(tokens.start).min(tokens.end - 1);
        rows.start.wrapping_add(token * rows.stride_bytes).cast()
    };
    let whole = rows.len / (2 * LANES) * (2 * LANES);
    for pair in tokens.start / 2..tokens.end.div_ceil(2) {
        if pair % STEP_TERMS == 0 {
            next.step();
        }
        let [one, other]: [*const i8; 2] = [row(2 * pair), row(2 * pair + 1)];
        // SAFETY: elements before `len` of tokens within `tokens` are read, and written within `to`.
        unsafe {
            let to = to.add(pair * width);
            for first in (0..whole).step_by(2 * LANES) {
                let [lower, upper] = L::pair_rows(one.add(first), other.add(first), 2 * LANES);
                lower.store(to.add(first));
                upper.store(to.add(first + LANES));
            }
            let rest = rows.len - whole;
            if rest > 0 {
                let [lower, upper] = L::pair_rows(one.add(whole), other.add(whole), rest);
                lower.store(to.add(whole));
                if rest > LANES {
                    upper.store(to.add(whole + LANES));
                }
            }
        }
    }
}

/// A matrix product of integers, `sums[r] = Σ factors[r][k] · terms[k]` over pairs, and where its sums go.
#[derive(Clone, Copy)]
pub(super) struct PairProducts<S> {
    /// Factors of row 0, `count` pairs.
    pub(super) factors: *const i16,
    /// Elements from one row of factors to the next.
    pub(super) factors_stride: usize,
    /// Row of pairs for k = 0.
    pub(super) terms: *const i16,
    /// Elements from one row of pairs to the next.
    pub(super) terms_stride: usize,
    /// Number of pairs per sum, whose magnitudes fit in 32 bits.
    pub(super) count: usize,
    /// Receiver of the sums.
    pub(super) sink: S,
}

/// A receiver of sums of integers.
pub(super) trait Sink: Copy {
    /// Takes a vector of a row.
    ///
    /// # Safety
    ///
    /// The receiver has the row and the vector.
    unsafe fn take<L: Lanes>(self, row: usize, vector: usize, sums: L);
}

// The pointers have factors for the rows, and terms for the vectors.
impl<S: Sink> Tiled for PairProducts<S> {
    #[inline(always)]
    unsafe fn tile<L: Lanes, const ROWS: usize, const VECTORS: usize>(
        self,
        first: usize,
        next: &mut Next,
    ) {
        // SAFETY: the caller has factors for `ROWS` rows, and terms and a receiver for the vectors up to `first + VECTORS`.
        unsafe {
            let terms_start = self.terms.add(2 * first * LANES);
            let mut sums = [[L::no_sums(); VECTORS]; ROWS];
            for piece in (0..self.count).step_by(STEP_TERMS) {
                next.step();
                for k in piece..self.count.min(piece + STEP_TERMS) {
                    let from = terms_start.add(k * self.terms_stride);
                    let mut terms = [L::load_pairs(from); VECTORS];
                    for (vector, term) in terms.iter_mut().enumerate().skip(1) {
                        *term = L::load_pairs(from.add(2 * vector * LANES));
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let factor =
                            L::splat_pair(self.factors.add(row * self.factors_stride + 2 * k));
                        for (sum, term) in sums.iter_mut().zip(terms) {
                            *sum = L::add_products(*sum, factor, term);
                        }
                    }
                }
            }
            for (row, sums) in sums.into_iter().enumerate() {
                for (vector, sums) in sums.into_iter().enumerate() {
                    self.sink.take::<L>(row, first + vector, L::from_sums(sums));
                }
            }
        }
    }
}

/// Scores of a tile's rows: the sum over groups of each dot product times the scale of its key's group, times the query's
/// unit.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    /// Scores of row 0: `[rows, BLOCK]`.
    pub(super) scores: *mut f32,
    /// Scales of the keys' groups.
    pub(super) scales: *const f32,
    /// Units of the rows, for the last group.
    pub(super) units: Option<*const f32>,
    /// Whether no group was added before.
    pub(super) is_first: bool,
}

impl Sink for Scores {
    #[inline(always)]
    unsafe fn take<L: Lanes>(self, row: usize, vector: usize, sums: L) {
        // SAFETY: the caller has scores and units for the row, and scores and scales for the vector.
        unsafe {
            let at = self.scores.add(row * BLOCK + vector * LANES);
            let before = match self.is_first {
                true => L::splat(0.0),
                false => L::load(at),
            };
            let scales = L::load(self.scales.add(vector * LANES));
            let score = sums.mul_add(scales, before);
            match self.units {
                None => score.store(at),
                Some(units) => score.mul(L::splat(*units.add(row))).store(at),
            }
        }
    }
}

/// Sums of a tile's rows, to which weighted values are added: `sums[r] · factors[r] + sum · units[r]`.
#[derive(Clone, Copy)]
pub(super) struct WeightedValues {
    /// Sums of row 0.
    pub(super) sums: *mut f32,
    /// Elements from one row of sums to the next.
    pub(super) stride: usize,
    /// Rescaling factors of earlier sums, one for each row.
    pub(super) factors: *const f32,
    /// Units of the weights, one for each row.
    pub(super) units: *const f32,
}

impl Sink for WeightedValues {
    #[inline(always)]
    unsafe fn take<L: Lanes>(self, row: usize, vector: usize, sums: L) {
        // SAFETY: the caller has sums, factors and units for the row, and sums for the vector.
        unsafe {
            let at = self.sums.add(row * self.stride + vector * LANES);
            let before = L::load(at).mul(L::splat(*self.factors.add(row)));
            sums.mul_add(L::splat(*self.units.add(row)), before)
                .store(at);
        }
    }
}
