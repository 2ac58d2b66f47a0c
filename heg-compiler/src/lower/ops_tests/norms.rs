//! Norms: offset, groups (q/k norm), bias, and values whose squares overflow f16.

use heg_artifacts::manifest::Role;
use heg_spec::WeightForm;

use super::bench::{Call, OneOp, TOKENS, noise, param, tokens};
use crate::graph::{Op, ParamKind};

fn calls(width: u32, size: f32) -> Vec<Call> {
    let call = |tokens: usize| Call {
        tokens,
        inputs: vec![
            noise(tokens as u64, tokens * width as usize)
                .iter()
                .map(|x| x * size)
                .collect(),
        ],
    };
    TOKENS.map(call).into()
}

/// Applies `norm` to each part of `x` with its weights.
fn by_parts(x: &[f32], part: usize, norm: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    wide.chunks(part).flat_map(norm).collect()
}

fn check_rms_norm(test: &str, width: u32, groups: u32, offset: f32, size: f32) {
    let (part, eps) = (width / groups, 1e-5);
    let case = OneOp {
        op: Op::RmsNorm {
            weight: param(ParamKind::Vector, &[part]),
            eps,
            offset,
            groups,
        },
        inputs: vec![tokens(Role::Hidden, width)],
        operands: 1,
        width,
        weights: vec![noise(9, part as usize)],
    };
    case.check(
        test,
        WeightForm::F32,
        &calls(width, size),
        |call, weights| {
            by_parts(&call.inputs[0], part as usize, |x| {
                let square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
                let root = (square + f64::from(eps)).sqrt();
                let scaled = x.iter().zip(&weights[0]);
                scaled
                    .map(|(x, w)| x / root * (f64::from(offset) + f64::from(*w)))
                    .collect()
            })
        },
    );
}

#[test]
fn rms_norm() {
    check_rms_norm("rms_norm", 64, 1, 0.0, 1.0);
}

#[test]
fn rms_norm_adds_its_offset_to_the_weight() {
    check_rms_norm("rms_norm, offset", 64, 1, 1.0, 1.0);
}

#[test]
fn rms_norm_of_heads() {
    check_rms_norm("rms_norm, groups", 96, 6, 0.0, 1.0);
    check_rms_norm("rms_norm, groups and offset", 96, 3, 1.0, 1.0);
}

/// In f16 the squares would be infinite from 256 on, and their sum even earlier.
#[test]
fn rms_norm_of_large_values() {
    check_rms_norm("rms_norm, large", 64, 1, 0.0, 3000.0);
}

/// If the mean square is as small as `eps`, it matters that `eps` is inside the root.
#[test]
fn rms_norm_of_small_values() {
    check_rms_norm("rms_norm, small", 64, 1, 0.0, 3e-3);
}

fn check_layer_norm(test: &str, with_bias: bool, size: f32) {
    let (width, eps) = (48, 1e-5);
    let mut weights = vec![noise(5, width as usize)];
    if with_bias {
        weights.push(noise(6, width as usize));
    }
    let vector = |slot: &str| {
        let mut param = param(ParamKind::Vector, &[width]);
        param.slot = slot.to_owned();
        param
    };
    let case = OneOp {
        op: Op::LayerNorm {
            weight: vector("y.weight"),
            bias: with_bias.then(|| vector("y.bias")),
            eps,
        },
        inputs: vec![tokens(Role::Hidden, width)],
        operands: 1,
        width,
        weights,
    };
    case.check(
        test,
        WeightForm::F32,
        &calls(width, size),
        |call, weights| {
            by_parts(&call.inputs[0], width as usize, |x| {
                let mean = x.iter().sum::<f64>() / x.len() as f64;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
                let deviation = (variance + f64::from(eps)).sqrt();
                let bias = |at: usize| weights.get(1).map_or(0.0, |b| f64::from(b[at]));
                let each = x.iter().enumerate();
                each.map(|(at, x)| (x - mean) / deviation * f64::from(weights[0][at]) + bias(at))
                    .collect()
            })
        },
    );
}

#[test]
fn layer_norm() {
    check_layer_norm("layer_norm", false, 1.0);
    check_layer_norm("layer_norm, bias", true, 1.0);
    check_layer_norm("layer_norm, large", true, 3000.0);
    check_layer_norm("layer_norm, small", true, 3e-3);
}
