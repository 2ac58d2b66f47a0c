//! Programs and their bodies compute the same: both are evaluated on random inputs and weights, and give the same bits.
//!
//! Programs run in scratch memory according to their plan, so that a buffer that is overwritten too early, or read
//! before it is written, is noticed. Operands keep the bits of their rows here.

use heg_artifacts::manifest::{ElementType, Kernel, Port, Role, Rows};
use heg_artifacts::program::{
    Attention, BufferId, BufferPlace, ParameterId, Part, Program, Step, scratch_width,
};
use heg_spec::{Group, WeightForm};
use proptest::prelude::*;

use super::attention::{Cache, attention};
use super::elementwise::{activated, add, gated, layer_norm, map, rms_norm, rope};
use super::evaluate;
use crate::assemble::kernel_of;
use crate::fixture::{Described, FAMILIES};
use crate::graph::{Activation, Op, Param, ParamKind, WeightSource};
use crate::heg::{BodyOp, KernelBody, Operand};
use crate::program::lower_program;
use heg_quant::{MappedWeight, ValueRows, linear};

/// Rows of the call, and rows of the cache before them.
const TOKENS: usize = 3;
const POSITION: usize = 4;

/// A call of a program: its memory, and its inputs.
struct Call<'a> {
    kernel: &'a Kernel,
    program: &'a Program,
    inputs: &'a [ValueRows],
    weights: &'a [MappedWeight],
    outputs: Vec<Option<ValueRows>>,
    scratch: Vec<f32>,
}

impl Call<'_> {
    fn run(mut self) -> Vec<ValueRows> {
        for step in &self.program.steps {
            let rows = self.step(step);
            for (out, rows) in step.writes().into_iter().zip(rows) {
                self.write(out, rows);
            }
        }
        self.outputs.into_iter().map(Option::unwrap).collect()
    }

    /// The rows that a step writes.
    fn step(&self, step: &Step) -> Vec<ValueRows> {
        let read = |id: &BufferId| self.read(*id);
        let vector = |id: &ParameterId| self.weight(*id).values().floats().unwrap();
        let rows = match step {
            Step::Product { x, parts } => {
                let x = read(x);
                return parts.iter().map(|part| self.part(&x, part)).collect();
            }
            Step::RmsNorm {
                x,
                weight,
                eps,
                offset,
                groups,
                ..
            } => rms_norm(&read(x), &vector(weight), *eps, *offset, *groups),
            Step::LayerNorm {
                x,
                weight,
                bias,
                eps,
                ..
            } => {
                let bias = bias.as_ref().map(vector);
                layer_norm(&read(x), &vector(weight), bias.as_deref(), *eps)
            }
            Step::Copy { x, .. } => read(x),
            Step::Rope {
                x, heads, rotated, ..
            } => {
                let (cos, sin) = (self.input(Role::Cos), self.input(Role::Sin));
                rope(&read(x), cos, sin, *heads as usize, *rotated as usize)
            }
            Step::Attention { attributes, .. } => self.attention(attributes),
            Step::Activated { x, activation, .. } => map(&read(x), |x| activated(*activation, x)),
            Step::Gated {
                gate,
                up,
                activation,
                ..
            } => gated(&read(gate), &read(up), *activation),
            Step::Add { a, b, b_scale, .. } => add(&read(a), &read(b), *b_scale),
            Step::Scale { x, factor, .. } => map(&read(x), |x| f64::from(*factor) * x),
            Step::SoftCap { x, cap, .. } => {
                let cap = f64::from(*cap);
                map(&read(x), |x| cap * libm::tanh(x / cap))
            }
        };
        vec![rows]
    }

    fn part(&self, x: &ValueRows, part: &Part) -> ValueRows {
        let bias = part.bias.map(|bias| self.weight(bias));
        let product = linear(x, self.weight(part.weight), bias).unwrap();
        match part.residual {
            None => product,
            Some(residual) => add(&self.read(residual.to), &product, residual.factor),
        }
    }

    fn attention(&self, attributes: &Attention) -> ValueRows {
        let cache = Cache {
            keys: self.input(Role::Key),
            values: self.input(Role::Value),
            position: self.input(Role::Position).values[0] as usize,
        };
        attention(self.input(Role::Query), &cache, attributes)
    }

    fn weight(&self, id: ParameterId) -> &MappedWeight {
        &self.weights[id.0 as usize]
    }

    fn input(&self, role: Role) -> &ValueRows {
        let mut ports = self.kernel.inputs.iter();
        &self.inputs[ports.position(|port| port.role == role).unwrap()]
    }

    fn read(&self, id: BufferId) -> ValueRows {
        let buffer = &self.program.buffers[id.0 as usize];
        let width = buffer.width as usize;
        match buffer.place {
            BufferPlace::Input(port) => self.inputs[port as usize].clone(),
            BufferPlace::Output(_) => panic!("outputs are not read"),
            BufferPlace::Scratch { first } => {
                let rows = self.scratch[first as usize * TOKENS..]
                    .chunks(scratch_width(buffer.width) as usize)
                    .take(TOKENS);
                let values = rows.flat_map(|row| row[..width].to_vec()).collect();
                ValueRows { width, values }
            }
        }
    }

    fn write(&mut self, id: BufferId, rows: ValueRows) {
        let buffer = &self.program.buffers[id.0 as usize];
        assert_eq!(rows.width, buffer.width as usize);
        match buffer.place {
            BufferPlace::Input(_) => panic!("inputs are not written"),
            BufferPlace::Output(port) => self.outputs[port as usize] = Some(rows),
            BufferPlace::Scratch { first } => {
                let places = self.scratch[first as usize * TOKENS..]
                    .chunks_mut(scratch_width(buffer.width) as usize);
                for (place, row) in places.zip(rows.rows()) {
                    // A reader must not depend on bytes after a row.
                    place.fill(f32::NAN);
                    place[..row.len()].copy_from_slice(row);
                }
            }
        }
    }
}

/// Compares a body with its program bit by bit, for inputs and weights from a seed.
fn check(body: &KernelBody, seed: u64) {
    let kernel = kernel_of(body, WeightForm::F32);
    let program = lower_program(body, &kernel).unwrap();
    let mut noise = Noise(seed);
    let inputs: Vec<ValueRows> = body.inputs.iter().map(|port| noise.input(port)).collect();
    let weights: Vec<MappedWeight> = body.params().map(|param| noise.weight(param)).collect();
    let found = Call {
        kernel: &kernel,
        program: &program,
        inputs: &inputs,
        weights: &weights,
        outputs: vec![None; kernel.outputs.len()],
        scratch: vec![f32::NAN; program.scratch_elements() as usize * TOKENS],
    };
    let expected = evaluate(body, &inputs, &weights).unwrap();
    for (found, expected) in found.run().iter().zip(&expected) {
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert_eq!(found.values.len(), expected.values.len());
        let mut pairs = found.values.iter().zip(&expected.values);
        assert!(pairs.all(same), "{}", program.text(&kernel));
    }
}

/// Numbers in [−1, 1).
struct Noise(u64);

impl Noise {
    fn values(&mut self, count: usize) -> Vec<f32> {
        let mut next = || {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn input(&mut self, port: &Port) -> ValueRows {
        let width = port.width as usize;
        let values = match (port.role, port.rows) {
            (Role::Position, _) => vec![POSITION as f32],
            (_, Rows::One) => self.values(width),
            (_, Rows::Tokens) => self.values(width * TOKENS),
            (_, Rows::Context) => self.values(width * (POSITION + TOKENS)),
        };
        ValueRows { width, values }
    }

    fn weight(&mut self, param: &Param) -> MappedWeight {
        let count = param.shape.iter().map(|dim| *dim as usize).product();
        let bytes: Vec<u8> = self
            .values(count)
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        MappedWeight::of_bytes(ElementType::F32, &bytes, None).unwrap()
    }
}

#[test]
fn programs_of_all_families_compute_what_their_kernels_do() {
    for family in FAMILIES {
        for (seed, body) in (1..).zip(&Described::family(family).heg().kernels) {
            check(body, seed);
        }
    }
}

/// Width of all values of [`bodies`], and width of their heads.
const WIDTH: u32 = 24;
const HEADS: u32 = 3;

/// An operator of a random body, before its operands and weights are resolved: its kind, and its operands.
type Drawn = (usize, [prop::sample::Index; 2], bool);

/// Kernels with operators in any order, which share their operands and results in any way.
fn bodies() -> impl Strategy<Value = KernelBody> {
    let index = || any::<prop::sample::Index>();
    let op = (0..10_usize, [index(), index()], any::<bool>());
    let results = [index(), index(), index(), index()];
    (prop::collection::vec(op, 0..14), results).prop_map(|(ops, results)| body(&ops, results))
}

fn body(drawn: &[Drawn], results: [prop::sample::Index; 4]) -> KernelBody {
    let port = |role, width| Port {
        role,
        rows: Rows::Tokens,
        width,
    };
    let rotary = WIDTH / HEADS / 4;
    // The values that can be read: two inputs, and all earlier results.
    let value = |index: &prop::sample::Index, computed: usize| match index.index(2 + computed) {
        at @ 0..2 => Operand::Input(at),
        at => Operand::Op(at - 2),
    };
    let ops = drawn.iter().enumerate().map(|(at, (which, reads, flag))| {
        let op = op(*which, *flag, at);
        let arity = crate::graph::arity(&op);
        BodyOp {
            name: format!("v{at}"),
            op,
            operands: reads
                .iter()
                .take(arity)
                .map(|read| value(read, at))
                .collect(),
        }
    });
    KernelBody {
        name: "random".to_owned(),
        group: Group::Qkv,
        inputs: vec![
            port(Role::Hidden, WIDTH),
            port(Role::Attended, WIDTH),
            port(Role::Cos, rotary),
            port(Role::Sin, rotary),
        ],
        ops: ops.collect(),
        outputs: [Role::Query, Role::Key, Role::Value, Role::Hidden]
            .map(|role| port(role, WIDTH))
            .to_vec(),
        results: results
            .iter()
            .map(|result| value(result, drawn.len()))
            .collect(),
    }
}

fn op(which: usize, flag: bool, at: usize) -> Op {
    let param = |name: &str, shape: &[u32]| Param {
        slot: format!("v{at}.{name}"),
        source: WeightSource {
            name: String::new(),
            first_row: None,
        },
        kind: match shape.len() {
            2 => ParamKind::Matrix,
            _ => ParamKind::Vector,
        },
        shape: shape.to_vec(),
    };
    let groups = if flag { HEADS } else { 1 };
    match which {
        0 => Op::RmsNorm {
            weight: param("weight", &[WIDTH / groups]),
            eps: 1e-5,
            offset: 1.0,
            groups,
        },
        1 => Op::LayerNorm {
            weight: param("weight", &[WIDTH]),
            bias: flag.then(|| param("bias", &[WIDTH])),
            eps: 1e-5,
        },
        2 => Op::Rope {
            heads: HEADS,
            rotated: WIDTH / HEADS / 2,
            table: String::new(),
        },
        3 => Op::Gated(Activation::Silu),
        4 => Op::Scale { factor: 0.5 },
        5 => Op::SoftCap { cap: 2.0 },
        6 => Op::Add { b_scale: 0.25 },
        // Often: joining steps with these is error-prone.
        _ => Op::Linear {
            weight: param("weight", &[WIDTH, WIDTH]),
            bias: flag.then(|| param("bias", &[WIDTH])),
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn programs_of_any_kernel_compute_what_it_does(body in bodies(), seed in any::<u64>()) {
        check(&body, seed);
    }
}
