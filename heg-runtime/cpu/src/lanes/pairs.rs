//! Dot products of integers in registers of 256 bits.

use super::avx2::{Avx2, padded};
use super::avx512::Avx512;
use super::{DOT_KEYS, Dots, LANES, Queries};
use std::arch::x86_64::*;

impl Dots for Avx2 {
    #[inline(always)]
    unsafe fn dots<const ROWS: usize>(queries: Queries, keys: [*const i8; DOT_KEYS]) {
        // SAFETY: the caller has AVX2, and what the products need.
        unsafe { dots_in_pairs::<ROWS, Avx2>(queries, keys) }
    }
}

/// A sum of products of neighbouring integers.
trait Pairs {
    /// `sum + a · b`, products of 16-bit integers added in pairs.
    ///
    /// # Safety
    ///
    /// See [`Lanes`](super::Lanes).
    unsafe fn add_products(sum: __m256i, a: __m256i, b: __m256i) -> __m256i;
}

impl Pairs for Avx2 {
    #[inline(always)]
    unsafe fn add_products(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)) }
    }
}

/// [`Dots::dots`], two keys at a time: the sums of four rows take half of the registers.
///
/// # Safety
///
/// As [`Dots::dots`].
#[inline(always)]
unsafe fn dots_in_pairs<const ROWS: usize, P: Pairs>(
    queries: Queries,
    keys: [*const i8; DOT_KEYS],
) {
    for first in (0..DOT_KEYS).step_by(2) {
        let dots = queries.dots.wrapping_add(first);
        let queries = Queries { dots, ..queries };
        // SAFETY: the caller has the instructions, the rows of queries, both keys, and room for their dot products.
        unsafe { dots_of_two::<ROWS, P>(queries, [keys[first], keys[first + 1]]) };
    }
}

/// [`Dots::dots`] with two keys.
///
/// # Safety
///
/// As [`Dots::dots`].
#[inline(always)]
unsafe fn dots_of_two<const ROWS: usize, P: Pairs>(queries: Queries, keys: [*const i8; 2]) {
    // SAFETY: the caller has AVX2, the rows of queries, padded, and room for dot products; columns behind the keys are
    // not read.
    unsafe {
        let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
        for first in (0..queries.len).step_by(LANES) {
            let count = queries.len - first;
            let mut wide = [_mm256_setzero_si256(); 2];
            for key in 0..2 {
                let from = keys[key].add(first);
                let bytes = match count < LANES {
                    true => _mm_loadu_si128(padded(from, count).as_ptr().cast()),
                    false => _mm_loadu_si128(from.cast()),
                };
                wide[key] = _mm256_cvtepi8_epi16(bytes);
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let query = _mm256_loadu_si256(queries.columns(row, first).cast());
                sums[0] = P::add_products(sums[0], query, wide[0]);
                sums[1] = P::add_products(sums[1], query, wide[1]);
            }
        }
        for row in (0..ROWS).step_by(2) {
            let next = usize::min(row + 1, ROWS - 1);
            let one = _mm256_hadd_epi32(sums[row][0], sums[row][1]);
            let other = _mm256_hadd_epi32(sums[next][0], sums[next][1]);
            let both = _mm256_hadd_epi32(one, other);
            let upper = _mm256_extracti128_si256::<1>(both);
            let four = _mm_add_epi32(_mm256_castsi256_si128(both), upper);
            _mm_storel_epi64(queries.of_row(row).cast(), four);
            _mm_storeh_pd(queries.of_row(next).cast(), _mm_castsi128_pd(four));
        }
    }
}

impl Dots for Avx512 {
    /// In registers of 256 bits: the sums of a group have half as many lanes to add up.
    #[inline(always)]
    unsafe fn dots<const ROWS: usize>(queries: Queries, keys: [*const i8; DOT_KEYS]) {
        // SAFETY: the caller has AVX-512, and what the products need.
        unsafe { dots_in_pairs::<ROWS, Avx512>(queries, keys) }
    }
}

impl Pairs for Avx512 {
    #[inline(always)]
    unsafe fn add_products(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller has AVX-512 with VNNI.
        unsafe { _mm256_dpwssd_epi32(sum, a, b) }
    }
}
