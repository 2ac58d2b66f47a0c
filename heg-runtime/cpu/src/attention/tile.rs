//! Sums of products in register tiles: queries with keys, and weights with values.

use super::block::Element;
use crate::lanes::{LANES, Lanes};

/// Most rows of a tile.
pub(super) const TILE_ROWS: usize = 4;

/// A matrix product, `sums[r] = start[r] + Σ factors[r][k] · terms[k]` with ascending k, each product added with one
/// rounding.
#[derive(Clone, Copy)]
pub(super) struct Products {
    /// Factors of row 0, `count` of them.
    pub(super) factors: *const f32,
    /// Elements from one row of factors to the next.
    pub(super) factors_stride: usize,
    /// Row of terms for k = 0.
    pub(super) terms: *const u8,
    /// Bytes from one row of terms to the next.
    pub(super) terms_stride_bytes: usize,
    /// Number of products per sum.
    pub(super) count: usize,
    /// Initial value of the sums.
    pub(super) start: Start,
    /// Row 0 of the sums.
    pub(super) sums: *mut f32,
    /// Elements from one row of sums to the next.
    pub(super) sums_stride: usize,
}

/// Initial value of sums.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// Zeros.
    Zero,
    /// The stored sums, times a factor per row.
    Scaled(*const f32),
}

/// Computes `rows` rows, at most [`TILE_ROWS`], over `vectors` vectors of terms.
///
/// # Safety
///
/// The pointers have factors and sums for the rows, and terms and sums for the vectors.
#[inline(always)]
pub(super) unsafe fn sum_products<L: Lanes, E: Element>(
    products: Products,
    rows: usize,
    vectors: usize,
) {
    // SAFETY: the caller has factors, terms and sums for these rows and vectors.
    unsafe {
        match rows {
            1 => sum_rows::<L, E, 1>(products, vectors),
            2 => sum_rows::<L, E, 2>(products, vectors),
            3 => sum_rows::<L, E, 3>(products, vectors),
            _ => sum_rows::<L, E, TILE_ROWS>(products, vectors),
        }
    }
}

/// [`sum_products`] of exactly `ROWS` rows.
///
/// # Safety
///
/// As [`sum_products`].
#[inline(always)]
pub(super) unsafe fn sum_rows<L: Lanes, E: Element, const ROWS: usize>(
    products: Products,
    vectors: usize,
) {
    // Sums take half of the registers.
    let most = const {
        match L::REGISTERS / 2 / ROWS {
            0 => 1,
            1..=3 => L::REGISTERS / 2 / ROWS,
            _ => 4,
        }
    };
    let tiles = vectors.div_ceil(most);
    let mut first = 0;
    for tile in 0..tiles {
        // Five vectors are split into three and two: four and one would wait for the latency of the single sum.
        let count = (vectors - first).div_ceil(tiles - tile);
        // SAFETY: the caller has factors, terms and sums for these rows and vectors; `first + count` is at most
        // `vectors`.
        unsafe {
            match count {
                1 => sum_tile::<L, E, ROWS, 1>(products, first),
                2 if most >= 2 => sum_tile::<L, E, ROWS, 2>(products, first),
                3 if most >= 3 => sum_tile::<L, E, ROWS, 3>(products, first),
                _ if most >= 4 => sum_tile::<L, E, ROWS, 4>(products, first),
                _ => {}
            }
        }
        first += count;
    }
}

/// [`sum_products`] of `ROWS` rows over `VECTORS` vectors from `first` on.
///
/// # Safety
///
/// As [`sum_products`].
#[inline(always)]
unsafe fn sum_tile<L: Lanes, E: Element, const ROWS: usize, const VECTORS: usize>(
    products: Products,
    first: usize,
) {
    // SAFETY: the caller has factors and sums for `ROWS` rows, and terms and sums for the vectors up to `first +
    // VECTORS`.
    unsafe {
        let sums_start = products.sums.add(first * LANES);
        let terms_start = products.terms.add(first * LANES * E::BYTES);
        let mut sums = [[L::splat(0.0); VECTORS]; ROWS];
        if let Start::Scaled(factors) = products.start {
            for (row, sums) in sums.iter_mut().enumerate() {
                let factor = L::splat(*factors.add(row));
                for (vector, sum) in sums.iter_mut().enumerate() {
                    let from = sums_start.add(row * products.sums_stride + vector * LANES);
                    *sum = L::load(from).mul(factor);
                }
            }
        }
        for k in 0..products.count {
            let from = terms_start.add(k * products.terms_stride_bytes);
            let mut terms = [L::splat(0.0); VECTORS];
            for (vector, term) in terms.iter_mut().enumerate() {
                *term = E::load(from.add(vector * LANES * E::BYTES), LANES);
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let factor = L::splat(*products.factors.add(row * products.factors_stride + k));
                for (sum, term) in sums.iter_mut().zip(terms) {
                    *sum = factor.mul_add(term, *sum);
                }
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            for (vector, sum) in sums.into_iter().enumerate() {
                sum.store(sums_start.add(row * products.sums_stride + vector * LANES));
            }
        }
    }
}
