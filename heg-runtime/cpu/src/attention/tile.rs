//! Sums of products in register tiles: queries with keys, and weights with values.

use super::block::Element;
use super::next::Next;
use crate::lanes::{LANES, Lanes};
use std::marker::PhantomData;

/// Most rows of a tile.
pub(super) const TILE_ROWS: usize = 4;

/// Terms between prefetch steps: few enough that their lines are under way together. Chosen.
pub(super) const STEP_TERMS: usize = 4;

/// A matrix product that is computed tile by tile.
pub(super) trait Tiled: Copy {
    /// Computes `ROWS` rows of `VECTORS` vectors from `first` on, with a step of `next` for every [`STEP_TERMS`] terms.
    ///
    /// # Safety
    ///
    /// The product has these rows and vectors.
    unsafe fn tile<L: Lanes, const ROWS: usize, const VECTORS: usize>(
        self,
        first: usize,
        next: &mut Next,
    );
}

/// A matrix product, `sums[r] = start[r] + Σ factors[r][k] · terms[k]` with ascending k, each product added with one
/// rounding.
pub(super) struct Products<E> {
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
    /// Element type of the terms.
    pub(super) element: PhantomData<E>,
}

impl<E> Clone for Products<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Products<E> {}

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
/// The product has the rows and the vectors.
#[inline(always)]
pub(super) unsafe fn compute<L: Lanes, T: Tiled>(
    product: T,
    rows: usize,
    vectors: usize,
    next: &mut Next,
) {
    // SAFETY: the caller's product has these rows and vectors.
    unsafe {
        match rows {
            1 => compute_rows::<L, T, 1>(product, vectors, next),
            2 => compute_rows::<L, T, 2>(product, vectors, next),
            3 => compute_rows::<L, T, 3>(product, vectors, next),
            _ => compute_rows::<L, T, TILE_ROWS>(product, vectors, next),
        }
    }
}

/// [`compute`] of exactly `ROWS` rows.
///
/// # Safety
///
/// As [`compute`].
#[inline(always)]
pub(super) unsafe fn compute_rows<L: Lanes, T: Tiled, const ROWS: usize>(
    product: T,
    vectors: usize,
    next: &mut Next,
) {
    let most = const { most_vectors(L::REGISTERS, ROWS) };
    let tiles = vectors.div_ceil(most);
    let mut first = 0;
    for tile in 0..tiles {
        // Five vectors are split into three and two: four and one would wait for the latency of the single sum.
        let count = (vectors - first).div_ceil(tiles - tile);
        // SAFETY: the caller's product has these rows and vectors; `first + count` is at most `vectors`.
        unsafe {
            match count {
                1 => product.tile::<L, ROWS, 1>(first, next),
                2 if most >= 2 => product.tile::<L, ROWS, 2>(first, next),
                3 if most >= 3 => product.tile::<L, ROWS, 3>(first, next),
                _ if most >= 4 => product.tile::<L, ROWS, 4>(first, next),
                _ => {}
            }
        }
        first += count;
    }
}

/// Most vectors of a tile: sums take half of the registers.
const fn most_vectors(registers: usize, rows: usize) -> usize {
    match registers / 2 / rows {
        0 => 1,
        most @ 1..=3 => most,
        _ => 4,
    }
}

/// Number of prefetch steps of a product with `terms` terms, over tiles of at most [`TILE_ROWS`] rows.
pub(super) const fn steps<L: Lanes>(rows: usize, vectors: usize, terms: usize) -> usize {
    let whole = vectors.div_ceil(most_vectors(L::REGISTERS, TILE_ROWS));
    let part = match rows % TILE_ROWS {
        0 => 0,
        part => vectors.div_ceil(most_vectors(L::REGISTERS, part)),
    };
    (rows / TILE_ROWS * whole + part) * terms.div_ceil(STEP_TERMS)
}

// The pointers have factors and sums for the rows, and terms and sums for the vectors.
impl<E: Element> Tiled for Products<E> {
    #[inline(always)]
    unsafe fn tile<L: Lanes, const ROWS: usize, const VECTORS: usize>(
        self,
        first: usize,
        next: &mut Next,
    ) {
        // SAFETY: the caller has factors and sums for `ROWS` rows, and terms and sums for the vectors up to `first +
        // VECTORS`.
        unsafe {
            let sums_start = self.sums.add(first * LANES);
            let terms_start = self.terms.add(first * LANES * E::BYTES);
            let mut sums = [[L::splat(0.0); VECTORS]; ROWS];
            if let Start::Scaled(factors) = self.start {
                for (row, sums) in sums.iter_mut().enumerate() {
                    let factor = L::splat(*factors.add(row));
                    for (vector, sum) in sums.iter_mut().enumerate() {
                        let from = sums_start.add(row * self.sums_stride + vector * LANES);
                        *sum = L::load(from).mul(factor);
                    }
                }
            }
            for piece in (0..self.count).step_by(STEP_TERMS) {
                next.step();
                for k in piece..self.count.min(piece + STEP_TERMS) {
                    let from = terms_start.add(k * self.terms_stride_bytes);
                    let mut terms = [L::splat(0.0); VECTORS];
                    for (vector, term) in terms.iter_mut().enumerate() {
                        *term = E::load(from.add(vector * LANES * E::BYTES), LANES);
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let factor = L::splat(*self.factors.add(row * self.factors_stride + k));
                        for (sum, term) in sums.iter_mut().zip(terms) {
                            *sum = factor.mul_add(term, *sum);
                        }
                    }
                }
            }
            for (row, sums) in sums.into_iter().enumerate() {
                for (vector, sum) in sums.into_iter().enumerate() {
                    sum.store(sums_start.add(row * self.sums_stride + vector * LANES));
                }
            }
        }
    }
}
