//! Keys and values of a block, converted to the form that tiles read.

use super::BLOCK;
use super::next::Next;
use crate::lanes::{LANES, Lanes};
use std::ops::Range;

/// An element type of keys, which are transposed four bytes at a time.
pub(super) trait Packed {
    /// Bytes per element.
    const BYTES: usize;
    /// Rows that the bytes of a lane become.
    const ROWS: usize;
    /// Stores the rows of lanes, [`BLOCK`] lanes apart.
    ///
    /// # Safety
    ///
    /// The machine has the instructions of `L`, and there is room at `to`.
    unsafe fn unpack<L: Lanes>(lanes: L, to: *mut f32);
}

/// An element type of floats.
pub(super) trait Element: Packed {
    /// Loads `count` elements as f32; the other lanes are zero.
    ///
    /// # Safety
    ///
    /// As [`Lanes::load_first`].
    unsafe fn load<L: Lanes>(from: *const u8, count: usize) -> L;
}

/// 32-bit floats.
pub(super) enum F32 {}

impl Packed for F32 {
    const BYTES: usize = 4;
    const ROWS: usize = 1;
    #[inline(always)]
    unsafe fn unpack<L: Lanes>(lanes: L, to: *mut f32) {
        // SAFETY: the caller has the instructions of `L` and room for the row.
        unsafe { lanes.store(to) }
    }
}

impl Element for F32 {
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

impl Packed for Bf16 {
    const BYTES: usize = 2;
    const ROWS: usize = 2;
    #[inline(always)]
    unsafe fn unpack<L: Lanes>(lanes: L, to: *mut f32) {
        // SAFETY: the caller has the instructions of `L` and room for both rows.
        unsafe {
            let [lower, upper] = lanes.widen_bf16();
            lower.store(to);
            upper.store(to.add(BLOCK));
        }
    }
}

impl Element for Bf16 {
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

/// 8-bit integers, which become rows of pairs: of elements 4i and 4i + 2, then of 4i + 1 and 4i + 3.
pub(super) enum I8 {}

impl Packed for I8 {
    const BYTES: usize = 1;
    const ROWS: usize = 2;
    #[inline(always)]
    unsafe fn unpack<L: Lanes>(lanes: L, to: *mut f32) {
        // SAFETY: the caller has the instructions of `L` and room for both rows.
        unsafe {
            let [even, odd] = lanes.widen_quads();
            even.store(to);
            odd.store(to.add(BLOCK));
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

/// Bytes of a lane.
const LANE_BYTES: usize = size_of::<f32>();

/// Bytes of a vector.
const VECTOR_BYTES: usize = LANES * LANE_BYTES;

/// Transposes `tokens` of the block to rows of [`BLOCK`] tokens: [`Packed::ROWS`] for every four bytes of a head. Lanes of
/// other tokens in the same vector get a neighbour's values; vectors without any of `tokens` are left alone.
///
/// # Safety
///
/// `tokens` is not empty and its rows are readable; `to` has the rows.
#[inline(always)]
pub(super) unsafe fn transpose<L: Lanes, P: Packed>(
    rows: HeadRows,
    tokens: Range<usize>,
    to: *mut f32,
    next: &mut Next,
) {
    let bytes = rows.len * P::BYTES;
    let whole = bytes / VECTOR_BYTES;
    for first_token in (tokens.start / LANES * LANES..tokens.end).step_by(LANES) {
        // SAFETY: bytes of a head are read, and `to` has the rows of all.
        unsafe {
            let to = |vector: usize| to.add(vector * LANES * P::ROWS * BLOCK + first_token);
            for vector in 0..whole {
                let first = vector * VECTOR_BYTES;
                next.step();
                let to = to(vector);
                transpose_lanes::<L, P>(
                    rows,
                    &tokens,
                    first_token,
                    first..first + VECTOR_BYTES,
                    to,
                );
            }
            let rest = whole * VECTOR_BYTES..bytes;
            if !rest.is_empty() {
                next.step();
                transpose_lanes::<L, P>(rows, &tokens, first_token, rest, to(whole));
            }
        }
    }
}

/// Number of prefetch steps in [`transpose`] of heads of `bytes` bytes.
pub(super) fn transpose_steps(bytes: usize, tokens: &Range<usize>) -> usize {
    bytes.div_ceil(VECTOR_BYTES) * (tokens.end.div_ceil(LANES) - tokens.start / LANES)
}

/// [`transpose`] of one vector of tokens and at most one of bytes.
///
/// # Safety
///
/// As [`transpose`]; `to` has the rows of `bytes`.
#[inline(always)]
unsafe fn transpose_lanes<L: Lanes, P: Packed>(
    rows: HeadRows,
    tokens: &Range<usize>,
    first_token: usize,
    bytes: Range<usize>,
    to: *mut f32,
) {
    // SAFETY: beside the tokens, a neighbour's row is read again.
    unsafe {
        let mut lanes = [L::splat(0.0); LANES];
        let start = first_token.max(tokens.start);
        let mut from = rows.start.add(start * rows.stride_bytes + bytes.start);
        for (token, lane) in (first_token..).zip(&mut lanes) {
            *lane = L::load_bytes(from, bytes.len());
            if tokens.start <= token && token + 1 < tokens.end {
                from = from.add(rows.stride_bytes);
            }
        }
        let count = bytes.len().div_ceil(LANE_BYTES);
        for (lane, lanes) in transposed(lanes).iter().enumerate().take(count) {
            P::unpack(*lanes, to.add(lane * P::ROWS * BLOCK));
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
