//! The online softmax over the scores of a strip.

use super::BLOCK;
use super::scratch::STRIP;
use crate::lanes::functions::{exp2, tanh};
use crate::lanes::{LANES, Lanes};
use std::ops::Range;

/// State of a strip's rows, and their scores.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    /// Scores, which become weights: `[rows, BLOCK]`.
    pub(super) scores: *mut f32,
    /// Largest scores so far: `[rows]`.
    pub(super) largest: *mut f32,
    /// Sums of weights so far, lane by lane: `[rows, LANES]`.
    pub(super) totals: *mut f32,
    /// Factors on what rows have so far, `[STRIP]`: written.
    pub(super) factors: *mut f32,
}

/// Takes a block's scores, in powers of two, into the softmax of a strip: scores become weights. `visible[row]` are the
/// tokens of the block that a row sees, at least one. With a soft cap, scores are still to be bent; the cap is one on
/// powers of two, and scores are divided by it.
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
            let mut largest = L::splat(f32::NEG_INFINITY);
            for first in vectors(tokens) {
                let mut score = L::load(scores.add(first));
                if let Some(cap) = softcap {
                    score = tanh(score).mul(L::splat(cap));
                    score.store(scores.add(first));
                }
                largest = largest.max(within(score, first, tokens, f32::NEG_INFINITY));
            }
            let largest_so_far = strip.largest.add(row);
            before[row] = *largest_so_far;
            let largest = largest.largest();
            if largest > *largest_so_far {
                *largest_so_far = largest;
            }
        }
        // Lanes behind the rows are computed too, of zeros and whatever lies there.
        let after = L::load_first(strip.largest, visible.len());
        let factors = exp2(L::load(before.as_ptr()).sub(after));
        factors.store(strip.factors);
        for (row, tokens) in visible.iter().enumerate() {
            let scores = strip.scores.add(row * BLOCK);
            let largest = L::splat(*strip.largest.add(row));
            let mut sum = L::splat(0.0);
            for first in vectors(tokens) {
                let weight = exp2(L::load(scores.add(first)).sub(largest));
                let weight = within(weight, first, tokens, 0.0);
                weight.store(scores.add(first));
                sum = sum.add(weight);
            }
            let total = strip.totals.add(row * LANES);
            let factor = L::splat(*strip.factors.add(row));
            L::load(total).mul_add(factor, sum).store(total);
        }
    }
}

/// Where vectors with any of `tokens` start.
#[inline(always)]
pub(super) fn vectors(tokens: &Range<usize>) -> impl Iterator<Item = usize> {
    (tokens.start / LANES * LANES..tokens.end).step_by(LANES)
}

/// Lanes of `tokens` as they are, the others `other`; lane 0 is token `first`.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
unsafe fn within<L: Lanes>(lanes: L, first: usize, tokens: &Range<usize>, other: f32) -> L {
    let (start, end) = (
        tokens.start.saturating_sub(first),
        tokens.end.saturating_sub(first),
    );
    // SAFETY: counts are below the number of lanes.
    unsafe {
        let lanes = match end < LANES {
            true => lanes.first_or(end, L::splat(other)),
            false => lanes,
        };
        match start {
            0 => lanes,
            start => L::splat(other).first_or(start.min(LANES), lanes),
        }
    }
}
