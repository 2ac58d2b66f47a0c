//! Kernels and programs for them. Widths are not multiples of a step of scratch memory.

use heg_artifacts::manifest::*;
use heg_artifacts::program::Program;
use heg_spec::Group;

/// A kernel of one layer, with as many heads as fill its width.
fn kernel(
    group: Group,
    inputs: &[Port],
    outputs: &[Port],
    parameters: &[(&str, &[u32])],
) -> Kernel {
    let parameters = parameters.iter().map(|(name, shape)| Parameter {
        name: (*name).to_owned(),
        element: match shape.len() {
            2 => ElementType::I8,
            _ => ElementType::F32,
        },
        shape: shape.to_vec(),
        group_columns: None,
        centred: false,
    });
    Kernel {
        name: group.name().to_owned(),
        group,
        ops: Vec::new(),
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
        parameters: parameters.collect(),
        work: Work::default(),
        variants: Vec::new(),
    }
}

fn port(role: Role, rows: Rows, width: u32) -> Port {
    Port { role, rows, width }
}

/// `x + down(silu(gate(norm(x))) · up(norm(x)))` and so on: rows of 80 elements.
pub(super) fn ffn() -> (Kernel, Program) {
    let kernel = kernel(
        Group::Ffn,
        &[
            port(Role::Attended, Rows::Tokens, 70),
            port(Role::Hidden, Rows::Tokens, 80),
        ],
        &[port(Role::Hidden, Rows::Tokens, 80)],
        &[
            ("o.weight", &[80, 70]),
            ("norm.weight", &[80]),
            ("gate.weight", &[200, 80]),
            ("up.weight", &[200, 80]),
            ("up.bias", &[200]),
            ("down.weight", &[80, 200]),
        ],
    );
    (kernel, parse(FFN))
}

const FFN: &str = r#"(
    buffers: [
        (name: "attended", width: 70, form: Plain, place: Input(0)),
        (name: "attended.operand", width: 70, form: Operand, place: Scratch(first: 0)),
        (name: "hidden", width: 80, form: Plain, place: Input(1)),
        (name: "x", width: 80, form: Plain, place: Scratch(first: 128)),
        (name: "normed", width: 80, form: Operand, place: Scratch(first: 0)),
        (name: "gate", width: 200, form: Plain, place: Scratch(first: 256)),
        (name: "up", width: 200, form: Plain, place: Scratch(first: 512)),
        (name: "gated", width: 200, form: Operand, place: Scratch(first: 768)),
        (name: "out", width: 80, form: Plain, place: Output(0)),
    ],
    steps: [
        Copy(x: (0), out: (1)),
        Product(x: (1), parts: [(weight: (0), bias: None, residual: Some((to: (2), factor: 0.5)), out: (3))]),
        RmsNorm(x: (3), weight: (1), eps: 1e-6, offset: 0.0, groups: 1, out: (4)),
        Product(x: (4), parts: [
            (weight: (2), bias: None, residual: None, out: (5)),
            (weight: (3), bias: Some((4)), residual: None, out: (6)),
        ]),
        Gated(gate: (5), up: (6), activation: Silu, out: (7)),
        Product(x: (7), parts: [(weight: (5), bias: None, residual: Some((to: (3), factor: 1.0)), out: (8))]),
    ],
)"#;

/// Rotated keys and copied values; heads of 8.
pub(super) fn qkv() -> (Kernel, Program) {
    let kernel = kernel(
        Group::Qkv,
        &[
            port(Role::Hidden, Rows::Tokens, 80),
            port(Role::Cos, Rows::Tokens, 4),
            port(Role::Sin, Rows::Tokens, 4),
        ],
        &[
            port(Role::Query, Rows::Tokens, 32),
            port(Role::Key, Rows::Tokens, 16),
            port(Role::Value, Rows::Tokens, 16),
        ],
        &[
            ("q.weight", &[32, 80]),
            ("k.weight", &[16, 80]),
            ("v.weight", &[16, 80]),
            ("k_norm.weight", &[8]),
        ],
    );
    (kernel, parse(QKV))
}

const QKV: &str = r#"(
    buffers: [
        (name: "hidden", width: 80, form: Plain, place: Input(0)),
        (name: "normed", width: 80, form: Operand, place: Scratch(first: 0)),
        (name: "q", width: 32, form: Plain, place: Output(0)),
        (name: "k", width: 16, form: Plain, place: Scratch(first: 128)),
        (name: "v", width: 16, form: Plain, place: Scratch(first: 192)),
        (name: "v.stored", width: 16, form: Plain, place: Output(2)),
        (name: "k_normed", width: 16, form: Plain, place: Scratch(first: 0)),
        (name: "k_rotated", width: 16, form: Plain, place: Output(1)),
    ],
    steps: [
        Copy(x: (0), out: (1)),
        Product(x: (1), parts: [
            (weight: (0), bias: None, residual: None, out: (2)),
            (weight: (1), bias: None, residual: None, out: (3)),
            (weight: (2), bias: None, residual: None, out: (4)),
        ]),
        Copy(x: (4), out: (5)),
        RmsNorm(x: (3), weight: (3), eps: 1e-6, offset: 1.0, groups: 2, out: (6)),
        Rope(x: (6), heads: 2, rotated: 8, out: (7)),
    ],
)"#;

/// Attention with all its options; heads of 8.
pub(super) fn mha() -> (Kernel, Program) {
    let kernel = kernel(
        Group::Mha,
        &[
            port(Role::Query, Rows::Tokens, 32),
            port(Role::Key, Rows::Context, 16),
            port(Role::Value, Rows::Context, 16),
            port(Role::Position, Rows::One, 1),
        ],
        &[port(Role::Attended, Rows::Tokens, 32)],
        &[],
    );
    (kernel, parse(MHA))
}

pub(super) const MHA: &str = r#"(
    buffers: [(name: "attended", width: 32, form: Plain, place: Output(0))],
    steps: [
        Attention(
            attributes: (heads: 4, kv_heads: 2, head_dim: 8, scale: 0.5, window: Some(7), softcap: Some(50.0)),
            out: (0),
        ),
    ],
)"#;

fn parse(text: &str) -> Program {
    ron::from_str(text).unwrap()
}
