//! Rotary position embedding.

use super::{Elementwise, for_each_block};
use crate::lanes::{Kernel, Lanes};

/// Rotate-half position embedding of the first `rotated` dimensions of each head: dimension i turns with i + rotated /
/// 2. The other dimensions are copied.
#[derive(Clone, Copy)]
pub(crate) struct Rope {
    /// Row to rotate.
    pub(crate) x: *const f32,
    /// Cosines of the position's `rotated / 2` angles.
    pub(crate) cos: *const f32,
    /// Sines of the same angles.
    pub(crate) sin: *const f32,
    /// Heads in the row.
    pub(crate) heads: usize,
    /// Dimensions per head.
    pub(crate) head_dim: usize,
    /// Rotated dimensions per head: even, at most `head_dim`.
    pub(crate) rotated: usize,
    /// Rotated row.
    pub(crate) out: *mut f32,
}

impl Kernel for Rope {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let half = self.rotated / 2;
        for head in 0..self.heads {
            let first = head * self.head_dim;
            // SAFETY: the head is within the row, which the caller has.
            unsafe {
                let pairs = Pairs {
                    lower: self.x.add(first),
                    upper: self.x.add(first + half),
                    rope: &self,
                    lower_out: self.out.add(first),
                    upper_out: self.out.add(first + half),
                };
                for_each_block::<L>(&pairs, half);
                let rest = first + self.rotated;
                // In place, each element is copied to itself.
                std::ptr::copy(
                    self.x.add(rest).cast::<u8>(),
                    self.out.add(rest).cast::<u8>(),
                    (self.head_dim - self.rotated) * size_of::<f32>(),
                );
            }
        }
    }
}

/// The pairs of one head.
struct Pairs<'a> {
    lower: *const f32,
    upper: *const f32,
    rope: &'a Rope,
    lower_out: *mut f32,
    upper_out: *mut f32,
}

impl Elementwise for Pairs<'_> {
    #[inline(always)]
    unsafe fn block<L: Lanes>(&self, at: usize, count: usize) {
        // SAFETY: the caller has these elements. Both of a pair are read before either is written.
        unsafe {
            let cos = L::load_first(self.rope.cos.add(at), count);
            let sin = L::load_first(self.rope.sin.add(at), count);
            let lower = L::load_first(self.lower.add(at), count);
            let upper = L::load_first(self.upper.add(at), count);
            let minus_sin = L::splat(0.0).sub(sin);
            let turned = upper.mul_add(minus_sin, lower.mul(cos));
            turned.store_first(self.lower_out.add(at), count);
            let turned = lower.mul_add(sin, upper.mul(cos));
            turned.store_first(self.upper_out.add(at), count);
        }
    }
}
