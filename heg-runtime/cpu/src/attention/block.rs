//! Keys and values of a block, converted to the form that tiles read.

use super::{BLOCK, KvElement};
use crate::lanes::{LANES, Lanes};
use std::ops::Range;

/// An element type of keys and values.
pub(super) trait Element {
    /// Bytes per element.
    const BYTES: usize;
    /// Loads `count` elements as f32; the other lanes are zero.
    ///
    /// # Safety
    ///
    /// As [`Lanes::load_first`].
    unsafe fn load<L: Lanes>(from: *const u8, count: usize) -> L;
}

/// 32-bit floats.
pub(super) enum F32 {}

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8, count: usize) -> L {
        // SAFETY: the caller has the instructions of `L` and `count` elements at `from`.
        unsafe {
            match count {
                LANES => L::load(from.cast()),
                _ => L::load_first(from.cast(), count),
            }
        }
    }
}

/// bfloat16.
pub(super) enum Bf16 {}

impl Element for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8, count: usize) -> L {
        // SAFETY: the caller has the instructions of `L` and `count` elements at `from`.
        unsafe {
            match count {
                LANES => L::load_bf16(from.cast()),
                _ => L::load_bf16_first(from.cast(), count),
            }
        }
    }
}

/// One head's rows of a block.
#[derive(Clone, Copy)]
pub(super) struct HeadRows {
    /// First element of the head in the row of the block's first token.
    pub(super) start: *const u8,
    /// Bytes from one token to the next.
    pub(super) stride_bytes: usize,
    /// Elements per row.
    pub(super) len: usize,
}

impl HeadRows {
    /// The rows from `token` on.
    pub(super) fn from(self, token: usize) -> Self {
        Self {
            start: self.start.wrapping_add(token * self.stride_bytes),
            ..self
        }
    }
}

/// Keys and values of the next block, prefetched step by step while this one is computed.
pub(super) struct Next {
    keys: HeadRows,
    values: HeadRows,
    /// Bytes per row.
    row_bytes: usize,
    /// Tokens left to prefetch; the first may be partly done.
    tokens: Range<usize>,
    /// Byte offset to continue from in the first token's row.
    byte: usize,
    /// Cache lines of keys, and as many of values, per step.
    lines: usize,
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

impl Next {
    /// Prefetches the first `tokens` tokens of both, spread over `steps` steps. `is_last`: the item has no head behind
    /// this one.
    pub(super) fn new(
        element: KvElement,
        [keys, values]: [HeadRows; 2],
        is_last: bool,
        tokens: usize,
        steps: usize,
    ) -> Self {
        let row_bytes = match (element, is_last) {
            // The line with the scales is that of the next head's elements.
            (KvElement::I8, false) => keys.len,
            _ => element.head_bytes(keys.len),
        };
        Self {
            keys,
            values,
            row_bytes,
            tokens: 0..tokens,
            byte: 0,
            lines: (tokens * row_bytes.div_ceil(LINE_BYTES)).div_ceil(steps),
        }
    }

    /// Prefetches the lines of one step.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        for _ in 0..self.lines {
            if self.tokens.is_empty() {
                return;
            }
            for rows in [self.keys, self.values] {
                let row = self.tokens.start * rows.stride_bytes;
                prefetch(rows.start.wrapping_add(row + self.byte));
            }
            self.byte += LINE_BYTES;
            if self.byte >= self.row_bytes {
                self.byte = 0;
                self.tokens.start += 1;
            }
        }
    }
}

/// Prefetches a cache line into the level-2 cache.
#[inline(always)]
fn prefetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch of any address faults nowhere.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Transposes `tokens` of the block to one row of [`BLOCK`] tokens per dimension. Lanes of other tokens in the same
/// vector get a neighbour's values; vectors without any of `tokens` are left alone.
///
/// # Safety
///
/// `tokens` is not empty and its rows are readable; `to` has `rows.len · BLOCK` elements.
#[inline(always)]
pub(super) unsafe fn transpose<L: Lanes, E: Element>(
    rows: HeadRows,
    tokens: Range<usize>,
    to: *mut f32,
    next: &mut Next,
) {
    let whole = rows.len / LANES * LANES;
    for first_token in (tokens.start / LANES * LANES..tokens.end).step_by(LANES) {
        // SAFETY: elements before `len` are read, and `to` has their rows.
        unsafe {
            for first in (0..whole).step_by(LANES) {
                let to = to.add(first * BLOCK + first_token);
                next.step();
                transpose_lanes::<L, E>(rows, &tokens, first_token, first..first + LANES, to);
            }
            if whole < rows.len {
                let to = to.add(whole * BLOCK + first_token);
                transpose_lanes::<L, E>(rows, &tokens, first_token, whole..rows.len, to);
            }
        }
    }
}

/// Number of prefetch steps in [`transpose`].
pub(super) fn transpose_steps(head_dim: usize, tokens: &Range<usize>) -> usize {
    head_dim / LANES * (tokens.end.div_ceil(LANES) - tokens.start / LANES)
}

/// [`transpose`] of one vector of tokens and at most one of dimensions.
///
/// # Safety
///
/// As [`transpose`]; `to` has the rows of `dimensions`.
#[inline(always)]
unsafe fn transpose_lanes<L: Lanes, E: Element>(
    rows: HeadRows,
    tokens: &Range<usize>,
    first_token: usize,
    dimensions: Range<usize>,
    to: *mut f32,
) {
    // SAFETY: token indices are clamped to readable rows.
    unsafe {
        let mut lanes = [L::splat(0.0); LANES];
        for (token, lane) in (first_token..).zip(&mut lanes) {
            let token = token.max(tokens.start).min(tokens.end - 1);
            let from = token * rows.stride_bytes + dimensions.start * E::BYTES;
            *lane = E::load(rows.start.add(from), dimensions.len());
        }
        for (dimension, lane) in transposed(lanes).iter().enumerate().take(dimensions.len()) {
            lane.store(to.add(dimension * BLOCK));
        }
    }
}

/// Transposes: lane i of row j becomes lane j of row i.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
unsafe fn transposed<L: Lanes>(mut rows: [L; LANES]) -> [L; LANES] {
    // Row and lane indices have four bits each. Each interleave moves the highest bit of the row index to the end of
    // the lane index, and the highest bit of the lane index to the end of the row index: after four they have changed
    // places.
    for _ in 0..LANES.ilog2() {
        let mut next = rows;
        for row in 0..LANES / 2 {
            // SAFETY: the caller has the instructions of `L`.
            let (lower, upper) = unsafe { rows[row].interleave(rows[row + LANES / 2]) };
            next[2 * row] = lower;
            next[2 * row + 1] = upper;
        }
        rows = next;
    }
    rows
}

/// Copies `tokens` of the block to f32 rows of `width` elements, padded with zeros behind the head.
///
/// # Safety
///
/// Rows of `tokens` are readable, `width` is a multiple of [`LANES`] and no less than `rows.len`, and `to` has
/// `BLOCK · width` elements.
#[inline(always)]
pub(super) unsafe fn widen<L: Lanes, E: Element>(
    rows: HeadRows,
    tokens: Range<usize>,
    to: *mut f32,
    width: usize,
) {
    for token in tokens {
        for first in (0..rows.len).step_by(LANES) {
            let count = LANES.min(rows.len - first);
            // SAFETY: elements before `len` of tokens within `tokens` are read, and written within `to`.
            unsafe {
                let from = rows.start.add(token * rows.stride_bytes + first * E::BYTES);
                E::load::<L>(from, count).store(to.add(token * width + first));
            }
        }
    }
}
