//! Sixteen f32 lanes, which every kernel but the integer products is written over.
//!
//! A kernel is one generic function over [`Lanes`]. Each instruction set implements them in a module of its own and gives
//! the same bits: operations are those of IEEE 754, a multiply-add rounds once, and sums over lanes have one order.
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
//! What a kernel passes lanes to is `#[inline(always)]` too, and it has no closures over them: what is not inlined is
//! compiled without the instructions. Loops over lanes in arrays go by index to constant bounds, for the parts of
//! iterators are not always inlined, and arrays are not in registers where an index is not constant.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod elements;
pub(crate) mod functions;
pub(crate) mod portable;
#[cfg(test)]
mod tests;

use crate::Isa;

/// Number of lanes.
pub(crate) const LANES: usize = 16;

/// Sixteen f32.
///
/// # Safety
///
/// Calls need the instructions of the implementation, so a kernel runs only within a function that enables them, after
/// [`Isa::is_available`](crate::Isa::is_available) said so. Implementations mark every method `#[inline(always)]`.
/// Pointers need no alignment; `count` is at most [`LANES`], and only so many elements are read or written.
pub(crate) trait Lanes: Copy {
    /// How many of them the registers hold: what tiles are cut by.
    const REGISTERS: usize;

    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self;
    /// Sixteen elements.
    unsafe fn load(from: *const f32) -> Self;
    /// The first `count` elements; zeros behind them.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;
    /// Sixteen bf16.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// The first `count` bf16; zeros behind them.
    unsafe fn load_bf16_first(from: *const u16, count: usize) -> Self;
    /// Sixteen f16.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// The first `count` f16; zeros behind them.
    unsafe fn load_f16_first(from: *const u16, count: usize) -> Self;
    /// Sixteen 8-bit integers.
    unsafe fn load_i8(from: *const i8) -> Self;
    /// The first `count` 8-bit integers; zeros behind them.
    unsafe fn load_i8_first(from: *const i8, count: usize) -> Self;
    /// Writes sixteen elements.
    unsafe fn store(self, to: *mut f32);
    /// Writes the first `count` elements.
    unsafe fn store_first(self, to: *mut f32, count: usize);
    /// Writes the first `count` elements as bf16, rounded to nearest, ties to even; lanes are finite.
    unsafe fn store_bf16_first(self, to: *mut u16, count: usize);
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
    /// The larger of both; lanes are no NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// The smaller of both; lanes are no NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// Without its sign.
    unsafe fn abs(self) -> Self;
    /// The nearest whole number, ties to even.
    unsafe fn round(self) -> Self;
    /// `self · 2^exponent` for whole exponents from −126 to 127.
    unsafe fn times_power(self, exponent: Self) -> Self;
    /// The first `count` lanes, and those of `other` behind them.
    unsafe fn first_or(self, count: usize, other: Self) -> Self;
    /// Both interleaved: lanes 0 to 7 as `self[0], other[0], self[1], …`, then lanes 8 to 15 likewise.
    unsafe fn interleave(self, other: Self) -> (Self, Self);
    /// The sum of all lanes: lane i + lane i + 8 for the lower eight, those by i + 4, by i + 2, by i + 1.
    unsafe fn sum(self) -> f32;
    /// The largest lane, compared in the order of [`sum`](Self::sum); lanes are no NaN.
    unsafe fn largest(self) -> f32;
}

/// A kernel with its arguments.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;

    /// Runs it. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    ///
    /// See [`Lanes`]; what pointers need is the kernel's to say.
    unsafe fn run<L: Lanes>(self) -> Self::Output;
}

/// Runs a kernel with the instructions of `isa`.
///
/// # Safety
///
/// The machine has `isa`, and the kernel's arguments are what it needs.
#[inline]
pub(crate) unsafe fn run<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    // SAFETY: the caller vouches for both.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => avx512::run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni | Isa::Avx2 => avx2::run(kernel),
            _ => kernel.run::<portable::Portable>(),
        }
    }
}

/// Asks for the cache line of an address, which need not be readable.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every machine of this architecture has it, and it faults nowhere.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
