//! Rounding of heads to 8-bit integers, for the KV cache.

use crate::lanes::{Kernel, Lanes};
use heg_artifacts::manifest;

/// Elements of a head that share a scale; the last group may have fewer.
pub(crate) const CACHE_GROUP: usize = manifest::CACHE_GROUP as usize;

/// Largest integer of a rounded group.
pub(crate) const STEPS: f32 = 127.0;

/// Bytes of a head of `head_dim` integers, with the scales of its groups behind them, in bf16.
pub(crate) const fn head_bytes(head_dim: usize) -> usize {
    let scales = head_dim.div_ceil(CACHE_GROUP) * size_of::<u16>();
    head_dim.saturating_add(scales)
}

/// The scale of a group's integers, and the factor that makes them of its elements.
#[derive(Clone, Copy)]
struct Rounding {
    /// Integers per unit.
    inverse: f32,
    /// Units per integer, in bf16.
    scale: u16,
}

impl Rounding {
    /// The scale is the smallest bf16 with which no element is beyond [`STEPS`]. If all are too small to divide by, all are
    /// zero; if one is not finite, or its scale, the scale is NaN.
    #[inline(always)]
    fn of(group: &[f32]) -> Self {
        const LOWER: u32 = 0xffff;
        // The bits of magnitudes have the order of floats, and NaN is the largest.
        let mut largest = 0;
        for x in group {
            largest = u32::max(largest, x.to_bits() & 0x7fff_ffff);
        }
        let least = f32::from_bits(largest) / STEPS;
        let bits = least.to_bits().saturating_add(LOWER) & !LOWER;
        let scale = f32::from_bits(bits);
        let inverse = 1.0 / scale;
        match (least.is_finite() && scale.is_finite(), inverse.is_finite()) {
            (true, true) => Self {
                inverse,
                scale: (bits >> 16) as u16,
            },
            (true, false) => Self {
                inverse: 0.0,
                scale: 0,
            },
            (false, _) => Self {
                inverse: 0.0,
                scale: (f32::NAN.to_bits() >> 16) as u16,
            },
        }
    }

    /// An element's integer, rounded to nearest, ties to even.
    #[inline(always)]
    fn nearest(self, x: f32) -> i8 {
        // Neighbouring floats from 2²³ to 2²⁴ are one apart, and so are their bits.
        const SHIFT: f32 = 12_582_912.0;
        // A product with infinity or NaN has bits of no meaning.
        match self.inverse == 0.0 {
            true => 0,
            false => {
                let shifted = (x * self.inverse + SHIFT).to_bits();
                shifted.wrapping_sub(SHIFT.to_bits()) as i8
            }
        }
    }
}

/// Rounds the heads of a row to 8-bit integers, each with its scales behind it.
///
/// Plain Rust, which each instruction set vectorises: every operation is exact or rounded once.
#[derive(Clone, Copy)]
pub(crate) struct RoundHeads {
    /// Row to round.
    pub(crate) x: *const f32,
    /// Number of heads.
    pub(crate) heads: usize,
    /// Elements of a head.
    pub(crate) head_dim: usize,
    /// Rounded row.
    pub(crate) out: *mut u8,
}

impl Kernel for RoundHeads {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let (head_dim, bytes) = (self.head_dim, head_bytes(self.head_dim));
        for number in 0..self.heads {
            // SAFETY: the caller has the elements and bytes of all heads, and nobody else accesses them meanwhile.
            let (head, out) = unsafe {
                (
                    std::slice::from_raw_parts(self.x.add(number * head_dim), head_dim),
                    std::slice::from_raw_parts_mut(self.out.add(number * bytes), bytes),
                )
            };
            let (integers, scales) = out.split_at_mut(head_dim);
            let groups = head
                .chunks(CACHE_GROUP)
                .zip(integers.chunks_mut(CACHE_GROUP));
            let (scales, _) = scales.as_chunks_mut();
            for ((group, integers), scale) in groups.zip(scales) {
                let rounding = Rounding::of(group);
                for (x, integer) in group.iter().zip(integers) {
                    *integer = rounding.nearest(*x) as u8;
                }
                *scale = rounding.scale.to_ne_bytes();
            }
        }
    }
}
