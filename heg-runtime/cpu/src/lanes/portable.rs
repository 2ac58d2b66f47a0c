//! Lanes in portable Rust. Operations are not inlined: inlined into tiles, they would take minutes to compile.

use super::{LANES, Lanes, Pairs};
use half::{bf16, f16};

/// `a · b + c`, rounded once. Without an instruction for it, `f32::mul_add` calls the C library, and MinGW's rounds
/// twice.
pub(crate) fn fused(a: f32, b: f32, c: f32) -> f32 {
    libm::fmaf(a, b, c)
}

/// Sixteen f32 in an array.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; LANES]);

impl Portable {
    #[inline(never)]
    fn each(self, f: impl Fn(f32) -> f32) -> Self {
        Self(self.0.map(f))
    }

    #[inline(never)]
    fn with(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }

    /// Loads and converts `count` elements; the other lanes are zero.
    #[inline(never)]
    unsafe fn converted<T: Copy>(from: *const T, count: usize, f: impl Fn(T) -> f32) -> Self {
        Self(std::array::from_fn(|lane| {
            if lane < count {
                // SAFETY: the caller has `count` elements at `from`, and `lane` is below it.
                f(unsafe { from.add(lane).read_unaligned() })
            } else {
                0.0
            }
        }))
    }
}

// Only the first `count` elements are accessed, or sixteen in methods without a count.
impl Lanes for Portable {
    const REGISTERS: usize = 4;

    #[inline(never)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; LANES])
    }
    #[inline(never)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller has sixteen elements at `from`.
        unsafe { Self::converted(from, LANES, |x| x) }
    }
    #[inline(never)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: the caller has `count` elements at `from`.
        unsafe { Self::converted(from, count, |x| x) }
    }
    #[inline(never)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller has sixteen elements at `from`.
        unsafe { Self::load_bf16_first(from, LANES) }
    }
    #[inline(never)]
    unsafe fn load_bf16_first(from: *const u16, count: usize) -> Self {
        // SAFETY: the caller has `count` elements at `from`.
        unsafe { Self::converted(from, count, |x: u16| bf16::from_bits(x).to_f32()) }
    }
    #[inline(never)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller has sixteen elements at `from`.
        unsafe { Self::load_f16_first(from, LANES) }
    }
    #[inline(never)]
    unsafe fn load_f16_first(from: *const u16, count: usize) -> Self {
        // SAFETY: the caller has `count` elements at `from`.
        unsafe { Self::converted(from, count, |x: u16| f16::from_bits(x).to_f32()) }
    }
    #[inline(never)]
    unsafe fn load_i8_first(from: *const i8, count: usize) -> Self {
        // SAFETY: the caller has `count` elements at `from`.
        unsafe { Self::converted(from, count, f32::from) }
    }
    #[inline(never)]
    unsafe fn load_bytes(from: *const u8, count: usize) -> Self {
        let mut lanes = [0.0; LANES];
        // SAFETY: the caller has `count` bytes at `from`, for which the lanes have room.
        unsafe { from.copy_to_nonoverlapping(lanes.as_mut_ptr().cast(), count) };
        Self(lanes)
    }
    #[inline(never)]
    unsafe fn widen_bf16(self) -> [Self; 2] {
        let bits = self.0.map(f32::to_bits);
        [bits.map(|bits| bits << 16), bits.map(|bits| bits & !0xffff)]
            .map(|bits| Self(bits.map(f32::from_bits)))
    }
    #[inline(never)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller has room for sixteen elements at `to`.
        unsafe { self.store_first(to, LANES) }
    }
    #[inline(never)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        for (lane, x) in self.0.iter().take(count).enumerate() {
            // SAFETY: the caller has room for `count` elements at `to`, and `lane` is below `count`.
            unsafe { to.add(lane).write_unaligned(*x) };
        }
    }
    #[inline(never)]
    unsafe fn store_bf16_first(self, to: *mut u16, count: usize) {
        for (lane, x) in self.0.iter().take(count).enumerate() {
            // SAFETY: the caller has room for `count` elements at `to`, and `lane` is below `count`.
            unsafe { to.add(lane).write_unaligned(bf16::from_f32(*x).to_bits()) };
        }
    }
    #[inline(never)]
    unsafe fn store_i16(self, to: *mut i16) {
        let integers = self.0.map(|x| x.round_ties_even() as i16);
        // SAFETY: the caller has room for sixteen elements at `to`.
        unsafe { to.cast::<[i16; LANES]>().write_unaligned(integers) };
    }
    #[inline(never)]
    unsafe fn add(self, other: Self) -> Self {
        self.with(other, |a, b| a + b)
    }
    #[inline(never)]
    unsafe fn sub(self, other: Self) -> Self {
        self.with(other, |a, b| a - b)
    }
    #[inline(never)]
    unsafe fn mul(self, other: Self) -> Self {
        self.with(other, |a, b| a * b)
    }
    #[inline(never)]
    unsafe fn div(self, other: Self) -> Self {
        self.with(other, |a, b| a / b)
    }
    #[inline(never)]
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            fused(self.0[lane], factor.0[lane], term.0[lane])
        }))
    }
    #[inline(never)]
    unsafe fn fused(a: f32, b: f32, c: f32) -> f32 {
        fused(a, b, c)
    }
    #[inline(never)]
    unsafe fn max(self, other: Self) -> Self {
        self.with(other, |a, b| if a > b { a } else { b })
    }
    #[inline(never)]
    unsafe fn min(self, other: Self) -> Self {
        self.with(other, |a, b| if a < b { a } else { b })
    }
    #[inline(never)]
    unsafe fn abs(self) -> Self {
        self.each(f32::abs)
    }
    #[inline(never)]
    unsafe fn round(self) -> Self {
        self.each(f32::round_ties_even)
    }
    #[inline(never)]
    unsafe fn times_power(self, exponent: Self) -> Self {
        self.with(exponent, |x, power| {
            x * f32::from_bits(((power as i32 + 127) as u32) << 23)
        })
    }
    #[inline(never)]
    unsafe fn first_or(self, count: usize, other: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            if lane < count {
                self.0[lane]
            } else {
                other.0[lane]
            }
        }))
    }
    #[inline(never)]
    unsafe fn interleave(self, other: Self) -> (Self, Self) {
        let half = |first: usize| {
            Self(std::array::from_fn(|lane| match lane % 2 {
                0 => self.0[first + lane / 2],
                _ => other.0[first + lane / 2],
            }))
        };
        (half(0), half(LANES / 2))
    }
    #[inline(never)]
    unsafe fn sum(self) -> f32 {
        let mut lanes = self.0;
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
        }
        lanes[0]
    }
    #[inline(never)]
    unsafe fn largest(self) -> f32 {
        let mut lanes = self.0;
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                let (a, b) = (lanes[lane], lanes[lane + half]);
                lanes[lane] = if a > b { a } else { b };
            }
        }
        lanes[0]
    }
}

impl Portable {
    /// The bits of `count` pairs that `pair` makes; the other lanes are zero.
    #[inline(never)]
    fn of_pairs(count: usize, pair: impl Fn(usize) -> [i8; 2]) -> Self {
        let bits = |pair: [i8; 2]| {
            let [[a, b], [c, d]] = pair.map(|x| i16::from(x).to_ne_bytes());
            f32::from_bits(u32::from_ne_bytes([a, b, c, d]))
        };
        let lane = |lane| if lane < count { bits(pair(lane)) } else { 0.0 };
        Self(std::array::from_fn(lane))
    }
}

impl Pairs for Portable {
    type Pairs = [[i16; 2]; LANES];
    type Sums = [i32; LANES];

    #[inline(never)]
    unsafe fn splat_pair(from: *const i16) -> Self::Pairs {
        // SAFETY: the caller has two elements at `from`.
        [unsafe { from.cast::<[i16; 2]>().read_unaligned() }; LANES]
    }
    #[inline(never)]
    unsafe fn load_pairs(from: *const i16) -> Self::Pairs {
        // SAFETY: the caller has 32 elements at `from`.
        unsafe { from.cast::<Self::Pairs>().read_unaligned() }
    }
    #[inline(never)]
    unsafe fn widen_quads(self) -> [Self; 2] {
        let quads = self.0.map(|lane| lane.to_bits().to_ne_bytes());
        let quads = quads.map(|quad| quad.map(|byte| byte as i8));
        [
            Self::of_pairs(LANES, |lane| [quads[lane][0], quads[lane][2]]),
            Self::of_pairs(LANES, |lane| [quads[lane][1], quads[lane][3]]),
        ]
    }
    #[inline(never)]
    unsafe fn pair_rows(first: *const i8, second: *const i8, count: usize) -> [Self; 2] {
        let half = |from: usize| {
            let count = count.saturating_sub(from);
            let (first, second) = (first.wrapping_add(from), second.wrapping_add(from));
            // SAFETY: the caller has `count` elements of both, and those below `count` are read.
            Self::of_pairs(count, |lane| unsafe {
                [first.add(lane).read(), second.add(lane).read()]
            })
        };
        [half(0), half(LANES)]
    }
    #[inline(never)]
    unsafe fn no_sums() -> Self::Sums {
        [0; LANES]
    }
    #[inline(never)]
    unsafe fn add_products(sums: Self::Sums, a: Self::Pairs, b: Self::Pairs) -> Self::Sums {
        std::array::from_fn(|lane| {
            let products = a[lane].iter().zip(b[lane]);
            let products = products.map(|(a, b)| i32::from(*a).wrapping_mul(i32::from(b)));
            products.fold(sums[lane], i32::wrapping_add)
        })
    }
    #[inline(never)]
    unsafe fn from_sums(sums: Self::Sums) -> Self {
        Self(sums.map(|sum| sum as f32))
    }
}
