//! Online softmax over the scores of a strip.

use super::scratch::STRIP;
use super::{BLOCK, WHOLE};
use crate::lanes::functions::{exp2, tanh};
use crate::lanes::{LANES, Lanes};
use std::ops::Range;

/// Scores of a strip's rows, and their softmax state.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    /// Scores, replaced by weights: `[rows, BLOCK]`.
    pub(super) scores: *mut f32,
    /// Running maximum: `[rows]`.
    pub(super) largest: *mut f32,
    /// Running sums of weights, lane by lane: `[rows, LANES]`.
    pub(super) totals: *mut f32,
    /// Output: rescaling factors of earlier sums, `[STRIP]`.
    pub(super) factors: *mut f32,
}

/// Adds a block's scores, as exponents of two, to the softmax of a strip: scores become weights. `visible[row]` are the
/// tokens of the block that a row sees, at least one. With a soft cap, `scores` has scores divided by the cap, and
/// `softcap` is the cap as an exponent of two.
///
/// # Safety
///
/// The strip has `visible.len()` rows, at most [`STRIP`].
#[inline(always)]
pub(super) unsafe fn weigh<L: Lanes>(strip: Strip, visible: &[Range<usize>], softcap: Option<f32>) {
    let mut before = [0.0f32; STRIP];
    // SAFETY: the strip has the rows, and vectors with visible tokens lie within a block.
    unsafe {
        for (row, tokens) in visible.iter().enumerate() {
            let scores = strip.scores.add(row * BLOCK);
            let largest = match *tokens == WHOLE {
                true => largest_score::<L>(scores, &WHOLE, softcap),
                false => largest_score::<L>(scores, tokens, softcap),
            };
            let largest_so_far = strip.largest.add(row);
            before[row] = *largest_so_far;
            if largest > *largest_so_far {
                *largest_so_far = largest;
            }
        }
        // Lanes behind the rows are computed too, from zeros and stale values.
        let after = L::load_first(strip.largest, visible.len());
        let factors = exp2(L::load(before.as_ptr()).sub(after));
        factors.store(strip.factors);
        for (row, tokens) in visible.iter().enumerate() {
            let scores = strip.scores.add(row * BLOCK);
            let largest = *strip.largest.add(row);
            let sum = match *tokens == WHOLE {
                true => weigh_row::<L>(scores, &WHOLE, largest),
                false => weigh_row::<L>(scores, tokens, largest),
            };
            let total = strip.totals.add(row * LANES);
            let factor = L::splat(*strip.factors.add(row));
            L::load(total).mul_add(factor, sum).store(total);
        }
    }
}

/// The largest score of a row's `tokens`. Soft caps are applied to its scores first.
///
/// # Safety
///
/// `scores` has a block.
#[inline(always)]
unsafe fn largest_score<L: Lanes>(
    scores: *mut f32,
    tokens: &Range<usize>,
    softcap: Option<f32>,
) -> f32 {
    // SAFETY: vectors with visible tokens lie within a block.
    unsafe {
        let mut largest = L::splat(f32::NEG_INFINITY);
        for first in vectors(tokens) {
            let mut score = L::load(scores.add(first));
            if let Some(cap) = softcap {
                score = tanh(score).mul(L::splat(cap));
                score.store(scores.add(first));
            }
            largest = largest.max(within(score, first, tokens, f32::NEG_INFINITY));
        }
        largest.largest()
    }
}

/// Replaces the scores of a row's `tokens` by weights, and returns their sums, lane by lane.
///
/// # Safety
///
/// `scores` has a block.
#[inline(always)]
unsafe fn weigh_row<L: Lanes>(scores: *mut f32, tokens: &Range<usize>, largest: f32) -> L {
    // SAFETY: vectors with visible tokens lie within a block.
    unsafe {
        let largest = L::splat(largest);
        let mut sum = L::splat(0.0);
        for first in vectors(tokens) {
            let all = exp2(L::load(scores.add(first)).sub(largest));
            let weight = within(all, first, tokens, 0.0);
            weight.store(scores.add(first));
            sum = sum.add(weight);
        }
        sum
    }
}

/// Start of each vector that has any of `tokens`.
#[inline(always)]
pub(super) fn vectors(tokens: &Range<usize>) -> impl Iterator<Item = usize> {
    (tokens.start / LANES * LANES..tokens.end).step_by(LANES)
}

/// Replaces the lanes outside of `tokens` by `other`; lane 0 is token `first`.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
pub(super) unsafe fn within<L: Lanes>(
    lanes: L,
    first: usize,
    tokens: &Range<usize>,
    other: f32,
) -> L {
    let (start, end) = (
        tokens.start.saturating_sub(first),
        tokens.end.saturating_sub(first),
    );
    // SAFETY: counts are below the number of lanes.
    unsafe {
        let until_end = if end < LANES {
            lanes.first_or(end, L::splat(other))
        } else {
            lanes
        };
        match start {
            0 => until_end,
            start => L::splat(other).first_or(start.min(LANES), until_end),
        }
    }
}
