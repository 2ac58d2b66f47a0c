//! Integer products with 256-bit vectors: AVX2, with or without the byte dot products of AVX-VNNI.

use super::vector::{Vector, kernels};
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// 32 bytes, multiplied as `D` does.
#[derive(Clone, Copy)]
pub(super) struct Ymm<D>(__m256i, PhantomData<D>);

/// Lanes of 32 bits.
pub(super) const LANES: usize = 8;

/// Multiplication of bytes, with the contracts of [`Vector`].
pub(super) trait Dots: Copy {
    unsafe fn weights(weights: __m256i) -> __m256i;
    unsafe fn dot(sums: __m256i, weights: __m256i, digits: __m256i) -> __m256i;
    unsafe fn offset(sums: __m256i, offset: i32) -> __m256i;
}

/// Dot products by `vpdpbusd`.
#[derive(Clone, Copy)]
pub(super) struct Vnni;

impl Dots for Vnni {
    #[inline(always)]
    unsafe fn weights(weights: __m256i) -> __m256i {
        // One side of `vpdpbusd` is unsigned, so 128 is added to every weight.
        // SAFETY: the caller has AVX2 and AVX-VNNI.
        unsafe { _mm256_xor_si256(weights, _mm256_set1_epi8(i8::MIN)) }
    }
    #[inline(always)]
    unsafe fn dot(sums: __m256i, weights: __m256i, digits: __m256i) -> __m256i {
        // SAFETY: the caller has AVX2 and AVX-VNNI.
        unsafe { _mm256_dpbusd_avx_epi32(sums, weights, digits) }
    }
    #[inline(always)]
    unsafe fn offset(sums: __m256i, offset: i32) -> __m256i {
        // SAFETY: the caller has AVX2 and AVX-VNNI.
        unsafe { _mm256_add_epi32(sums, _mm256_set1_epi32(offset)) }
    }
}

/// Dot products by `vpmaddubsw`: the weights' magnitudes are the unsigned side, and their signs are moved to the
/// digits. No digit is −128, so both are exact, and so are the sums of two products: at most 128 · 127 · 2 < 2¹⁵.
#[derive(Clone, Copy)]
pub(super) struct Magnitudes;

impl Dots for Magnitudes {
    #[inline(always)]
    unsafe fn weights(weights: __m256i) -> __m256i {
        weights
    }
    #[inline(always)]
    unsafe fn dot(sums: __m256i, weights: __m256i, digits: __m256i) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe {
            let (magnitudes, signed) =
                (_mm256_abs_epi8(weights), _mm256_sign_epi8(digits, weights));
            let pairs = _mm256_maddubs_epi16(magnitudes, signed);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
    #[inline(always)]
    unsafe fn offset(sums: __m256i, _: i32) -> __m256i {
        sums
    }
}

impl<D: Dots> Ymm<D> {
    #[inline(always)]
    fn of(bits: __m256i) -> Self {
        Self(bits, PhantomData)
    }
}

/// Mask of the first `count` of 8.
#[inline(always)]
unsafe fn first(count: usize) -> __m256i {
    // SAFETY: the caller has AVX2, FMA and F16C.
    unsafe {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes)
    }
}

impl<D: Dots> Vector<LANES> for Ymm<D> {
    type Sums = __m256;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { Self::of(_mm256_setzero_si256()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const i8) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C, and 32 bytes at `from`.
        unsafe { Self::of(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const i8, count: usize) -> Self {
        let mut bytes = [0; LANES * 4];
        // SAFETY: the caller has AVX2, FMA and F16C, and `count` bytes at `from`; no others are read.
        unsafe {
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), count);
            Self::load(bytes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut i8) {
        // SAFETY: the caller has AVX2, FMA and F16C, and room for 32 bytes at `to`.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const i8) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C, and four bytes at `from`.
        unsafe { Self::of(_mm256_set1_epi32(from.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn weights(self) -> Self {
        // SAFETY: the caller has AVX2 and the instructions of `D`.
        unsafe { Self::of(D::weights(self.0)) }
    }
    #[inline(always)]
    unsafe fn dot(self, weights: Self, digits: Self) -> Self {
        // SAFETY: the caller has AVX2 and the instructions of `D`.
        unsafe { Self::of(D::dot(self.0, weights.0, digits.0)) }
    }
    #[inline(always)]
    unsafe fn offset(self, offset: i32) -> Self {
        // SAFETY: the caller has AVX2 and the instructions of `D`.
        unsafe { Self::of(D::offset(self.0, offset)) }
    }
    #[inline(always)]
    unsafe fn plus(self, number: i32) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { Self::of(_mm256_add_epi32(self.0, _mm256_set1_epi32(number))) }
    }
    #[inline(always)]
    unsafe fn nibbles(self, flipped: Self) -> [Self; 2] {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            let (bytes, low) = (_mm256_xor_si256(self.0, flipped.0), _mm256_set1_epi8(0x0f));
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low);
            [Self::of(_mm256_and_si256(bytes, low)), Self::of(high)]
        }
    }
    #[inline(always)]
    unsafe fn sixteens(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            [
                Self::of(_mm256_permute2x128_si256::<0x20>(a.0, b.0)),
                Self::of(_mm256_permute2x128_si256::<0x31>(a.0, b.0)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn times_base(self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { Self::of(_mm256_sub_epi32(_mm256_slli_epi32::<8>(self.0), self.0)) }
    }
    #[inline(always)]
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { transpose(rows.map(|row| row.0)).map(Self::of) }
    }
    #[inline(always)]
    unsafe fn totals(parts: [Self; 8]) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            let pair = |a: Self, b: Self| _mm256_hadd_epi32(a.0, b.0);
            let low = _mm256_hadd_epi32(pair(parts[0], parts[1]), pair(parts[2], parts[3]));
            let high = _mm256_hadd_epi32(pair(parts[4], parts[5]), pair(parts[6], parts[7]));
            Self::of(_mm256_add_epi32(
                _mm256_permute2x128_si256::<0x20>(low, high),
                _mm256_permute2x128_si256::<0x31>(low, high),
            ))
        }
    }
    #[inline(always)]
    unsafe fn totals_of_fours(parts: [Self; 4]) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            let pair = |a: Self, b: Self| _mm256_hadd_epi32(a.0, b.0);
            let totals = _mm256_hadd_epi32(pair(parts[0], parts[1]), pair(parts[2], parts[3]));
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            Self::of(_mm256_permutevar8x32_epi32(totals, order))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16, count: usize) -> Self {
        let mut halves = [0_u16; LANES];
        // SAFETY: the caller has AVX2, FMA and F16C, and `count` elements at `from`; no others are read.
        unsafe {
            let from = match count {
                LANES => from,
                _ => {
                    std::ptr::copy_nonoverlapping(from, halves.as_mut_ptr(), count);
                    halves.as_ptr()
                }
            };
            let numbers = _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
            Self::of(_mm256_castps_si256(numbers))
        }
    }

    #[inline(always)]
    unsafe fn no_sums() -> __m256 {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn add_scaled(self, scale: f32, sums: __m256) -> __m256 {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { _mm256_fmadd_ps(_mm256_cvtepi32_ps(self.0), _mm256_set1_ps(scale), sums) }
    }
    #[inline(always)]
    unsafe fn add_products(self, factors: __m256, scale: f32, sums: __m256) -> __m256 {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            let factors = _mm256_mul_ps(factors, _mm256_set1_ps(scale));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(self.0), factors, sums)
        }
    }
    #[inline(always)]
    unsafe fn load_sums(from: *const f32, count: usize) -> __m256 {
        // SAFETY: the caller has AVX2, FMA and F16C, and `count` elements at `from`; no others are read.
        unsafe {
            match count {
                LANES => _mm256_loadu_ps(from),
                _ => _mm256_maskload_ps(from, first(count)),
            }
        }
    }
    #[inline(always)]
    unsafe fn store_sums(sums: __m256, to: *mut f32, count: usize) {
        // SAFETY: the caller has AVX2, FMA and F16C, and room for `count` elements at `to`; no others are written.
        unsafe {
            match count {
                LANES => _mm256_storeu_ps(to, sums),
                _ => _mm256_maskstore_ps(to, first(count), sums),
            }
        }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn multiply(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn multiply_add(a: __m256, factor: f32, term: __m256) -> __m256 {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { _mm256_fmadd_ps(a, _mm256_set1_ps(factor), term) }
    }
}

/// Transposes 8 × 8 elements of 32 bits: by pairs, by fours, and by halves of vectors.
#[inline(always)]
unsafe fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: the caller has AVX2, FMA and F16C.
    unsafe {
        let mut pairs = rows;
        for i in 0..4 {
            let (a, b) = (rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i] = _mm256_unpacklo_epi32(a, b);
            pairs[2 * i + 1] = _mm256_unpackhi_epi32(a, b);
        }
        let mut fours = pairs;
        for i in 0..2 {
            for half in 0..2 {
                let (a, b) = (pairs[4 * i + half], pairs[4 * i + 2 + half]);
                fours[4 * i + 2 * half] = _mm256_unpacklo_epi64(a, b);
                fours[4 * i + 2 * half + 1] = _mm256_unpackhi_epi64(a, b);
            }
        }
        let mut columns = fours;
        for i in 0..4 {
            let (a, b) = (fours[i], fours[4 + i]);
            columns[i] = _mm256_permute2x128_si256::<0x20>(a, b);
            columns[4 + i] = _mm256_permute2x128_si256::<0x31>(a, b);
        }
        columns
    }
}

kernels!(Ymm<Vnni>, LANES, "avx2,fma,f16c,avxvnni");
kernels!(Ymm<Magnitudes>, LANES, "avx2,fma,f16c");
