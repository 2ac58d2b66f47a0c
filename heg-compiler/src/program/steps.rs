//! The steps of a program, and the form in which each value is written.
//!
//! A value that only products read is written as operands at once; one with other readers too is written plain, and
//! copied to operands before the first product. A value that only leaves the kernel is written to its port.

use std::collections::BTreeMap;

use heg_artifacts::manifest::Role;
use heg_artifacts::program::{
    Buffer, BufferId, BufferPlace, ParameterId, Part, Program, Residual, RowForm, Step,
};

use super::joined::Joined;
use crate::error::CompileError;
use crate::graph::{Op, Param};
use crate::heg::{BodyOp, KernelBody, Operand};

/// The program of a body. Buffers in scratch memory have no places yet: all begin at element 0.
pub(super) fn program(body: &KernelBody) -> Result<Program, CompileError> {
    let mut builder = Builder::new(body);
    for index in 0..body.ops.len() {
        if !builder.joined.is_part(index) {
            let step = builder.step(index)?;
            builder.finish(step);
        }
    }
    for (port, result) in body.results.iter().enumerate() {
        if let Operand::Input(_) = result {
            builder.store(*result, port);
        }
    }
    Ok(builder.program)
}

struct Builder<'a> {
    body: &'a KernelBody,
    joined: Joined,
    /// First parameter of each operator.
    parameters: Vec<u32>,
    program: Program,
    /// The value of each buffer.
    values: Vec<Operand>,
    /// Buffers with values in plain rows.
    plain: BTreeMap<Operand, BufferId>,
    /// Buffers with values as operands of products.
    operands: BTreeMap<Operand, BufferId>,
}

impl<'a> Builder<'a> {
    fn new(body: &'a KernelBody) -> Self {
        let mut next = 0;
        let parameters = body.ops.iter().map(|op| {
            let first = next;
            next += op.op.params().len() as u32;
            first
        });
        Self {
            body,
            joined: Joined::new(body),
            parameters: parameters.collect(),
            program: Program {
                buffers: Vec::new(),
                steps: Vec::new(),
            },
            values: Vec::new(),
            plain: BTreeMap::new(),
            operands: BTreeMap::new(),
        }
    }

    /// The step of an operator, including the operators joined with it. Its output buffers are new, plain and in
    /// scratch memory.
    fn step(&mut self, index: usize) -> Result<Step, CompileError> {
        let op = &self.body.ops[index];
        let x = |builder: &mut Self| builder.plain_of(op.operands[0]);
        Ok(match &op.op {
            Op::Input => return Err(refused(op, "a kernel has the residual stream as an input")),
            Op::Linear { .. } => self.product(index, op.operands[0]),
            Op::Attention(attributes) => Step::Attention {
                attributes: *attributes,
                out: self.attended(index)?,
            },
            Op::RmsNorm {
                weight: _,
                eps,
                offset,
                groups,
            } => Step::RmsNorm {
                x: x(self),
                weight: ParameterId(self.parameters[index]),
                eps: *eps,
                offset: *offset,
                groups: *groups,
                out: self.declare(index),
            },
            Op::LayerNorm {
                weight: _,
                bias,
                eps,
            } => Step::LayerNorm {
                x: x(self),
                weight: ParameterId(self.parameters[index]),
                bias: self.bias(index, bias.as_ref()),
                eps: *eps,
                out: self.declare(index),
            },
            Op::Rope {
                heads,
                rotated,
                table: _,
            } => Step::Rope {
                x: x(self),
                heads: *heads,
                rotated: *rotated,
                out: self.declare(index),
            },
            Op::Activated(_)
            | Op::Gated(_)
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::SoftCap { .. } => return self.elementwise(index),
        })
    }

    /// The step of an operator on the elements of its operands.
    fn elementwise(&mut self, index: usize) -> Result<Step, CompileError> {
        let op = &self.body.ops[index];
        let x = |builder: &mut Self| builder.plain_of(op.operands[0]);
        Ok(match &op.op {
            Op::Activated(activation) => Step::Activated {
                x: x(self),
                activation: *activation,
                out: self.declare(index),
            },
            Op::Gated(activation) => Step::Gated {
                gate: x(self),
                up: self.plain_of(op.operands[1]),
                activation: *activation,
                out: self.declare(index),
            },
            Op::Add { b_scale } => Step::Add {
                a: x(self),
                b: self.plain_of(op.operands[1]),
                b_scale: *b_scale,
                out: self.declare(index),
            },
            Op::Scale { factor } => Step::Scale {
                x: x(self),
                factor: *factor,
                out: self.declare(index),
            },
            Op::SoftCap { cap } => Step::SoftCap {
                x: x(self),
                cap: *cap,
                out: self.declare(index),
            },
            _ => return Err(refused(op, "it is no operator on elements")),
        })
    }

    /// The product of all linear operators joined with operator `first`.
    fn product(&mut self, first: usize, x: Operand) -> Step {
        let x = self.operand_of(x);
        let linears = self.joined.product(first);
        let parts = linears.into_iter().map(|linear| self.part(linear));
        Step::Product {
            x,
            parts: parts.collect(),
        }
    }

    fn part(&mut self, linear: usize) -> Part {
        let body = self.body;
        let sum = self.joined.sum_of(linear);
        let residual = sum.and_then(|sum| match &body.ops[sum].op {
            Op::Add { b_scale } => Some(Residual {
                to: self.plain_of(body.ops[sum].operands[0]),
                factor: *b_scale,
            }),
            _ => None,
        });
        let bias = match &body.ops[linear].op {
            Op::Linear { bias, .. } => self.bias(linear, bias.as_ref()),
            _ => None,
        };
        Part {
            weight: ParameterId(self.parameters[linear]),
            bias,
            residual,
            out: self.declare(sum.unwrap_or(linear)),
        }
    }

    /// The parameter of a bias, which follows that of the weight.
    fn bias(&self, op: usize, bias: Option<&Param>) -> Option<ParameterId> {
        bias.map(|_| ParameterId(self.parameters[op] + 1))
    }

    /// The output rows of an attention, which has to read the kernel's own ports.
    fn attended(&mut self, index: usize) -> Result<BufferId, CompileError> {
        let op = &self.body.ops[index];
        let roles = op.operands.iter().map(|operand| match operand {
            Operand::Input(port) => self.body.inputs.get(*port).map(|port| port.role),
            Operand::Op(_) => None,
        });
        if !roles.eq([Role::Query, Role::Key, Role::Value].map(Some)) {
            let message = "an attention reads queries, keys and values that other kernels made";
            return Err(refused(op, message));
        }
        Ok(self.declare(index))
    }

    /// A new buffer for the value of an operator.
    fn declare(&mut self, op: usize) -> BufferId {
        self.buffer(Operand::Op(op), "", BufferPlace::Scratch { first: 0 })
    }

    /// A new buffer of plain rows, named after its value.
    fn buffer(&mut self, value: Operand, suffix: &str, place: BufferPlace) -> BufferId {
        let name = match value {
            Operand::Input(port) => format!("{:?}", self.body.inputs[port].role).to_lowercase(),
            Operand::Op(op) => self.body.ops[op].name.clone(),
        };
        let id = BufferId(self.program.buffers.len() as u32);
        self.program.buffers.push(Buffer {
            name: format!("{name}{suffix}"),
            width: self.body.width(value),
            form: RowForm::Plain,
            place,
        });
        self.values.push(value);
        id
    }

    /// The plain rows of a value that an earlier step wrote, or of an input.
    fn plain_of(&mut self, value: Operand) -> BufferId {
        if let Some(known) = self.plain.get(&value) {
            return *known;
        }
        let place = match value {
            Operand::Input(port) => BufferPlace::Input(port as u32),
            Operand::Op(_) => BufferPlace::Scratch { first: 0 },
        };
        let id = self.buffer(value, "", place);
        self.plain.insert(value, id);
        id
    }

    /// The operands of a value; copies the value if it exists in plain rows only.
    fn operand_of(&mut self, value: Operand) -> BufferId {
        if let Some(known) = self.operands.get(&value) {
            return *known;
        }
        let x = self.plain_of(value);
        let out = self.buffer(value, ".operand", BufferPlace::Scratch { first: 0 });
        self.program.buffers[out.0 as usize].form = RowForm::Operand;
        self.operands.insert(value, out);
        self.program.steps.push(Step::Copy { x, out });
        out
    }

    /// Adds a step, with the form and the place that the readers of its outputs need.
    fn finish(&mut self, step: Step) {
        let mut stored = Vec::new();
        for out in step.writes() {
            let value = self.values[out.0 as usize];
            let readers = Readers::of(self.body, value);
            let buffer = &mut self.program.buffers[out.0 as usize];
            match (readers.plain, readers.products, readers.ports.as_slice()) {
                (false, true, []) if step.gives_operands() => {
                    buffer.form = RowForm::Operand;
                    self.operands.insert(value, out);
                }
                (false, false, [port]) if step.gives_cache_rows() || !self.is_cached(*port) => {
                    self.program.buffers[out.0 as usize].place = BufferPlace::Output(*port as u32);
                }
                (_, _, ports) => {
                    self.plain.insert(value, out);
                    stored.extend(ports.iter().map(|port| (value, *port)));
                }
            }
        }
        self.program.steps.push(step);
        for (value, port) in stored {
            self.store(value, port);
        }
    }

    /// Copies a value to an output.
    fn store(&mut self, value: Operand, port: usize) {
        let x = self.plain_of(value);
        let out = self.buffer(value, ".stored", BufferPlace::Output(port as u32));
        self.program.steps.push(Step::Copy { x, out });
    }

    /// Whether an output becomes rows of the KV cache.
    fn is_cached(&self, port: usize) -> bool {
        let role = self.body.outputs.get(port).map(|port| port.role);
        matches!(role, Some(Role::Key | Role::Value))
    }
}

/// The readers of a value.
struct Readers {
    /// Whether a step reads its elements.
    plain: bool,
    /// Whether a product reads it as operands.
    products: bool,
    /// Output ports that have this value.
    ports: Vec<usize>,
}

impl Readers {
    fn of(body: &KernelBody, value: Operand) -> Self {
        let mut readers = Self {
            plain: false,
            products: false,
            ports: Vec::new(),
        };
        for op in body.ops.iter().filter(|op| op.operands.contains(&value)) {
            match op.op {
                Op::Linear { .. } => readers.products = true,
                _ => readers.plain = true,
            }
        }
        let results = body.results.iter().enumerate();
        let ports = results.filter(|(_, result)| **result == value);
        readers.ports.extend(ports.map(|(port, _)| port));
        readers
    }
}

fn refused(op: &BodyOp, message: &'static str) -> CompileError {
    CompileError::Fusion {
        operator: op.name.clone(),
        message,
    }
}
