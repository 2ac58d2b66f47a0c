//! Pairs of integers with AVX2 and with AVX-512.

use super::avx2::{Avx2, padded};
use super::avx512::Avx512;
use super::{LANES, Pairs};
use std::arch::x86_64::*;

/// Loads `count` bytes, at most sixteen; the others are zero.
///
/// # Safety
///
/// `from` has `count` elements.
#[inline(always)]
unsafe fn bytes(from: *const i8, count: usize) -> __m128i {
    // SAFETY: the caller has the elements, or they were copied to an array of sixteen; every machine of this
    // architecture has the instruction.
    unsafe {
        match count < LANES {
            true => _mm_loadu_si128(padded(from, count).as_ptr().cast()),
            false => _mm_loadu_si128(from.cast()),
        }
    }
}

impl Pairs for Avx2 {
    type Pairs = (__m256i, __m256i);
    type Sums = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn splat_pair(from: *const i16) -> Self::Pairs {
        // SAFETY: the caller has AVX2 and two elements at `from`.
        unsafe {
            let pair = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
            (pair, pair)
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(from: *const i16) -> Self::Pairs {
        // SAFETY: the caller has AVX2 and 32 elements at `from`.
        unsafe {
            (
                _mm256_loadu_si256(from.cast()),
                _mm256_loadu_si256(from.add(LANES).cast()),
            )
        }
    }
    #[inline(always)]
    unsafe fn pair_neighbours(from: *const i8, count: usize) -> Self {
        let elements = 2 * count;
        // SAFETY: the caller has AVX2 and the elements; where the upper half has none, none are read.
        unsafe {
            let lower = bytes(from, elements.min(LANES));
            let upper = bytes(from.wrapping_add(LANES), elements.saturating_sub(LANES));
            widened(lower, upper)
        }
    }
    #[inline(always)]
    unsafe fn pair_rows(first: *const i8, second: *const i8, count: usize) -> [Self; 2] {
        let (lower, upper) = (count.min(LANES), count.saturating_sub(LANES));
        // SAFETY: the caller has AVX2 and the elements of both rows.
        unsafe {
            [
                paired(bytes(first, lower), bytes(second, lower)),
                paired(
                    bytes(first.wrapping_add(LANES), upper),
                    bytes(second.wrapping_add(LANES), upper),
                ),
            ]
        }
    }
    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        // SAFETY: the caller has AVX2.
        unsafe { (_mm256_setzero_si256(), _mm256_setzero_si256()) }
    }
    #[inline(always)]
    unsafe fn add_products(sums: Self::Sums, a: Self::Pairs, b: Self::Pairs) -> Self::Sums {
        // SAFETY: the caller has AVX2.
        unsafe {
            (
                _mm256_add_epi32(sums.0, _mm256_madd_epi16(a.0, b.0)),
                _mm256_add_epi32(sums.1, _mm256_madd_epi16(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    unsafe fn from_sums(sums: Self::Sums) -> Self {
        // SAFETY: the caller has AVX2.
        unsafe { Self::new(_mm256_cvtepi32_ps(sums.0), _mm256_cvtepi32_ps(sums.1)) }
    }
}

/// Widens sixteen bytes of two rows to pairs.
///
/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
unsafe fn paired(first: __m128i, second: __m128i) -> Avx2 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let lower = _mm_unpacklo_epi8(first, second);
        widened(lower, _mm_unpackhi_epi8(first, second))
    }
}

/// Widens 32 bytes to 16 bits each.
///
/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
unsafe fn widened(lower: __m128i, upper: __m128i) -> Avx2 {
    // SAFETY: the caller has AVX2.
    unsafe {
        Avx2::new(
            _mm256_castsi256_ps(_mm256_cvtepi8_epi16(lower)),
            _mm256_castsi256_ps(_mm256_cvtepi8_epi16(upper)),
        )
    }
}

impl Pairs for Avx512 {
    type Pairs = __m512i;
    type Sums = __m512i;

    #[inline(always)]
    unsafe fn splat_pair(from: *const i16) -> Self::Pairs {
        // SAFETY: the caller has AVX-512 and two elements at `from`.
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn load_pairs(from: *const i16) -> Self::Pairs {
        // SAFETY: the caller has AVX-512 and 32 elements at `from`.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn pair_neighbours(from: *const i8, count: usize) -> Self {
        // SAFETY: the caller has AVX-512 and the elements.
        unsafe { wide(bytes_of_32(from, 2 * count)) }
    }
    #[inline(always)]
    unsafe fn pair_rows(first: *const i8, second: *const i8, count: usize) -> [Self; 2] {
        // SAFETY: the caller has AVX-512 and the elements of both rows; masked ones are not read.
        unsafe {
            let (first, second) = (bytes_of_32(first, count), bytes_of_32(second, count));
            // Elements 0 to 7 and 16 to 23, then the others.
            let lower = _mm256_unpacklo_epi8(first, second);
            let upper = _mm256_unpackhi_epi8(first, second);
            [
                wide(_mm256_permute2x128_si256::<0x20>(lower, upper)),
                wide(_mm256_permute2x128_si256::<0x31>(lower, upper)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn add_products(sums: Self::Sums, a: Self::Pairs, b: Self::Pairs) -> Self::Sums {
        // SAFETY: the caller has AVX-512 with VNNI.
        unsafe { _mm512_dpwssd_epi32(sums, a, b) }
    }
    #[inline(always)]
    unsafe fn from_sums(sums: Self::Sums) -> Self {
        // SAFETY: the caller has AVX-512.
        Self::new(unsafe { _mm512_cvtepi32_ps(sums) })
    }
}

/// Loads `count` bytes, at most 32; the others are zero.
///
/// # Safety
///
/// The machine has AVX-512, and `from` has `count` elements.
#[inline(always)]
unsafe fn bytes_of_32(from: *const i8, count: usize) -> __m256i {
    // SAFETY: the caller has AVX-512 and the elements; masked ones are not read.
    unsafe {
        match count < 2 * LANES {
            true => _mm256_maskz_loadu_epi8((1 << count) - 1, from),
            false => _mm256_loadu_si256(from.cast()),
        }
    }
}

/// Widens 32 bytes to 16 bits each.
///
/// # Safety
///
/// The machine has AVX-512.
#[inline(always)]
unsafe fn wide(bytes: __m256i) -> Avx512 {
    // SAFETY: the caller has AVX-512.
    Avx512::new(unsafe { _mm512_castsi512_ps(_mm512_cvtepi8_epi16(bytes)) })
}
