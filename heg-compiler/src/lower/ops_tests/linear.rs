//! Linear operators in every weight form, with and without bias.

use heg_artifacts::manifest::Role;
use heg_spec::{GroupColumns, WeightForm};

use super::bench::{Call, OneOp, TOKENS, noise, param, tokens};
use crate::graph::{Op, ParamKind};

fn check(test: &str, kind: ParamKind, weights: WeightForm, with_bias: bool) {
    let (inner, outer) = (192_u32, 40_u32);
    let mut values = vec![matrix(outer as usize, inner as usize)];
    if with_bias {
        values.push(noise(4, outer as usize));
    }
    let case = OneOp {
        op: Op::Linear {
            weight: param(kind, &[outer, inner]),
            bias: with_bias.then(|| param(ParamKind::Vector, &[outer])),
        },
        inputs: vec![tokens(Role::Hidden, inner)],
        operands: 1,
        width: outer,
        weights: values,
    };
    let calls = TOKENS.map(|tokens| Call {
        tokens,
        inputs: vec![noise(tokens as u64, tokens * inner as usize)],
    });
    case.check(test, weights, &calls, |call, weights| {
        let rows = call.inputs[0].chunks(inner as usize);
        rows.flat_map(|x| product(x, &weights[0], weights.get(1).map(Vec::as_slice)))
            .collect()
    });
}

/// Rows of very different magnitude and centre, so that a scale or a centre on the wrong row is noticed.
fn matrix(rows: usize, columns: usize) -> Vec<f32> {
    let mut values = noise(3, rows * columns);
    for (row, values) in values.chunks_mut(columns).enumerate() {
        let (size, middle) = (1.0 + row as f32 / 4.0, row as f32 / 16.0);
        values.iter_mut().for_each(|x| *x = *x * size + middle);
    }
    values
}

fn product(x: &[f32], matrix: &[f32], bias: Option<&[f32]>) -> Vec<f64> {
    let dot = |row: &[f32]| -> f64 {
        let each = row.iter().zip(x);
        each.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
    };
    let rows = matrix.chunks(x.len()).enumerate();
    rows.map(|(at, row)| dot(row) + bias.map_or(0.0, |bias| f64::from(bias[at])))
        .collect()
}

#[test]
fn linear_f32() {
    check("linear, f32", ParamKind::Matrix, WeightForm::F32, false);
    check(
        "linear, f32, bias",
        ParamKind::Matrix,
        WeightForm::F32,
        true,
    );
}

#[test]
fn linear_f16() {
    check("linear, f16", ParamKind::Matrix, WeightForm::F16, false);
    check(
        "linear, f16, bias",
        ParamKind::Matrix,
        WeightForm::F16,
        true,
    );
}

#[test]
fn linear_w8a16() {
    check("linear, w8a16", ParamKind::Matrix, WeightForm::W8A16, false);
    check(
        "linear, w8a16, bias",
        ParamKind::Matrix,
        WeightForm::W8A16,
        true,
    );
}

#[test]
fn linear_w4a16() {
    let [first, second] = [GroupColumns::ALL[0], GroupColumns::ALL[1]];
    for (group, symmetric, bias) in [
        (first, false, false),
        (first, true, true),
        (second, false, true),
        (second, true, false),
    ] {
        let form = WeightForm::W4A16 { group, symmetric };
        let test = format!("linear, {form}, bias {bias}");
        check(&test, ParamKind::Matrix, form, bias);
    }
}

#[test]
fn linear_w8a16_centred() {
    let (kind, form) = (ParamKind::Table, WeightForm::W8A16);
    check("linear, w8a16, centred", kind, form, false);
    check("linear, w8a16, centred, bias", kind, form, true);
}
