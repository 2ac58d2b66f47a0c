//! Norms. Sums over a row add up sixteen lanes in the row's order, then across lanes.

use super::{Elementwise, for_each_block};
use crate::lanes::{Kernel, LANES, Lanes};

/// `x / rms(x) · (offset + weight)` over each of `groups` equal parts of the row.
#[derive(Clone, Copy)]
pub(crate) struct RmsNorm {
    /// Row to norm.
    pub(crate) x: *const f32,
    /// Weight, `width / groups` elements.
    pub(crate) weight: *const f32,
    /// Elements per row, a multiple of `groups`.
    pub(crate) width: usize,
    /// Number of parts that are normed separately.
    pub(crate) groups: usize,
    /// Added to the mean square.
    pub(crate) eps: f32,
    /// Added to the weight.
    pub(crate) offset: f32,
    /// Normed row.
    pub(crate) out: *mut f32,
}

impl Kernel for RmsNorm {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let width = self.width / self.groups;
        for group in 0..self.groups {
            // SAFETY: the groups' parts are within the row, which the caller has.
            unsafe {
                let x = self.x.add(group * width);
                let mean = sum_of_squares::<L>(x, 0.0, width) / width as f32;
                let part = RmsPart {
                    x,
                    weight: self.weight,
                    factor: 1.0 / (mean + self.eps).sqrt(),
                    offset: self.offset,
                    out: self.out.add(group * width),
                };
                for_each_block::<L>(&part, width);
            }
        }
    }
}

/// Second pass over a part, after its root mean square is known.
struct RmsPart {
    x: *const f32,
    weight: *const f32,
    factor: f32,
    offset: f32,
    out: *mut f32,
}

impl Elementwise for RmsPart {
    #[inline(always)]
    unsafe fn block<L: Lanes>(&self, at: usize, count: usize) {
        // SAFETY: the caller has these elements.
        unsafe {
            let x = L::load_first(self.x.add(at), count).mul(L::splat(self.factor));
            let weight = L::load_first(self.weight.add(at), count).add(L::splat(self.offset));
            x.mul(weight).store_first(self.out.add(at), count);
        }
    }
}

/// `(x − mean) / deviation · weight + bias`.
#[derive(Clone, Copy)]
pub(crate) struct LayerNorm {
    /// Row to norm.
    pub(crate) x: *const f32,
    /// Weight.
    pub(crate) weight: *const f32,
    /// Bias.
    pub(crate) bias: Option<*const f32>,
    /// Elements per row.
    pub(crate) width: usize,
    /// Added to the variance.
    pub(crate) eps: f32,
    /// Normed row.
    pub(crate) out: *mut f32,
}

impl Kernel for LayerNorm {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller has the row.
        unsafe {
            let mean = sum::<L>(self.x, self.width) / self.width as f32;
            let variance = sum_of_squares::<L>(self.x, mean, self.width) / self.width as f32;
            let row = LayerRow {
                norm: self,
                mean,
                factor: 1.0 / (variance + self.eps).sqrt(),
            };
            for_each_block::<L>(&row, self.width);
        }
    }
}

/// Second pass over a row, after mean and variance are known.
struct LayerRow {
    norm: LayerNorm,
    mean: f32,
    factor: f32,
}

impl Elementwise for LayerRow {
    #[inline(always)]
    unsafe fn block<L: Lanes>(&self, at: usize, count: usize) {
        // SAFETY: the caller has these elements.
        unsafe {
            let x = L::load_first(self.norm.x.add(at), count).sub(L::splat(self.mean));
            let weight = L::load_first(self.norm.weight.add(at), count);
            let bias = match self.norm.bias {
                Some(bias) => L::load_first(bias.add(at), count),
                None => L::splat(0.0),
            };
            let normed = x.mul(L::splat(self.factor)).mul_add(weight, bias);
            normed.store_first(self.norm.out.add(at), count);
        }
    }
}

/// The sum of a row.
///
/// # Safety
///
/// See [`Lanes`]: `x` has `width` elements.
#[inline(always)]
unsafe fn sum<L: Lanes>(x: *const f32, width: usize) -> f32 {
    // SAFETY: all elements are below the width.
    unsafe {
        let (mut sum, mut at) = (L::splat(0.0), 0);
        while at + LANES <= width {
            sum = sum.add(L::load(x.add(at)));
            at += LANES;
        }
        sum.add(L::load_first(x.add(at), width - at)).sum()
    }
}

/// The sum of the squares of `x − mean`.
///
/// # Safety
///
/// See [`Lanes`]: `x` has `width` elements.
#[inline(always)]
unsafe fn sum_of_squares<L: Lanes>(x: *const f32, mean: f32, width: usize) -> f32 {
    // SAFETY: all elements are below the width.
    unsafe {
        let (mut sum, mut at, mean) = (L::splat(0.0), 0, L::splat(mean));
        while at + LANES <= width {
            let x = L::load(x.add(at)).sub(mean);
            sum = x.mul_add(x, sum);
            at += LANES;
        }
        let count = width - at;
        let last = L::load_first(x.add(at), count).sub(mean);
        let masked = last.first_or(count, L::splat(0.0));
        masked.mul_add(masked, sum).sum()
    }
}
