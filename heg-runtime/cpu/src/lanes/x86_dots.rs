//! Dot products of integers with AVX2 and with AVX-512.

use super::avx2::{Avx2, padded};
use super::avx512::Avx512;
use super::{DOT_COLUMNS, DOT_KEYS, Dots, LANES, Queries};
use std::arch::x86_64::*;

impl Dots for Avx2 {
    #[inline(always)]
    unsafe fn dots<const ROWS: usize>(queries: Queries, keys: [*const i8; DOT_KEYS]) {
        // Two keys at a time: the sums of four rows take half of the registers.
        for first in (0..DOT_KEYS).step_by(2) {
            let dots = queries.dots.wrapping_add(first);
            let queries = Queries { dots, ..queries };
            // SAFETY: the caller has AVX2, the rows of queries, both keys, and room for their dot products.
            unsafe { dots_of_two::<ROWS>(queries, [keys[first], keys[first + 1]]) };
        }
    }
}

/// [`Dots::dots`] with two keys.
///
/// # Safety
///
/// As [`Dots::dots`].
#[inline(always)]
unsafe fn dots_of_two<const ROWS: usize>(queries: Queries, keys: [*const i8; 2]) {
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
                sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(query, wide[0]));
                sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(query, wide[1]));
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
    #[inline(always)]
    unsafe fn dots<const ROWS: usize>(queries: Queries, keys: [*const i8; DOT_KEYS]) {
        // SAFETY: the caller has AVX-512, the rows of queries, padded, and room for dot products; masked columns are not
        // read.
        unsafe {
            let mask = u32::MAX >> (DOT_COLUMNS - queries.len.min(DOT_COLUMNS));
            let mut wide = [_mm512_setzero_si512(); DOT_KEYS];
            for (key, wide) in keys.into_iter().zip(&mut wide) {
                *wide = _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(mask, key));
            }
            for row in 0..ROWS {
                let query = _mm512_loadu_si512(queries.columns(row, 0).cast());
                let a = _mm512_madd_epi16(query, wide[0]);
                let b = _mm512_madd_epi16(query, wide[1]);
                let c = _mm512_madd_epi16(query, wide[2]);
                let d = _mm512_madd_epi16(query, wide[3]);
                let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
                let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
                let quarters =
                    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
                let upper = _mm512_extracti64x4_epi64::<1>(quarters);
                let halves = _mm256_add_epi32(_mm512_castsi512_si256(quarters), upper);
                let upper = _mm256_extracti128_si256::<1>(halves);
                let four = _mm_add_epi32(_mm256_castsi256_si128(halves), upper);
                _mm_storeu_si128(queries.of_row(row).cast(), four);
            }
        }
    }
}
