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
    unsafe fn widen_quads(self) -> [Self; 2] {
        // SAFETY: the caller has AVX2.
        unsafe {
            let [[a, b], [c, d]] = self.halves().map(|half| {
                let quads = _mm256_castps_si256(half);
                let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(quads));
                [even, _mm256_srai_epi16::<8>(quads)].map(|pairs| _mm256_castsi256_ps(pairs))
            });
            [Self::new(a, c), Self::new(b, d)]
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
    unsafe fn widen_quads(self) -> [Self; 2] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let quads = _mm512_castps_si512(self.lanes());
            let even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(quads));
            [even, _mm512_srai_epi16::<8>(quads)].map(|pairs| Self::new(_mm512_castsi512_ps(pairs)))
        }
    }
    #[inline(always)]
    unsafe fn pair_rows(first: *const i8, second: *const i8, count: usize) -> [Self; 2] {
        let (lower, upper) = (count.min(LANES), count.saturating_sub(LANES));
        // SAFETY: the caller has AVX-512 and the elements of both rows.
        unsafe {
            [
                paired_16(first, second, lower),
                paired_16(first.wrapping_add(LANES), second.wrapping_add(LANES), upper),
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

/// Widens `count` bytes of two rows, at most sixteen, to pairs; the other lanes are zero. Extensions are those of loads, and a
/// shift and a blend need no shuffles.
///
/// # Safety
///
/// The machine has AVX-512, and both rows have `count` elements.
#[inline(always)]
unsafe fn paired_16(first: *const i8, second: *const i8, count: usize) -> Avx512 {
    const UPPER: u32 = 0xaaaa_aaaa;
    // SAFETY: the caller has AVX-512 and the elements; masked ones are not read.
    unsafe {
        let mask = ((1u32 << count) - 1) as u16;
        let [first, second] = [first, second].map(|row| {
            _mm512_cvtepi8_epi32(match count < LANES {
                true => _mm_maskz_loadu_epi8(mask, row),
                false => _mm_loadu_si128(row.cast()),
            })
        });
        let pairs = _mm512_mask_blend_epi16(UPPER, first, _mm512_slli_epi32::<16>(second));
        Avx512::new(_mm512_castsi512_ps(pairs))
    }
}
