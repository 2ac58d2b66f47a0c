//! Lanes in one AVX-512 register.

use super::{Kernel, LANES, Lanes};
use std::arch::x86_64::*;

/// Sixteen f32 in a register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

/// Runs a kernel with these lanes.
///
/// # Safety
///
/// The machine has [`Isa::Avx512Vnni`](crate::Isa::Avx512Vnni), and the caller has what the kernel needs.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function enables the instructions, and the caller has what the kernel needs.
    unsafe { kernel.run::<Avx512>() }
}

/// Mask of the first `count` lanes.
#[inline(always)]
fn first(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

impl Avx512 {
    /// Lanes of a register.
    #[inline(always)]
    pub(super) fn new(lanes: __m512) -> Self {
        Self(lanes)
    }

    /// The register.
    #[inline(always)]
    pub(super) fn lanes(self) -> __m512 {
        self.0
    }
}

// Every method is inlined into `run`, which enables the instructions. Masked elements are not accessed.
impl Lanes for Avx512 {
    const REGISTERS: usize = 32;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller has AVX-512, and sixteen elements at `from`.
        Self(unsafe { _mm512_loadu_ps(from) })
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: the caller has AVX-512, and `count` elements at `from`; no others are read.
        Self(unsafe { _mm512_maskz_loadu_ps(first(count), from) })
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller has AVX-512, and sixteen elements at `from`.
        unsafe { from_bf16(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16_first(from: *const u16, count: usize) -> Self {
        // SAFETY: the caller has AVX-512, and `count` elements at `from`; no others are read.
        unsafe { from_bf16(_mm256_maskz_loadu_epi16(first(count), from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller has AVX-512, and sixteen elements at `from`.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }
    #[inline(always)]
    unsafe fn load_f16_first(from: *const u16, count: usize) -> Self {
        // SAFETY: the caller has AVX-512, and `count` elements at `from`; no others are read.
        Self(unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(count), from.cast())) })
    }
    #[inline(always)]
    unsafe fn load_i8_first(from: *const i8, count: usize) -> Self {
        // SAFETY: the caller has AVX-512, and `count` elements at `from`; no others are read.
        unsafe { from_i8(_mm_maskz_loadu_epi8(first(count), from)) }
    }
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8, count: usize) -> Self {
        // SAFETY: the caller has AVX-512, and `count` bytes at `from`; no others are read.
        Self(unsafe {
            match count < LANES * size_of::<f32>() {
                true => {
                    let bytes = _mm512_maskz_loadu_epi8((1 << count) - 1, from.cast());
                    _mm512_castsi512_ps(bytes)
                }
                false => _mm512_loadu_ps(from.cast()),
            }
        })
    }
    #[inline(always)]
    unsafe fn widen_bf16(self) -> [Self; 2] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let upper = _mm512_and_si512(bits, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            [_mm512_slli_epi32::<16>(bits), upper].map(|bits| Self(_mm512_castsi512_ps(bits)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller has AVX-512, and room for sixteen elements at `to`.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // SAFETY: the caller has AVX-512, and room for `count` elements at `to`; no others are written.
        unsafe { _mm512_mask_storeu_ps(to, first(count), self.0) }
    }
    #[inline(always)]
    unsafe fn store_bf16_first(self, to: *mut u16, count: usize) {
        // SAFETY: the caller has AVX-512, and room for `count` elements at `to`; no others are written.
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let below_half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, below_half));
            _mm256_mask_storeu_epi16(to.cast(), first(count), _mm512_cvtepi32_epi16(rounded));
        }
    }
    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16) {
        // SAFETY: the caller has AVX-512, and room for sixteen elements at `to`.
        unsafe {
            let integers = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(self.0));
            _mm256_storeu_si256(to.cast(), integers);
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, term.0) })
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_abs_ps(self.0) })
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe {
            _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)
        })
    }
    #[inline(always)]
    unsafe fn times_power(self, exponent: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_scalef_ps(self.0, exponent.0) })
    }
    #[inline(always)]
    unsafe fn first_or(self, count: usize, other: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        Self(unsafe { _mm512_mask_blend_ps(first(count), other.0, self.0) })
    }
    #[inline(always)]
    unsafe fn interleave(self, other: Self) -> (Self, Self) {
        // SAFETY: the caller has AVX-512.
        unsafe {
            // Indices from 16 on select from `other`.
            let lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
            (
                Self(_mm512_permutex2var_ps(self.0, lower, other.0)),
                Self(_mm512_permutex2var_ps(self.0, upper, other.0)),
            )
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let upper = _mm512_extractf32x8_ps::<1>(self.0);
            super::avx2::sum_of_eight(_mm256_add_ps(_mm512_castps512_ps256(self.0), upper))
        }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let upper = _mm512_extractf32x8_ps::<1>(self.0);
            super::avx2::largest_of_eight(_mm256_max_ps(_mm512_castps512_ps256(self.0), upper))
        }
    }
}

/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
unsafe fn from_bf16(bits: __m256i) -> Avx512 {
    // SAFETY: the caller has AVX-512.
    let wide = unsafe { _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)) };
    // SAFETY: the caller has AVX-512.
    Avx512(unsafe { _mm512_castsi512_ps(wide) })
}

/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
unsafe fn from_i8(integers: __m128i) -> Avx512 {
    // SAFETY: the caller has AVX-512.
    Avx512(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(integers)) })
}
