//! Activations, gated or not, residual sums, factors and soft caps.

use heg_artifacts::manifest::Role;
use heg_spec::WeightForm;

use super::bench::{Call, OneOp, TOKENS, noise, tokens};
use crate::graph::{Activation, Op};

const WIDTH: u32 = 48;

fn check(test: &str, op: Op, operands: usize, reference: impl Fn(f64, f64) -> f64) {
    // A kernel never has two inputs of one role.
    let roles = [Role::Hidden, Role::Attended];
    let case = OneOp {
        op,
        inputs: roles[..operands]
            .iter()
            .map(|role| tokens(*role, WIDTH))
            .collect(),
        operands,
        width: WIDTH,
        weights: Vec::new(),
    };
    // Up to ±6, where activations are most curved.
    let input = |seed: u64, tokens: usize| -> Vec<f32> {
        let values = noise(seed, tokens * WIDTH as usize);
        values.iter().map(|x| x * 6.0).collect()
    };
    let calls = TOKENS.map(|tokens| Call {
        tokens,
        inputs: (0..operands as u64)
            .map(|operand| input(20 + operand, tokens))
            .collect(),
    });
    case.check(test, WeightForm::F32, &calls, |call, _| {
        let second = call.inputs.last().unwrap();
        let each = call.inputs[0].iter().zip(second);
        each.map(|(a, b)| reference(f64::from(*a), f64::from(*b)))
            .collect()
    });
}

#[test]
fn gated_by_silu() {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    check("gated, silu", Op::Gated(Activation::Silu), 2, |gate, up| {
        silu(gate) * up
    });
}

#[test]
fn gated_by_gelu() {
    let gelu = |x: f64| x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2)) / 2.0;
    check("gated, gelu", Op::Gated(Activation::Gelu), 2, |gate, up| {
        gelu(gate) * up
    });
}

#[test]
fn gated_by_gelu_of_tanh() {
    let gelu = |x: f64| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        x * (1.0 + inner.tanh()) / 2.0
    };
    check(
        "gated, gelu tanh",
        Op::Gated(Activation::GeluTanh),
        2,
        |gate, up| gelu(gate) * up,
    );
}

#[test]
fn activated_without_a_gate() {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    check(
        "activated, silu",
        Op::Activated(Activation::Silu),
        1,
        |x, _| silu(x),
    );
    let gelu = |x: f64| x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2)) / 2.0;
    check(
        "activated, gelu",
        Op::Activated(Activation::Gelu),
        1,
        |x, _| gelu(x),
    );
}

#[test]
fn add_scales_its_second_term() {
    check("add", Op::Add { b_scale: 1.0 }, 2, |a, b| a + b);
    check("add, scaled", Op::Add { b_scale: 0.25 }, 2, |a, b| {
        a + 0.25 * b
    });
}

#[test]
fn scale() {
    check("scale", Op::Scale { factor: 0.125 }, 1, |x, _| 0.125 * x);
    check("scale, negative", Op::Scale { factor: -3.5 }, 1, |x, _| {
        -3.5 * x
    });
}

#[test]
fn soft_cap() {
    for cap in [1.0, 4.0, 30.0] {
        let wide = f64::from(cap);
        check("soft_cap", Op::SoftCap { cap }, 1, |x, _| {
            wide * (x / wide).tanh()
        });
    }
}
