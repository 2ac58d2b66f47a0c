//! Sums of products in register tiles: of queries with keys, and of weights with values.

use super::block::Element;
use crate::lanes::{LANES, Lanes};

/// Rows of a tile, at most.
pub(super) const TILE_ROWS: usize = 4;

/// Rows of a sum of products, `sums[r] = start[r] + Σ factors[r][k] · terms[k]` with ascending k, each product added with
/// one rounding.
#[derive(Clone, Copy)]
pub(super) struct Products {
    /// Factors of row 0.
    pub(super) factors: *const f32,
    /// Elements from the factors of a row to those of the next.
    pub(super) factors_stride: usize,
    /// Terms of k = 0.
    pub(super) terms: *const u8,
    /// Bytes from the terms of a k to those of the next.
    pub(super) terms_stride_bytes: usize,
    /// Number of products in each sum.
    pub(super) count: usize,
    /// What sums start from.
    pub(super) start: Start,
    /// Sums of row 0.
    pub(super) sums: *mut f32,
    /// Elements from the sums of a row to those of the next.
    pub(super) sums_stride: usize,
}

/// What sums start from.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// Zeros.
    Zero,
    /// What is there, by a factor for each row.
    Scaled(*const f32),
}

/// Sums of `rows` rows, at most [`TILE_ROWS`], over `vectors` vectors of terms.
///
/// # Safety
///
/// There are factors and sums for the rows, and terms and sums for the vectors.
#[inline(always)]
pub(super) unsafe fn sum_products<L: Lanes, E: Element>(
    products: Products,
    rows: usize,
    vectors: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        match rows {
            1 => sum_rows::<L, E, 1>(products, vectors),
            2 => sum_rows::<L, E, 2>(products, vectors),
            3 => sum_rows::<L, E, 3>(products, vectors),
            _ => sum_rows::<L, E, TILE_ROWS>(products, vectors),
        }
    }
}

/// [`sum_products`] of `ROWS` rows.
///
/// # Safety
///
/// Those of [`sum_products`].
#[inline(always)]
pub(super) unsafe fn sum_rows<L: Lanes, E: Element, const ROWS: usize>(
    products: Products,
    vectors: usize,
) {
    // Half of the registers hold sums.
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
        // Five vectors are three and two rather than four and one, which would wait for the latency of its sums.
        let count = (vectors - first).div_ceil(tiles - tile);
        // SAFETY: the caller's; `first + count` is at most `vectors`.
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
/// Those of [`sum_products`].
#[inline(always)]
unsafe fn sum_tile<L: Lanes, E: Element, const ROWS: usize, const VECTORS: usize>(
    products: Products,
    first: usize,
) {
    // SAFETY: the caller's.
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
