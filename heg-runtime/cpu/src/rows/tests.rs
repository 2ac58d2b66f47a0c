//! Each kernel's portable form against arithmetic in f64, and the other forms against it, bit for bit.

use super::*;
use crate::Isa;
use crate::lanes::{Kernel, run};
use half::bf16;
use heg_artifacts::program::Activation;
use proptest::prelude::*;
use std::ops::Range;

/// Sentinel behind outputs, which kernels must not overwrite.
const UNTOUCHED: f32 = 1234.5;

/// The output of a kernel, checked to be the same in all forms.
fn output<K: Kernel<Output = ()>>(width: usize, kernel: impl Fn(*mut f32) -> K) -> Vec<f32> {
    let row = |isa| {
        let mut out = vec![UNTOUCHED; width + LANES];
        // SAFETY: the machine has the instructions, and kernels write `width` elements.
        unsafe { run(isa, kernel(out.as_mut_ptr())) };
        assert_eq!(out[width..], [UNTOUCHED; LANES], "{isa}");
        out.truncate(width);
        out
    };
    let expected = row(Isa::Portable);
    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        assert_eq!(bits(&row(isa)), bits(&expected), "{isa}");
    }
    expected
}

/// Asserts that a row is near its reference: within `error` times the larger of the reference and 1.
fn near(row: &[f32], reference: impl IntoIterator<Item = f64>, error: f64) {
    let reference: Vec<f64> = reference.into_iter().collect();
    assert_eq!(row.len(), reference.len());
    for (at, (x, expected)) in row.iter().zip(reference).enumerate() {
        let difference = (f64::from(*x) - expected).abs();
        let allowed = error * expected.abs().max(1.0);
        assert!(difference <= allowed, "{x}, not {expected}, at {at}");
    }
}

/// A few rows of one width.
fn rows<const N: usize>(width: Range<usize>) -> impl Strategy<Value = [Vec<f32>; N]> {
    width.prop_flat_map(|width| {
        std::array::from_fn::<_, N, _>(|_| proptest::collection::vec(-4.0f32..4.0, width))
    })
}

fn wide(row: &[f32]) -> Vec<f64> {
    row.iter().map(|x| f64::from(*x)).collect()
}

/// The mean of the squares of `x − mean`.
fn mean_square(x: &[f64], mean: f64) -> f64 {
    x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64
}

proptest! {
    #[test]
    fn rms_norm([x, weight] in rows(1..300), groups in 1usize..4, offset in 0u8..2) {
        let (eps, offset) = (1e-5, f32::from(offset));
        let width = x.len() * groups;
        let repeated = x.repeat(groups).into_iter().enumerate();
        let x: Vec<f32> = repeated.map(|(at, x)| x + at as f32 * 1e-3).collect();
        let row = output(width, |out| RmsNorm {
            x: x.as_ptr(), weight: weight.as_ptr(), width, groups, eps, offset, out,
        });
        let reference = x.chunks(weight.len()).flat_map(|part| {
            let part = wide(part);
            let factor = 1.0 / (mean_square(&part, 0.0) + f64::from(eps)).sqrt();
            let weights = wide(&weight).into_iter().map(|w| w + f64::from(offset));
            part.into_iter().zip(weights).map(|(x, w)| x * factor * w).collect::<Vec<_>>()
        });
        near(&row, reference, 1e-6);
    }

    #[test]
    fn layer_norm([x, weight, bias] in rows(2..300), biased: bool) {
        let (eps, width) = (1e-5, x.len());
        let row = output(width, |out| LayerNorm {
            x: x.as_ptr(),
            weight: weight.as_ptr(),
            bias: biased.then_some(bias.as_ptr()),
            width,
            eps,
            out,
        });
        let x = wide(&x);
        let mean = x.iter().sum::<f64>() / width as f64;
        let factor = 1.0 / (mean_square(&x, mean) + f64::from(eps)).sqrt();
        let reference = x.iter().zip(&weight).zip(&bias).map(|((x, w), b)| {
            (x - mean) * factor * f64::from(*w) + if biased { f64::from(*b) } else { 0.0 }
        });
        near(&row, reference, 1e-5);
    }

    #[test]
    fn rope(heads in 1usize..4, half in 0usize..40, rest in 0usize..20, seed in 0.0f32..1.0) {
        let (rotated, head_dim) = (2 * half, 2 * half + rest);
        let width = heads * head_dim;
        let x: Vec<f32> = (0..width).map(|at| (at as f32 * 0.7 + seed).sin()).collect();
        let angles: Vec<f32> = (0..half).map(|at| at as f32 * 0.3 + seed).collect();
        let cos: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
        let sin: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
        let kernel = |x: *const f32, out| Rope {
            x, cos: cos.as_ptr(), sin: sin.as_ptr(), heads, head_dim, rotated, out,
        };
        let row = output(width, |out| kernel(x.as_ptr(), out));
        let reference = (0..width).map(|at| {
            let (head, dim) = (at / head_dim * head_dim, at % head_dim);
            let x = |dim: usize| f64::from(x[head + dim]);
            let turn = |cos: &[f32], dim: usize| f64::from(cos[dim % half]);
            if dim >= rotated {
                x(dim)
            } else if dim < half {
                x(dim) * turn(&cos, dim) - x(dim + half) * turn(&sin, dim)
            } else {
                x(dim) * turn(&cos, dim) + x(dim - half) * turn(&sin, dim)
            }
        });
        near(&row, reference, 1e-6);

        let mut in_place = x.clone();
        let at = in_place.as_mut_ptr();
        // SAFETY: every machine has it, and the row has the width.
        unsafe { run(Isa::Portable, kernel(at, at)) };
        prop_assert_eq!(row, in_place);
    }

    #[test]
    fn gates([gate, up] in rows(1..200)) {
        let width = gate.len();
        let silu = |gate: f64| gate / (1.0 + (-gate).exp());
        let gelu = |gate: f64| {
            let cubic = gate + 0.044715 * gate.powi(3);
            0.5 * gate * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * cubic).tanh())
        };
        for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
            let row = output(width, |out| Gated {
                gate: gate.as_ptr(), up: up.as_ptr(), activation, width, out,
            });
            let pairs = wide(&gate).into_iter().zip(wide(&up));
            match activation {
                Activation::Silu => near(&row, pairs.map(|(gate, up)| silu(gate) * up), 2e-6),
                Activation::GeluTanh => near(&row, pairs.map(|(gate, up)| gelu(gate) * up), 5e-6),
                // The two forms of GELU differ by less than 1e-3.
                Activation::Gelu => near(&row, pairs.map(|(gate, up)| gelu(gate) * up), 4e-3),
            }
        }
    }

    #[test]
    fn activations_are_those_of_a_gate_of_one([x] in rows(1..200)) {
        let (width, ones) = (x.len(), vec![1.0; x.len()]);
        for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
            let row = output(width, |out| Activated { x: x.as_ptr(), activation, width, out });
            let gated = output(width, |out| Gated {
                gate: x.as_ptr(), up: ones.as_ptr(), activation, width, out,
            });
            prop_assert_eq!(row, gated);
        }
    }

    #[test]
    fn sums_scales_and_caps([a, b] in rows(1..200), factor in -2.0f32..2.0, cap in 0.5f32..50.0) {
        let width = a.len();
        let (x, wide_factor, wide_cap) = (a.as_ptr(), f64::from(factor), f64::from(cap));
        let row = output(width, |out| Add { a: x, b: b.as_ptr(), b_scale: factor, width, out });
        let pairs = wide(&a).into_iter().zip(wide(&b));
        near(&row, pairs.map(|(a, b)| a + wide_factor * b), 1e-7);
        let row = output(width, |out| Scale { x, factor, width, out });
        near(&row, wide(&a).into_iter().map(|x| wide_factor * x), 1e-7);
        let row = output(width, |out| SoftCap { x, cap, width, out });
        near(&row, wide(&a).into_iter().map(|x| wide_cap * (x / wide_cap).tanh()), 1e-6);
    }

    #[test]
    fn conversions([x] in rows(1..200)) {
        let width = x.len();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let mut out = vec![77u16; width + LANES];
            let kernel = RoundToBf16 { x: x.as_ptr(), width, out: out.as_mut_ptr() };
            // SAFETY: the machine has the instructions, and the row has the width.
            unsafe { run(isa, kernel) };
            let rounded: Vec<u16> = x.iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
            prop_assert_eq!(&out[..width], rounded);
            prop_assert_eq!(&out[width..], [77; LANES]);
        }
    }
}
