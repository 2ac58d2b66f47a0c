//! Rotary embedding: full and partial, one head and many.

use heg_artifacts::manifest::Role;
use heg_spec::WeightForm;

use super::bench::{Call, OneOp, TOKENS, noise, tokens};
use crate::graph::Op;

fn check(test: &str, heads: usize, head_dim: usize, rotated: usize) {
    let (width, half) = (heads * head_dim, rotated / 2);
    let case = OneOp {
        op: Op::Rope {
            heads: heads as u32,
            rotated: rotated as u32,
            table: String::new(),
        },
        inputs: vec![
            tokens(Role::Hidden, width as u32),
            tokens(Role::Cos, half as u32),
            tokens(Role::Sin, half as u32),
        ],
        operands: 1,
        width: width as u32,
        weights: Vec::new(),
    };
    let calls = TOKENS.map(|tokens| {
        let angles = noise(7, tokens * half);
        Call {
            tokens,
            inputs: vec![
                noise(tokens as u64, tokens * width),
                angles.iter().map(|angle| (angle * 3.0).cos()).collect(),
                angles.iter().map(|angle| (angle * 3.0).sin()).collect(),
            ],
        }
    });
    case.check(test, WeightForm::F32, &calls, |call, _| {
        let [x, cos, sin] = call.inputs.as_slice() else {
            panic!("three inputs");
        };
        let mut y: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for token in 0..call.tokens {
            for head in 0..heads {
                let start = token * width + head * head_dim;
                for pair in 0..half {
                    let (c, s) = (
                        f64::from(cos[token * half + pair]),
                        f64::from(sin[token * half + pair]),
                    );
                    let (a, b) = (
                        f64::from(x[start + pair]),
                        f64::from(x[start + half + pair]),
                    );
                    y[start + pair] = a * c - b * s;
                    y[start + half + pair] = b * c + a * s;
                }
            }
        }
        y
    });
}

#[test]
fn rope_of_whole_heads() {
    check("rope", 4, 16, 16);
    check("rope, one head", 1, 32, 32);
}

#[test]
fn rope_of_the_first_dimensions() {
    check("rope, partial", 3, 20, 8);
    check("rope, partial, one head", 1, 16, 4);
}
