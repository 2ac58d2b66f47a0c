//! Lanes in two AVX2 registers.

use super::{Kernel, LANES, Lanes};
use std::arch::x86_64::*;

/// Sixteen f32 in two registers, the lower eight first.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

/// Runs a kernel with these lanes.
///
/// # Safety
///
/// The machine has [`Isa::Avx2`](crate::Isa::Avx2), and the caller has what the kernel needs.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function enables the instructions, and the caller has what the kernel needs.
    unsafe { kernel.run::<Avx2>() }
}

/// Sixteen words of ones, then sixteen of zeros: from index 16 − n on, a mask of the first n lanes.
static MASKS: [i32; 2 * LANES] = {
    let mut masks = [0; 2 * LANES];
    let mut lane = 0;
    while lane < LANES {
        masks[lane] = -1;
        lane += 1;
    }
    masks
};

/// Masks of the first `count` lanes.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
unsafe fn first(count: usize) -> (__m256i, __m256i) {
    let masks = MASKS.as_ptr();
    // SAFETY: the masks have 32 elements, and `count` is at most 16, so 16 are left.
    unsafe {
        let at = masks.add(LANES - count);
        (
            _mm256_loadu_si256(at.cast()),
            _mm256_loadu_si256(at.add(8).cast()),
        )
    }
}

/// Copies `count` elements; the others are zero.
///
/// # Safety
///
/// `from` has `count` elements, at any alignment, and `count` is at most 16.
#[inline(always)]
pub(super) unsafe fn padded<T: Copy + Default>(from: *const T, count: usize) -> [T; LANES] {
    let mut elements = [T::default(); LANES];
    // SAFETY: both have `count` elements; bytes need no alignment.
    unsafe {
        std::ptr::copy_nonoverlapping(
            from.cast::<u8>(),
            elements.as_mut_ptr().cast::<u8>(),
            count * size_of::<T>(),
        );
    }
    elements
}

impl Avx2 {
    /// Lanes of two registers, the lower eight first.
    #[inline(always)]
    pub(super) fn new(lower: __m256, upper: __m256) -> Self {
        Self(lower, upper)
    }

    /// Both registers.
    #[inline(always)]
    pub(super) fn halves(self) -> [__m256; 2] {
        [self.0, self.1]
    }
}

// Every method is inlined into `run`, which enables the instructions. Masked elements are not accessed.
impl Lanes for Avx2 {
    const REGISTERS: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C, and sixteen elements at `from`.
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: the caller has AVX2 and `count` elements at `from`. Masked lanes are not read, so the upper half may
        // begin behind the elements.
        unsafe {
            let (lower, upper) = first(count);
            Self(
                _mm256_maskload_ps(from, lower),
                _mm256_maskload_ps(from.wrapping_add(8), upper),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C, and sixteen elements at `from`.
        unsafe { Self(bf16_eight(from), bf16_eight(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_bf16_first(from: *const u16, count: usize) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C, and `count` elements at `from`; no others are read.
        unsafe {
            match count {
                LANES => Self::load_bf16(from),
                _ => Self::load_bf16(padded(from, count).as_ptr()),
            }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C, and sixteen elements at `from`.
        unsafe {
            Self(
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_f16_first(from: *const u16, count: usize) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C, and `count` elements at `from`; no others are read.
        unsafe {
            match count {
                LANES => Self::load_f16(from),
                _ => Self::load_f16(padded(from, count).as_ptr()),
            }
        }
    }
    #[inline(always)]
    unsafe fn load_i8_first(from: *const i8, count: usize) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C, and `count` elements at `from`; no others are read.
        unsafe {
            let elements = match count {
                LANES => from.cast::<[i8; LANES]>().read(),
                _ => padded(from, count),
            };
            let from = elements.as_ptr();
            Self(i8_eight(from), i8_eight(from.add(8)))
        }
    }
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8, count: usize) -> Self {
        let mut padded = [0.0; LANES];
        // SAFETY: the caller has AVX2 and `count` bytes at `from`, for which the lanes have room; no others are read.
        unsafe {
            match count < size_of_val(&padded) {
                true => {
                    from.copy_to_nonoverlapping(padded.as_mut_ptr().cast(), count);
                    Self::load(padded.as_ptr())
                }
                false => Self::load(from.cast()),
            }
        }
    }
    #[inline(always)]
    unsafe fn widen_bf16(self) -> [Self; 2] {
        // SAFETY: the caller has AVX2.
        unsafe {
            let [[a, b], [c, d]] = [self.0, self.1].map(|lanes| {
                let bits = _mm256_castps_si256(lanes);
                let upper = _mm256_and_si256(bits, _mm256_set1_epi32(0xffff_0000_u32 as i32));
                [_mm256_slli_epi32::<16>(bits), upper].map(|bits| _mm256_castsi256_ps(bits))
            });
            [Self(a, c), Self(b, d)]
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller has AVX2, FMA and F16C, and room for sixteen elements at `to`.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // SAFETY: the caller has AVX2 and room for `count` elements at `to`. Masked lanes are not written, so the upper
        // half may begin behind the elements.
        unsafe {
            let (lower, upper) = first(count);
            _mm256_maskstore_ps(to, lower, self.0);
            _mm256_maskstore_ps(to.wrapping_add(8), upper, self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16_first(self, to: *mut u16, count: usize) {
        let mut elements = [0u16; LANES];
        // SAFETY: the caller has AVX2 and room for `count` elements at `to`; the array has sixteen, and `count` of them
        // are copied.
        unsafe {
            let packed = _mm256_packus_epi32(rounded_bf16(self.0), rounded_bf16(self.1));
            // Packing works on each half of the register.
            let bits = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            if count == LANES {
                _mm256_storeu_si256(to.cast(), bits);
            } else {
                _mm256_storeu_si256(elements.as_mut_ptr().cast(), bits);
                std::ptr::copy_nonoverlapping(
                    elements.as_ptr().cast::<u8>(),
                    to.cast::<u8>(),
                    2 * count,
                );
            }
        }
    }
    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16) {
        // SAFETY: the caller has AVX2, and room for sixteen elements at `to`.
        unsafe {
            let (lower, upper) = (_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
            // Packing works on each half of the register.
            let packed = _mm256_packs_epi32(lower, upper);
            let integers = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            _mm256_storeu_si256(to.cast(), integers);
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            Self(
                _mm256_add_ps(self.0, other.0),
                _mm256_add_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            Self(
                _mm256_sub_ps(self.0, other.0),
                _mm256_sub_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            Self(
                _mm256_mul_ps(self.0, other.0),
                _mm256_mul_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            Self(
                _mm256_div_ps(self.0, other.0),
                _mm256_div_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            Self(
                _mm256_fmadd_ps(self.0, factor.0, term.0),
                _mm256_fmadd_ps(self.1, factor.1, term.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            Self(
                _mm256_max_ps(self.0, other.0),
                _mm256_max_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            Self(
                _mm256_min_ps(self.0, other.0),
                _mm256_min_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            Self(
                _mm256_andnot_ps(sign, self.0),
                _mm256_andnot_ps(sign, self.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            Self(
                _mm256_round_ps::<NEAREST>(self.0),
                _mm256_round_ps::<NEAREST>(self.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn times_power(self, exponent: Self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { self.mul(Self(power_of_two(exponent.0), power_of_two(exponent.1))) }
    }
    #[inline(always)]
    unsafe fn first_or(self, count: usize, other: Self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            let (lower, upper) = first(count);
            Self(
                _mm256_blendv_ps(other.0, self.0, _mm256_castsi256_ps(lower)),
                _mm256_blendv_ps(other.1, self.1, _mm256_castsi256_ps(upper)),
            )
        }
    }
    #[inline(always)]
    unsafe fn interleave(self, other: Self) -> (Self, Self) {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe {
            (
                interleave_eight(self.0, other.0),
                interleave_eight(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { sum_of_eight(_mm256_add_ps(self.0, self.1)) }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the caller has AVX2, FMA and F16C.
        unsafe { largest_of_eight(_mm256_max_ps(self.0, self.1)) }
    }
}

/// # Safety
///
/// See [`Lanes`]: `from` has eight bf16.
#[inline(always)]
unsafe fn bf16_eight(from: *const u16) -> __m256 {
    // SAFETY: the caller has AVX2 and eight elements at `from`.
    unsafe {
        let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
    }
}

/// # Safety
///
/// See [`Lanes`]: `from` has eight integers.
#[inline(always)]
unsafe fn i8_eight(from: *const i8) -> __m256 {
    // SAFETY: the caller has AVX2 and eight elements at `from`.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
}

/// The bits of bf16, one per 32-bit lane.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
unsafe fn rounded_bf16(x: __m256) -> __m256i {
    // SAFETY: the caller has AVX2, FMA and F16C.
    unsafe {
        let bits = _mm256_castps_si256(x);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let below_half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
        _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, below_half))
    }
}

/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
unsafe fn power_of_two(exponent: __m256) -> __m256 {
    // SAFETY: the caller has AVX2, FMA and F16C.
    unsafe {
        let biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

/// Interleaves eight lanes of each.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
unsafe fn interleave_eight(a: __m256, b: __m256) -> Avx2 {
    // SAFETY: the caller has AVX2, FMA and F16C.
    unsafe {
        // Unpacking works on each half of the register.
        let (lower, upper) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        Avx2(
            _mm256_permute2f128_ps::<0x20>(lower, upper),
            _mm256_permute2f128_ps::<0x31>(lower, upper),
        )
    }
}

/// The sum of eight lanes, in the order of [`Lanes::sum`].
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
pub(super) unsafe fn sum_of_eight(x: __m256) -> f32 {
    // SAFETY: the caller has AVX2, FMA and F16C.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// The largest of eight lanes, in the order of [`Lanes::largest`].
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
pub(super) unsafe fn largest_of_eight(x: __m256) -> f32 {
    // SAFETY: the caller has AVX2, FMA and F16C.
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    }
}
