//! Elementwise kernels.

use super::{Elementwise, for_each_block};
use crate::lanes::{Kernel, Lanes, functions};
use heg_artifacts::program::Activation;

/// `activation(gate) · up`.
#[derive(Clone, Copy)]
pub(crate) struct Gated {
    /// Input row of the activation.
    pub(crate) gate: *const f32,
    /// Row to gate.
    pub(crate) up: *const f32,
    /// The activation.
    pub(crate) activation: Activation,
    /// Elements per row.
    pub(crate) width: usize,
    /// Gated row.
    pub(crate) out: *mut f32,
}

impl Elementwise for Gated {
    #[inline(always)]
    unsafe fn block<L: Lanes>(&self, at: usize, count: usize) {
        // SAFETY: the caller has these elements.
        unsafe {
            let gate = L::load_first(self.gate.add(at), count);
            let bent = bent(self.activation, gate);
            let up = L::load_first(self.up.add(at), count);
            bent.mul(up).store_first(self.out.add(at), count);
        }
    }
}

/// `activation(x)`.
#[derive(Clone, Copy)]
pub(crate) struct Activated {
    /// Input row.
    pub(crate) x: *const f32,
    /// The activation.
    pub(crate) activation: Activation,
    /// Elements per row.
    pub(crate) width: usize,
    /// Activated row.
    pub(crate) out: *mut f32,
}

impl Elementwise for Activated {
    #[inline(always)]
    unsafe fn block<L: Lanes>(&self, at: usize, count: usize) {
        // SAFETY: the caller has these elements.
        unsafe {
            let x = L::load_first(self.x.add(at), count);
            bent(self.activation, x).store_first(self.out.add(at), count);
        }
    }
}

/// `activation(x)`, lane by lane.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
unsafe fn bent<L: Lanes>(activation: Activation, x: L) -> L {
    // SAFETY: the caller has the instructions of `L`.
    unsafe {
        match activation {
            Activation::Silu => functions::silu(x),
            Activation::Gelu => functions::gelu(x),
            Activation::GeluTanh => functions::gelu_tanh(x),
        }
    }
}

/// `a + b_scale · b`, rounded once.
#[derive(Clone, Copy)]
pub(crate) struct Add {
    /// First term.
    pub(crate) a: *const f32,
    /// Second term.
    pub(crate) b: *const f32,
    /// Factor on the second term.
    pub(crate) b_scale: f32,
    /// Elements per row.
    pub(crate) width: usize,
    /// The sum.
    pub(crate) out: *mut f32,
}

impl Elementwise for Add {
    #[inline(always)]
    unsafe fn block<L: Lanes>(&self, at: usize, count: usize) {
        // SAFETY: the caller has these elements.
        unsafe {
            let a = L::load_first(self.a.add(at), count);
            let b = L::load_first(self.b.add(at), count);
            let sum = b.mul_add(L::splat(self.b_scale), a);
            sum.store_first(self.out.add(at), count);
        }
    }
}

/// `factor · x`.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// Row to scale.
    pub(crate) x: *const f32,
    /// Factor on the row.
    pub(crate) factor: f32,
    /// Elements per row.
    pub(crate) width: usize,
    /// Scaled row.
    pub(crate) out: *mut f32,
}

impl Elementwise for Scale {
    #[inline(always)]
    unsafe fn block<L: Lanes>(&self, at: usize, count: usize) {
        // SAFETY: the caller has these elements.
        unsafe {
            let x = L::load_first(self.x.add(at), count);
            x.mul(L::splat(self.factor))
                .store_first(self.out.add(at), count);
        }
    }
}

/// `cap · tanh(x / cap)`.
#[derive(Clone, Copy)]
pub(crate) struct SoftCap {
    /// Input row.
    pub(crate) x: *const f32,
    /// Bound of the output.
    pub(crate) cap: f32,
    /// Elements per row.
    pub(crate) width: usize,
    /// Output row.
    pub(crate) out: *mut f32,
}

impl Elementwise for SoftCap {
    #[inline(always)]
    unsafe fn block<L: Lanes>(&self, at: usize, count: usize) {
        // SAFETY: the caller has these elements.
        unsafe {
            let cap = L::splat(self.cap);
            let x = L::load_first(self.x.add(at), count);
            let bent = functions::tanh(x.div(cap)).mul(cap);
            bent.store_first(self.out.add(at), count);
        }
    }
}

/// Converts to bf16, rounding to nearest, ties to even. Inputs are finite.
#[derive(Clone, Copy)]
pub(crate) struct RoundToBf16 {
    /// Row to round.
    pub(crate) x: *const f32,
    /// Elements per row.
    pub(crate) width: usize,
    /// Rounded row.
    pub(crate) out: *mut u16,
}

impl Elementwise for RoundToBf16 {
    #[inline(always)]
    unsafe fn block<L: Lanes>(&self, at: usize, count: usize) {
        // SAFETY: the caller has these elements.
        unsafe {
            let x = L::load_first(self.x.add(at), count);
            x.store_bf16_first(self.out.add(at), count);
        }
    }
}

/// Implements [`Kernel`] for elementwise kernels.
macro_rules! kernels {
    ($($name:ident),*) => {$(
        impl Kernel for $name {
            type Output = ();

            #[inline(always)]
            unsafe fn run<L: Lanes>(self) {
                // SAFETY: the caller has the instructions of `L`, and all pointers have `width` elements.
                unsafe { for_each_block::<L>(&self, self.width) }
            }
        }
    )*};
}

kernels!(Activated, Gated, Add, Scale, SoftCap, RoundToBf16);
