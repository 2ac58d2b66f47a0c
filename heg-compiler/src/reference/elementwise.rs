//! Norms, rotary embedding, activations and sums: each element in f64, rounded to f32 once.

use crate::graph::Activation;
use heg_quant::ValueRows;

/// `x / rms(x) · (offset + w)`, over each of `groups` equal parts of the row.
pub(super) fn rms_norm(
    x: &ValueRows,
    weight: &[f32],
    eps: f32,
    offset: f32,
    groups: u32,
) -> ValueRows {
    normed(x, x.width / groups as usize, |part, out| {
        let square: f64 = part.iter().map(|x| f64::from(*x).powi(2)).sum();
        let root = (square / part.len() as f64 + f64::from(eps)).sqrt();
        let each = part.iter().zip(weight);
        out.extend(each.map(|(x, w)| {
            let factor = f64::from(offset) + f64::from(*w);
            (f64::from(*x) / root * factor) as f32
        }));
    })
}

/// `(x − mean) / deviation · w + b`.
pub(super) fn layer_norm(
    x: &ValueRows,
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
) -> ValueRows {
    normed(x, x.width, |row, out| {
        let count = row.len() as f64;
        let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
        let square: f64 = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
        let deviation = (square / count + f64::from(eps)).sqrt();
        let each = row.iter().zip(weight).enumerate();
        out.extend(each.map(|(at, (x, w))| {
            let bias = bias.and_then(|bias| bias.get(at)).copied();
            let normed = (f64::from(*x) - mean) / deviation;
            (normed * f64::from(*w) + f64::from(bias.unwrap_or_default())) as f32
        }));
    })
}

fn normed(x: &ValueRows, part: usize, norm: impl Fn(&[f32], &mut Vec<f32>)) -> ValueRows {
    let mut values = Vec::with_capacity(x.values.len());
    for part in x.values.chunks(part.max(1)) {
        norm(part, &mut values);
    }
    ValueRows {
        width: x.width,
        values,
    }
}

/// Rotates pairs (i, i + rotated/2) of each head's first `rotated` dimensions.
pub(super) fn rope(
    x: &ValueRows,
    cos: &ValueRows,
    sin: &ValueRows,
    heads: usize,
    rotated: usize,
) -> ValueRows {
    let mut y = x.clone();
    let head_dim = (x.width / heads).max(1);
    let rows = y.values.chunks_mut(x.width.max(1));
    for (row, (cos, sin)) in rows.zip(cos.rows().zip(sin.rows())) {
        for head in row.chunks_mut(head_dim) {
            let (first, rest) = head.split_at_mut(rotated / 2);
            let factors = cos.iter().zip(sin);
            for ((a, b), (cos, sin)) in first.iter_mut().zip(rest).zip(factors) {
                let (c, s) = (f64::from(*cos), f64::from(*sin));
                let (wide_a, wide_b) = (f64::from(*a), f64::from(*b));
                *a = (wide_a * c - wide_b * s) as f32;
                *b = (wide_b * c + wide_a * s) as f32;
            }
        }
    }
    y
}

/// `activation(gate) · up`.
pub(super) fn gated(gate: &ValueRows, up: &ValueRows, activation: Activation) -> ValueRows {
    zip(gate, up, |gate, up| activated(activation, gate) * up)
}

/// `activation(x)`.
pub(super) fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + libm::exp(-x)),
        Activation::Gelu => x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)) / 2.0,
        Activation::GeluTanh => {
            // √(2/π)
            let root = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
            let inner = root * (x + 0.044715 * x * x * x);
            x * (1.0 + libm::tanh(inner)) / 2.0
        }
    }
}

/// `a + b_scale · b`.
pub(super) fn add(a: &ValueRows, b: &ValueRows, b_scale: f32) -> ValueRows {
    zip(a, b, |a, b| a + f64::from(b_scale) * b)
}

pub(super) fn map(x: &ValueRows, function: impl Fn(f64) -> f64) -> ValueRows {
    let values = x.values.iter();
    ValueRows {
        width: x.width,
        values: values.map(|x| function(f64::from(*x)) as f32).collect(),
    }
}

fn zip(a: &ValueRows, b: &ValueRows, function: impl Fn(f64, f64) -> f64) -> ValueRows {
    let pairs = a.values.iter().zip(&b.values);
    ValueRows {
        width: a.width,
        values: pairs
            .map(|(a, b)| function(f64::from(*a), f64::from(*b)) as f32)
            .collect(),
    }
}
