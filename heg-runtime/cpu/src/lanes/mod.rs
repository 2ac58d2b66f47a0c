//! Sixteen f32 lanes, over which all kernels but the integer products are written.
//!
//! A kernel is one generic function over [`Lanes`]. Each instruction set implements them in its own module with the
//! same bits: operations are those of IEEE 754, a multiply-add rounds once, and sums over lanes have one order.
//!
//! A kernel's arguments are a struct, and [`Kernel`] is its function. [`run`] compiles it once for each instruction set
//! and chooses one:
//!
//! ```ignore
//! struct Scale { x: *const f32, factor: f32, width: usize, out: *mut f32 }
//!
//! impl Kernel for Scale {
//!     type Output = ();
//!
//!     #[inline(always)]
//!     unsafe fn run<L: Lanes>(self) {
//!         // SAFETY: pointers have `width` elements, which the caller vouches for.
//!         unsafe {
//!             let factor = L::splat(self.factor);
//!             for at in (0..self.width).step_by(LANES) {
//!                 let count = LANES.min(self.width - at);
//!                 let x = L::load_first(self.x.add(at), count);
//!                 x.mul(factor).store_first(self.out.add(at), count);
//!             }
//!         }
//!     }
//! }
//!
//! // SAFETY: the machine has `isa`, and both slices have the width.
//! unsafe { lanes::run(isa, Scale { x: x.as_ptr(), factor, width: x.len(), out: out.as_mut_ptr() }) };
//! ```
//!
//! Functions that a kernel passes lanes to are `#[inline(always)]` too, and it has no closures over lanes: code that is
//! not inlined is compiled without the instructions. Loops over lanes in arrays use indices up to constant bounds,
//! since iterator adapters are not always inlined, and arrays are kept out of registers if an index is not constant.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod elements;
pub(crate) mod functions;
mod pairs;
pub(crate) mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86_pairs;

pub(crate) use pairs::Pairs;

use crate::Isa;

/// Number of lanes.
pub(crate) const LANES: usize = 16;

/// Sixteen f32.
///
/// # Safety
///
/// Methods need the instructions of the implementation, so a kernel runs only within a function that enables them,
/// after [`Isa::is_available`](crate::Isa::is_available) was checked. Implementations mark every method
/// `#[inline(always)]`. Pointers need no alignment; `count` is at most [`LANES`], and no more elements are read or
/// written.
pub(crate) trait Lanes: Copy + Pairs {
    /// Number of values that fit in the registers, which limits the size of tiles.
    const REGISTERS: usize;

    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self;
    /// Loads sixteen elements.
    unsafe fn load(from: *const f32) -> Self;
    /// Loads `count` elements; the other lanes are zero.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;
    /// Loads sixteen bf16 as f32.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// Loads `count` bf16 as f32; the other lanes are zero.
    unsafe fn load_bf16_first(from: *const u16, count: usize) -> Self;
    /// Loads sixteen f16 as f32.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// Loads `count` f16 as f32; the other lanes are zero.
    unsafe fn load_f16_first(from: *const u16, count: usize) -> Self;
    /// Loads `count` 8-bit integers as f32; the other lanes are zero.
    unsafe fn load_i8_first(from: *const i8, count: usize) -> Self;
    /// Loads `count` bytes, at most four for each lane, to the bits of the lanes; those of other bytes are zero.
    unsafe fn load_bytes(from: *const u8, count: usize) -> Self;
    /// Splits the bits of each lane into two bf16, and widens them: the lower halves, and the upper ones.
    unsafe fn widen_bf16(self) -> [Self; 2];
    /// Stores sixteen elements.
    unsafe fn store(self, to: *mut f32);
    /// Stores the first `count` elements.
    unsafe fn store_first(self, to: *mut f32, count: usize);
    /// Stores the first `count` elements as bf16, rounded to nearest, ties to even; lanes are finite.
    unsafe fn store_bf16_first(self, to: *mut u16, count: usize);
    /// Stores all lanes as 16-bit integers, rounded to nearest, ties to even; each fits in one, or is stored as any.
    unsafe fn store_i16(self, to: *mut i16);
    /// `self + other`.
    unsafe fn add(self, other: Self) -> Self;
    /// `self − other`.
    unsafe fn sub(self, other: Self) -> Self;
    /// `self · other`.
    unsafe fn mul(self, other: Self) -> Self;
    /// `self / other`.
    unsafe fn div(self, other: Self) -> Self;
    /// `self · factor + term`, rounded once.
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self;
    /// `a · b + c` of single numbers, rounded once.
    #[inline(always)]
    unsafe fn fused(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    /// The larger of both, lane by lane; lanes are not NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// The smaller of both, lane by lane; lanes are not NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// The absolute value.
    unsafe fn abs(self) -> Self;
    /// The nearest whole number, ties to even.
    unsafe fn round(self) -> Self;
    /// `self · 2^exponent` for whole exponents from −126 to 127.
    unsafe fn times_power(self, exponent: Self) -> Self;
    /// The first `count` lanes of `self`, and the other lanes of `other`.
    unsafe fn first_or(self, count: usize, other: Self) -> Self;
    /// Interleaves both: lanes 0 to 7 as `self[0], other[0], self[1], …`, then lanes 8 to 15 likewise.
    unsafe fn interleave(self, other: Self) -> (Self, Self);
    /// The sum of all lanes, added by halves: lane i + lane i + 8 for the lower eight, then i + 4, i + 2 and i + 1.
    unsafe fn sum(self) -> f32;
    /// The largest lane, compared in the order of [`sum`](Self::sum); lanes are not NaN.
    unsafe fn largest(self) -> f32;
}

/// A kernel with its arguments.
pub(crate) trait Kernel {
    /// Result of the kernel.
    type Output;

    /// Runs it. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    ///
    /// See [`Lanes`]; each kernel documents its pointers.
    unsafe fn run<L: Lanes>(self) -> Self::Output;
}

/// Runs a kernel with the instructions of `isa`.
///
/// # Safety
///
/// The machine has `isa`, and the kernel's arguments are valid.
#[inline]
pub(crate) unsafe fn run<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    // SAFETY: the caller checked that the machine has `isa`, and the arguments are what the kernel needs.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Amx | Isa::Avx512Vnni => avx512::run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni | Isa::Avx2 => avx2::run(kernel),
            _ => kernel.run::<portable::Portable>(),
        }
    }
}
