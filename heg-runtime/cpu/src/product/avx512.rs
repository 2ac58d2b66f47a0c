//! Integer products with AVX-512 and its byte dot products.

use super::vector::{Vector, kernels};
use std::arch::x86_64::*;

/// 64 bytes.
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512i);

/// Lanes of 32 bits.
pub(super) const LANES: usize = 16;

/// Mask of the first `count` of 16.
#[inline(always)]
fn first(count: usize) -> __mmask16 {
    ((1_u32 << count) - 1) as __mmask16
}

impl Avx512 {
    /// `self + other`, lane by lane.
    #[inline(always)]
    pub(super) unsafe fn add_lanes(self, other: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        unsafe { Self(_mm512_add_epi32(self.0, other.0)) }
    }

    /// `self · scales + sums`, rounded once.
    #[inline(always)]
    pub(super) unsafe fn add_scaled_by(self, scales: __m512, sums: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_fmadd_ps(_mm512_cvtepi32_ps(self.0), scales, sums) }
    }

    /// The first half, then zeros; and zeros, then the second half.
    #[inline(always)]
    pub(super) unsafe fn halves(self) -> [Self; 2] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            [
                Self(_mm512_maskz_mov_epi32(0x00ff, self.0)),
                Self(_mm512_maskz_mov_epi32(0xff00, self.0)),
            ]
        }
    }

    /// Loads half a vector from each place.
    #[inline(always)]
    pub(super) unsafe fn load_halves(first: *const i8, second: *const i8) -> Self {
        // SAFETY: the caller has AVX-512, and 32 bytes at either place.
        unsafe {
            let first = _mm512_castsi256_si512(_mm256_loadu_si256(first.cast()));
            Self(_mm512_inserti64x4::<1>(
                first,
                _mm256_loadu_si256(second.cast()),
            ))
        }
    }

    /// The floats whose bits these are.
    #[inline(always)]
    pub(super) unsafe fn into_sums(self) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_castsi512_ps(self.0) }
    }
}

impl Vector<LANES> for Avx512 {
    type Sums = __m512;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has AVX-512.
        unsafe { Self(_mm512_setzero_si512()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const i8) -> Self {
        // SAFETY: the caller has AVX-512, and 64 bytes at `from`.
        unsafe { Self(_mm512_loadu_si512(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const i8, count: usize) -> Self {
        let mask = u64::MAX.unbounded_shr(64 - count as u32);
        // SAFETY: the caller has AVX-512, and `count` bytes at `from`; no others are read.
        unsafe { Self(_mm512_maskz_loadu_epi8(mask, from)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut i8) {
        // SAFETY: the caller has AVX-512, and room for 64 bytes at `to`.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const i8) -> Self {
        // SAFETY: the caller has AVX-512, and four bytes at `from`.
        unsafe { Self(_mm512_set1_epi32(from.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn weights(self) -> Self {
        // One side of `vpdpbusd` is unsigned, so 128 is added to every weight.
        // SAFETY: the caller has AVX-512.
        unsafe { Self(_mm512_xor_si512(self.0, _mm512_set1_epi8(i8::MIN))) }
    }
    #[inline(always)]
    unsafe fn dot(self, weights: Self, digits: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        unsafe { Self(_mm512_dpbusd_epi32(self.0, weights.0, digits.0)) }
    }
    #[inline(always)]
    unsafe fn offset(self, offset: i32) -> Self {
        // SAFETY: the caller has AVX-512.
        unsafe { Self(_mm512_add_epi32(self.0, _mm512_set1_epi32(offset))) }
    }
    #[inline(always)]
    unsafe fn plus(self, number: i32) -> Self {
        // SAFETY: the caller has AVX-512.
        unsafe { Self(_mm512_add_epi32(self.0, _mm512_set1_epi32(number))) }
    }
    #[inline(always)]
    unsafe fn nibbles(self, flipped: Self) -> [Self; 2] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let (bytes, low) = (_mm512_xor_si512(self.0, flipped.0), _mm512_set1_epi8(0x0f));
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), low);
            [Self(_mm512_and_si512(bytes, low)), Self(high)]
        }
    }
    #[inline(always)]
    unsafe fn sixteens(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            [
                Self(_mm512_shuffle_i32x4::<0x88>(a.0, b.0)),
                Self(_mm512_shuffle_i32x4::<0xdd>(a.0, b.0)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn times_base(self) -> Self {
        // SAFETY: the caller has AVX-512.
        unsafe { Self(_mm512_sub_epi32(_mm512_slli_epi32::<8>(self.0), self.0)) }
    }
    #[inline(always)]
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        // SAFETY: the caller has AVX-512.
        unsafe { transpose(rows.map(|row| row.0)).map(Self) }
    }
    #[inline(always)]
    unsafe fn totals(parts: [Self; 8]) -> Self {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let low = quarters([parts[0].0, parts[1].0, parts[2].0, parts[3].0]);
            let high = quarters([parts[4].0, parts[5].0, parts[6].0, parts[7].0]);
            let totals = _mm512_add_epi32(
                _mm512_shuffle_i32x4::<0x88>(low, high),
                _mm512_shuffle_i32x4::<0xdd>(low, high),
            );
            // First halves of four vectors, their second halves, and likewise for the other four.
            let order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
            Self(_mm512_permutexvar_epi32(order, totals))
        }
    }
    #[inline(always)]
    unsafe fn totals_of_fours(parts: [Self; 4]) -> Self {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let totals = quarters([parts[0].0, parts[1].0, parts[2].0, parts[3].0]);
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            Self(_mm512_permutexvar_epi32(order, totals))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16, count: usize) -> Self {
        // SAFETY: the caller has AVX-512, and `count` elements at `from`; no others are read.
        unsafe {
            let halves = _mm256_maskz_loadu_epi16(first(count), from.cast());
            Self(_mm512_castps_si512(_mm512_cvtph_ps(halves)))
        }
    }

    #[inline(always)]
    unsafe fn no_sums() -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn add_scaled(self, scale: f32, sums: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_fmadd_ps(_mm512_cvtepi32_ps(self.0), _mm512_set1_ps(scale), sums) }
    }
    #[inline(always)]
    unsafe fn add_products(self, factors: __m512, scale: f32, sums: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let factors = _mm512_mul_ps(factors, _mm512_set1_ps(scale));
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(self.0), factors, sums)
        }
    }
    #[inline(always)]
    unsafe fn load_sums(from: *const f32, count: usize) -> __m512 {
        // SAFETY: the caller has AVX-512, and `count` elements at `from`; no others are read.
        unsafe { _mm512_maskz_loadu_ps(first(count), from) }
    }
    #[inline(always)]
    unsafe fn store_sums(sums: __m512, to: *mut f32, count: usize) {
        // SAFETY: the caller has AVX-512, and room for `count` elements at `to`; no others are written.
        unsafe { _mm512_mask_storeu_ps(to, first(count), sums) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn multiply(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn multiply_add(a: __m512, factor: f32, term: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_fmadd_ps(a, _mm512_set1_ps(factor), term) }
    }
}

/// Adds up each quarter of four vectors: quarter q of the result has the sums of their quarters q.
#[inline(always)]
unsafe fn quarters(parts: [__m512i; 4]) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let pair =
            |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (a, b) = (pair(parts[0], parts[1]), pair(parts[2], parts[3]));
        _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
    }
}

/// Transposes 16 × 16 elements of 32 bits: by pairs, by fours, and twice by quarters of vectors.
#[inline(always)]
unsafe fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let mut pairs = rows;
        for i in 0..8 {
            let (a, b) = (rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i] = _mm512_unpacklo_epi32(a, b);
            pairs[2 * i + 1] = _mm512_unpackhi_epi32(a, b);
        }
        let mut fours = pairs;
        for i in 0..4 {
            for half in 0..2 {
                let (a, b) = (pairs[4 * i + half], pairs[4 * i + 2 + half]);
                fours[4 * i + 2 * half] = _mm512_unpacklo_epi64(a, b);
                fours[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(a, b);
            }
        }
        let mut eights = fours;
        for i in 0..4 {
            for half in 0..2 {
                let (a, b) = (fours[8 * half + i], fours[8 * half + 4 + i]);
                eights[8 * half + i] = _mm512_shuffle_i32x4::<0x88>(a, b);
                eights[8 * half + 4 + i] = _mm512_shuffle_i32x4::<0xdd>(a, b);
            }
        }
        let mut columns = eights;
        for i in 0..8 {
            let (a, b) = (eights[i], eights[8 + i]);
            columns[i] = _mm512_shuffle_i32x4::<0x88>(a, b);
            columns[8 + i] = _mm512_shuffle_i32x4::<0xdd>(a, b);
        }
        columns
    }
}

kernels!(
    Avx512,
    LANES,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma"
);
