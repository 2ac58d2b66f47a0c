//! Kernels on single rows: norms, rotary embedding, gates, sums, conversions.
//!
//! Each is a [`Kernel`](crate::lanes::Kernel) with the arguments of one row, for [`lanes::run`](crate::lanes::run).
//! Pointers need no alignment and have as many elements as their widths tell. An output of the same type as an input
//! may be the same row, but they do not overlap otherwise.

#![allow(unsafe_code, reason = "intrinsics, and rows by pointer")]

mod elementwise;
mod heads;
mod norm;
mod rope;
#[cfg(test)]
mod tests;

use crate::lanes::{LANES, Lanes};

pub(crate) use elementwise::{Activated, Add, Gated, RoundToBf16, Scale, SoftCap};
#[cfg(test)]
pub(crate) use heads::STEPS;
pub(crate) use heads::{CACHE_GROUP, RoundHeads, head_bytes};
pub(crate) use norm::{LayerNorm, RmsNorm};
pub(crate) use rope::Rope;

/// A kernel whose output at an index depends on its inputs there only.
trait Elementwise {
    /// Processes `count` elements from `at` on, at most 16.
    ///
    /// # Safety
    ///
    /// See [`Lanes`]: all pointers have these elements.
    unsafe fn block<L: Lanes>(&self, at: usize, count: usize);
}

/// Runs a kernel over all elements.
///
/// # Safety
///
/// See [`Lanes`]: all pointers have `width` elements.
#[inline(always)]
unsafe fn for_each_block<L: Lanes>(kernel: &impl Elementwise, width: usize) {
    let whole = width / LANES * LANES;
    let mut at = 0;
    while at < whole {
        // SAFETY: these elements are below the width. With a constant count no load is masked.
        unsafe { kernel.block::<L>(at, LANES) };
        at += LANES;
    }
    if whole < width {
        // SAFETY: the remaining elements are below the width.
        unsafe { kernel.block::<L>(whole, width - whole) };
    }
}
