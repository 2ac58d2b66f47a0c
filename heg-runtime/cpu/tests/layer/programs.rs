//! The programs of a layer as the compiler lowers them.

use super::Sizes;
use heg_artifacts::manifest::{ElementType, Kernel, Parameter, Port, Role, Rows, Work};
use heg_artifacts::program::{
    Activation, Attention, Buffer, BufferId, BufferPlace, ParameterId, Part, Program, Residual,
    RowForm, Step, scratch_width,
};
use heg_spec::{Group, GroupColumns, Sight};

/// Builds a program with consecutive buffers in scratch memory.
#[derive(Default)]
struct Builder {
    buffers: Vec<Buffer>,
    steps: Vec<Step>,
    scratch: u32,
}

impl Builder {
    fn at(&mut self, width: usize, form: RowForm, place: BufferPlace) -> BufferId {
        self.buffers.push(Buffer {
            name: format!("b{}", self.buffers.len()),
            width: width as u32,
            form,
            place,
        });
        BufferId(self.buffers.len() as u32 - 1)
    }

    fn input(&mut self, port: u32, width: usize) -> BufferId {
        self.at(width, RowForm::Plain, BufferPlace::Input(port))
    }

    fn output(&mut self, port: u32, width: usize) -> BufferId {
        self.at(width, RowForm::Plain, BufferPlace::Output(port))
    }

    fn scratch(&mut self, width: usize, form: RowForm) -> BufferId {
        let first = self.scratch;
        self.scratch += scratch_width(width as u32);
        self.at(width, form, BufferPlace::Scratch { first })
    }

    fn norm(&mut self, x: BufferId, weight: u32, width: usize) -> BufferId {
        let out = self.scratch(width, RowForm::Operand);
        self.steps.push(Step::RmsNorm {
            x,
            weight: ParameterId(weight),
            eps: 1e-5,
            offset: 0.0,
            groups: 1,
            out,
        });
        out
    }

    fn copy(&mut self, x: BufferId, out: BufferId) -> BufferId {
        self.steps.push(Step::Copy { x, out });
        out
    }

    fn done(self) -> Program {
        Program {
            buffers: self.buffers,
            steps: self.steps,
        }
    }
}

fn part(weight: u32, out: BufferId) -> Part {
    Part {
        weight: ParameterId(weight),
        bias: None,
        residual: None,
        out,
    }
}

fn port(role: Role, rows: Rows, width: usize) -> Port {
    Port {
        role,
        rows,
        width: width as u32,
    }
}

fn parameter(name: &str, element: ElementType, shape: &[usize]) -> Parameter {
    Parameter {
        name: name.to_owned(),
        element,
        shape: shape.iter().map(|dim| *dim as u32).collect(),
        group_columns: element.is_grouped().then(|| {
            let mut groups = GroupColumns::ALL.into_iter().rev();
            let divides = |group: &GroupColumns| shape[1].is_multiple_of(group.count() as usize);
            groups.find(divides).unwrap()
        }),
        // Both kinds of rows.
        centred: match element {
            ElementType::I8 => shape[0] != 576,
            _ => element == ElementType::U4,
        },
    }
}

fn kernel(
    group: Group,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    parameters: Vec<Parameter>,
) -> Kernel {
    Kernel {
        name: group.name().to_owned(),
        group,
        ops: Vec::new(),
        inputs,
        outputs,
        parameters,
        work: Work::default(),
        variants: Vec::new(),
    }
}

pub(super) fn qkv(sizes: Sizes, weights: ElementType) -> (Kernel, Program) {
    let (query, key) = (sizes.query(), sizes.key());
    let declared = kernel(
        Group::Qkv,
        vec![
            port(Role::Hidden, Rows::Tokens, sizes.hidden),
            port(Role::Cos, Rows::Tokens, sizes.head_dim / 2),
            port(Role::Sin, Rows::Tokens, sizes.head_dim / 2),
        ],
        vec![
            port(Role::Query, Rows::Tokens, query),
            port(Role::Key, Rows::Tokens, key),
            port(Role::Value, Rows::Tokens, key),
        ],
        vec![
            parameter("norm", ElementType::F32, &[sizes.hidden]),
            parameter("q", weights, &[query, sizes.hidden]),
            parameter("k", weights, &[key, sizes.hidden]),
            parameter("v", weights, &[key, sizes.hidden]),
            parameter("v.bias", ElementType::F32, &[key]),
        ],
    );
    let mut program = Builder::default();
    let x = program.input(0, sizes.hidden);
    let outputs = [(0, query), (1, key), (2, key)];
    let [out_q, out_k, out_v] = outputs.map(|(port, width)| program.output(port, width));
    let normed = program.norm(x, 0, sizes.hidden);
    let [q, k, v] = [query, key, key].map(|width| program.scratch(width, RowForm::Plain));
    let mut parts = vec![part(1, q), part(2, k), part(3, v)];
    parts[2].bias = Some(ParameterId(4));
    program.steps.push(Step::Product { x: normed, parts });
    for (x, heads, out) in [(q, sizes.heads, out_q), (k, sizes.kv_heads, out_k)] {
        program.steps.push(Step::Rope {
            x,
            heads: heads as u32,
            rotated: sizes.head_dim as u32,
            out,
        });
    }
    program.copy(v, out_v);
    (declared, program.done())
}

pub(super) fn mha(sizes: Sizes, window: Option<u32>, softcap: Option<f32>) -> (Kernel, Program) {
    let (query, key) = (sizes.query(), sizes.key());
    let declared = kernel(
        Group::Mha,
        vec![
            port(Role::Query, Rows::Tokens, query),
            port(Role::Key, Rows::Context, key),
            port(Role::Value, Rows::Context, key),
            port(Role::Position, Rows::One, 1),
        ],
        vec![port(Role::Attended, Rows::Tokens, query)],
        Vec::new(),
    );
    let mut program = Builder::default();
    program.input(0, query);
    let out = program.output(0, query);
    program.steps.push(Step::Attention {
        attributes: Attention {
            heads: sizes.heads as u32,
            kv_heads: sizes.kv_heads as u32,
            head_dim: sizes.head_dim as u32,
            scale: 0.3,
            window,
            softcap,
            sight: Sight::Causal,
        },
        out,
    });
    (declared, program.done())
}

pub(super) fn ffn(sizes: Sizes, weights: ElementType) -> (Kernel, Program) {
    let (query, hidden) = (sizes.query(), sizes.hidden);
    let declared = kernel(
        Group::Ffn,
        vec![
            port(Role::Attended, Rows::Tokens, query),
            port(Role::Hidden, Rows::Tokens, hidden),
        ],
        vec![port(Role::Hidden, Rows::Tokens, hidden)],
        vec![
            parameter("o", weights, &[hidden, query]),
            parameter("norm", ElementType::F32, &[hidden]),
            parameter("gate", weights, &[sizes.ffn, hidden]),
            parameter("up", weights, &[sizes.ffn, hidden]),
            parameter("down", weights, &[hidden, sizes.ffn]),
        ],
    );
    let mut program = Builder::default();
    let attended = program.input(0, query);
    let x = program.input(1, hidden);
    let out = program.output(0, hidden);
    let operand = program.scratch(query, RowForm::Operand);
    program.copy(attended, operand);
    let middle = program.scratch(hidden, RowForm::Plain);
    let product = |x, parts| Step::Product { x, parts };
    let onto = |part: Part, to| Part {
        residual: Some(Residual { to, factor: 0.7 }),
        ..part
    };
    program
        .steps
        .push(product(operand, vec![onto(part(0, middle), x)]));
    let normed = program.norm(middle, 1, hidden);
    let [gate, up] = [2, 3].map(|_| program.scratch(sizes.ffn, RowForm::Plain));
    program
        .steps
        .push(product(normed, vec![part(2, gate), part(3, up)]));
    let gated = program.scratch(sizes.ffn, RowForm::Operand);
    program.steps.push(Step::Gated {
        gate,
        up,
        activation: Activation::Silu,
        out: gated,
    });
    program
        .steps
        .push(product(gated, vec![onto(part(4, out), middle)]));
    (declared, program.done())
}
