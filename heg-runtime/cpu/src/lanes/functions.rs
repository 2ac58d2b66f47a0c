//! Exponentials and functions built on them, as polynomials with the same bits in all forms.

use super::Lanes;

/// (e^r − 1) / r for |r| ≤ ln 2 / 2, from the constant term on. Fitted (Remez): 1.1e-8 relative.
const EXP: [f32; 6] = [
    1.0,
    0.499_999_97,
    0.166_665_06,
    0.041_667_137,
    0.008_369_076,
    0.001_388_887_3,
];

/// (2^r − 1) / r for |r| ≤ 1/2, from the constant term on. Fitted (Remez): 1.1e-8 relative.
const EXP2: [f32; 6] = [
    std::f32::consts::LN_2,
    0.240_226_5,
    0.055_503_573,
    0.009_618_238,
    0.001_339_073_5,
    0.000_154_035_12,
];

/// erfc(x) · e^(x²) for x ≥ 0 as a polynomial in t = 1 / (1 + 0.3275911 x) without constant term: Abramowitz and
/// Stegun, formula 7.1.26, 1.5e-7 absolute on erfc.
const ERFC: [f32; 5] = [
    0.254_829_6,
    -0.284_496_72,
    1.421_413_8,
    -1.453_152,
    1.061_405_4,
];

/// ln 2 in f32, and its rounding error.
const LN_2: (f32, f32) = (std::f32::consts::LN_2, -1.904_654_2e-9);

/// A polynomial, coefficients from the constant term on.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
unsafe fn polynomial<L: Lanes, const N: usize>(x: L, coefficients: &[f32; N]) -> L {
    // SAFETY: the caller has the instructions of `L`.
    unsafe {
        let mut sum = L::splat(coefficients[N - 1]);
        for coefficient in coefficients[..N - 1].iter().rev() {
            sum = sum.mul_add(x, L::splat(*coefficient));
        }
        sum
    }
}

/// Range reduction: the integer n and r = x − n · ln 2, |r| ≤ ln 2 / 2.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
unsafe fn reduced<L: Lanes>(x: L) -> (L, L) {
    // SAFETY: the caller has the instructions of `L`.
    unsafe {
        let n = x.mul(L::splat(std::f32::consts::LOG2_E)).round();
        let r = n.mul_add(L::splat(-LN_2.0), x);
        (n, n.mul_add(L::splat(-LN_2.1), r))
    }
}

/// e^x to 1.5e-7 relative. Constant below −87.3 and above 88.3.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn exp<L: Lanes>(x: L) -> L {
    // SAFETY: the caller has the instructions of `L`.
    unsafe {
        let (n, r) = reduced(x.max(L::splat(-87.3)).min(L::splat(88.3)));
        let power = polynomial(r, &EXP).mul_add(r, L::splat(1.0));
        power.times_power(n)
    }
}

/// 2^x to 1.5e-7 relative or 2^−126 absolute; x is at most 127. From −126 down, −∞ included, it is 0.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn exp2<L: Lanes>(x: L) -> L {
    // SAFETY: the caller has the instructions of `L`.
    unsafe {
        let x = x.max(L::splat(-126.0));
        let n = x.round();
        let r = x.sub(n);
        let power = polynomial(r, &EXP2).mul_add(r, L::splat(1.0));
        // This changes only results below 2^−100; the smallest becomes 0.
        power.times_power(n).sub(L::splat(f32::MIN_POSITIVE))
    }
}

/// tanh(x) to 5e-7 relative.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn tanh<L: Lanes>(x: L) -> L {
    // SAFETY: the caller has the instructions of `L`.
    unsafe {
        // It is 1 from 10 on. Small results keep their precision: in e^2x − 1 = 2^n (e^r − 1) + (2^n − 1) nothing
        // cancels.
        let x = x.max(L::splat(-10.0)).min(L::splat(10.0));
        let (n, r) = reduced(x.add(x));
        let one = L::splat(1.0);
        let scale = one.times_power(n);
        let power_less_one = polynomial(r, &EXP).mul(r).mul_add(scale, scale.sub(one));
        power_less_one.div(power_less_one.add(L::splat(2.0)))
    }
}

/// x · sigmoid(x) to 4e-7 relative from −87 up; below, it is x / 2e38.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn silu<L: Lanes>(x: L) -> L {
    // SAFETY: the caller has the instructions of `L`.
    unsafe { x.div(exp(L::splat(0.0).sub(x)).add(L::splat(1.0))) }
}

/// x · Φ(x), the exact GELU, to 5e-7 absolute or 2e-7 relative.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn gelu<L: Lanes>(x: L) -> L {
    // SAFETY: the caller has the instructions of `L`.
    unsafe {
        // x Φ(x) = max(x, 0) − |x| / 2 · erfc(|x| / √2)
        let (one, size) = (L::splat(1.0), x.abs());
        let factor = L::splat(0.327_591_1 * std::f32::consts::FRAC_1_SQRT_2);
        let t = one.div(size.mul_add(factor, one));
        let decay = exp(x.mul(x).mul(L::splat(-0.5)));
        let erfc = polynomial(t, &ERFC).mul(t).mul(decay);
        let positive = x.max(L::splat(0.0));
        positive.sub(size.mul(L::splat(0.5)).mul(erfc))
    }
}

/// GELU by tanh: x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))), to 1e-6 relative or 1e-6 absolute.
///
/// # Safety
///
/// See [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn gelu_tanh<L: Lanes>(x: L) -> L {
    // SAFETY: the caller has the instructions of `L`.
    unsafe {
        // (1 + tanh u) / 2 = 1 / (1 + e^−2u)
        let factor = L::splat(-std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2);
        let cubic = x.mul(x).mul_add(L::splat(0.044_715), L::splat(1.0));
        let decay = exp(x.mul(factor).mul(cubic));
        x.div(decay.add(L::splat(1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::lanes::{Kernel, LANES, run};

    /// One of the functions.
    #[derive(Clone, Copy, Debug)]
    enum Function {
        Exp,
        Exp2,
        Tanh,
        Silu,
        Gelu,
        GeluTanh,
    }

    impl Function {
        const ALL: [Self; 6] = [
            Self::Exp,
            Self::Exp2,
            Self::Tanh,
            Self::Silu,
            Self::Gelu,
            Self::GeluTanh,
        ];

        fn reference(self, x: f64) -> f64 {
            match self {
                Self::Exp => x.exp(),
                Self::Exp2 => x.exp2(),
                Self::Tanh => x.tanh(),
                Self::Silu => x / (1.0 + (-x).exp()),
                Self::Gelu => 0.5 * x * erfc(-x / 2f64.sqrt()),
                Self::GeluTanh => {
                    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                    x / (1.0 + (-2.0 * u).exp())
                }
            }
        }

        /// Range of arguments, and the relative and absolute error documented for it.
        fn claim(self) -> (std::ops::Range<f32>, f64, f64) {
            match self {
                Self::Exp => (-87.3..88.3, 1.5e-7, 0.0),
                Self::Exp2 => (-140.0..127.0, 1.5e-7, 1.2e-38),
                Self::Tanh => (-20.0..20.0, 5e-7, 0.0),
                Self::Silu => (-86.0..200.0, 4e-7, 0.0),
                Self::Gelu => (-20.0..20.0, 2e-7, 5e-7),
                Self::GeluTanh => (-20.0..20.0, 1e-6, 1e-6),
            }
        }
    }

    /// By a series for small arguments, by a continued fraction for others.
    fn erfc(x: f64) -> f64 {
        let size = x.abs();
        let scale = (-x * x).exp() / std::f64::consts::PI.sqrt();
        if size < 3.0 {
            let (mut term, mut sum) = (x, x);
            for n in 1..200 {
                term *= 2.0 * x * x / f64::from(2 * n + 1);
                sum += term;
            }
            return 1.0 - 2.0 * scale * sum;
        }
        let fraction = (1..200)
            .rev()
            .fold(size, |below, n| size + 0.5 * f64::from(n) / below);
        let tail = scale / fraction;
        if x > 0.0 { tail } else { 2.0 - tail }
    }

    struct Values(Function, [f32; LANES]);

    impl Kernel for Values {
        type Output = [f32; LANES];

        #[inline(always)]
        unsafe fn run<L: Lanes>(self) -> [f32; LANES] {
            let mut values = [0.0; LANES];
            // SAFETY: both arrays have 16 elements.
            unsafe {
                let x = L::load(self.1.as_ptr());
                let value = match self.0 {
                    Function::Exp => exp(x),
                    Function::Exp2 => exp2(x),
                    Function::Tanh => tanh(x),
                    Function::Silu => silu(x),
                    Function::Gelu => gelu(x),
                    Function::GeluTanh => gelu_tanh(x),
                };
                value.store(values.as_mut_ptr());
            }
            values
        }
    }

    /// Checks one function at sixteen arguments.
    fn check(function: Function, arguments: [f32; LANES]) {
        let (_, relative, absolute) = function.claim();
        // SAFETY: the portable form needs no instructions.
        let values = unsafe { run(Isa::Portable, Values(function, arguments)) };
        for (x, y) in arguments.into_iter().zip(values) {
            let expected = function.reference(f64::from(x));
            let error = (f64::from(y) - expected).abs();
            assert!(
                error <= relative * expected.abs() + absolute,
                "{function:?} of {x}: {y}, not {expected}: {:e}",
                error / expected.abs()
            );
        }
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            // SAFETY: `is_available` said that the machine has the instructions.
            let same = unsafe { run(isa, Values(function, arguments)) };
            assert_eq!(values.map(f32::to_bits), same.map(f32::to_bits), "{isa}");
        }
    }

    #[test]
    fn errors_are_as_small_as_documented_and_bits_the_same_in_all_forms() {
        for function in Function::ALL {
            let (range, ..) = function.claim();
            let steps = 20_000;
            let step = (range.end - range.start) / (steps * LANES) as f32;
            for at in 0..steps {
                let first = range.start + (at * LANES) as f32 * step;
                check(
                    function,
                    std::array::from_fn(|lane| first + lane as f32 * step),
                );
            }
            // Near zero, where relative errors show.
            for exponent in -40..3 {
                let size = (exponent as f32).exp2();
                check(
                    function,
                    std::array::from_fn(|lane| size * (lane as f32 - 7.4) / 8.0),
                );
            }
        }
    }

    #[test]
    fn far_arguments_give_limits() {
        let value = |function, x| {
            // SAFETY: the portable form needs no instructions.
            let values = unsafe { run(Isa::Portable, Values(function, [x; LANES])) };
            values[0]
        };
        assert_eq!(value(Function::Exp2, f32::NEG_INFINITY), 0.0);
        assert_eq!(value(Function::Exp2, -126.0), 0.0);
        assert_eq!(value(Function::Exp2, 0.0), 1.0);
        assert_eq!(value(Function::Exp, 0.0), 1.0);
        for (function, below) in [
            (Function::Tanh, -1.0),
            (Function::Silu, 0.0),
            (Function::Gelu, 0.0),
            (Function::GeluTanh, 0.0),
        ] {
            for far in [100.0, 1e10, 1e30] {
                let above = if below < 0.0 { 1.0 } else { far };
                assert_eq!(value(function, far), above, "{function:?}");
                let error = value(function, -far) - below;
                assert!(error.abs() < 1e-7, "{function:?} of {}: {error}", -far);
            }
        }
    }
}
