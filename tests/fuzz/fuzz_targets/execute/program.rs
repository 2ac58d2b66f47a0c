//! Programs built from choices; most of them pass the check.

use heg_artifacts::manifest::{ElementType, Kernel, Parameter, Port, Role, Rows, Work};
use heg_artifacts::program::{
    Activation, Attention, Buffer, BufferId, BufferPlace, ParameterId, Part, Program, Residual,
    RowForm, Step, scratch_width,
};
use heg_spec::{Group, GroupColumns, Sight};

use super::choices::Choices;

/// A kernel, and a program for it.
pub(crate) struct Made {
    pub(crate) declared: Kernel,
    pub(crate) program: Program,
}

const WEIGHTS: [ElementType; 6] = [
    ElementType::I8,
    ElementType::I4,
    ElementType::U4,
    ElementType::F32,
    ElementType::F16,
    ElementType::Bf16,
];

const ODD_WIDTHS: [u32; 13] = [15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 257];

fn width(choices: &mut Choices<'_>) -> u32 {
    match choices.below(4) {
        0 => 1 + choices.below(9) as u32,
        1 => 32 * (1 + choices.below(6) as u32),
        2 => choices.one(&ODD_WIDTHS),
        _ => 1 + choices.below(300) as u32,
    }
}

fn port(role: Role, rows: Rows, width: u32) -> Port {
    Port { role, rows, width }
}

impl Made {
    pub(crate) fn new(choices: &mut Choices<'_>) -> Self {
        let mut maker = Maker::new(choices);
        let attends = maker.choices.below(3) == 0;
        let attention = attends.then(|| maker.add_attended_ports());
        let count = 2 + maker.choices.below(9);
        let attend_at = maker.choices.below(count);
        for at in 0..count {
            if let Some(attributes) = attention
                && at == attend_at
            {
                let out = maker.scratch(attributes.heads * attributes.head_dim, RowForm::Plain);
                maker.steps.push(Step::Attention { attributes, out });
            }
            maker.add_step();
        }
        for role in [Role::Logits, Role::Key, Role::Query] {
            maker.add_output(role);
        }
        maker.made()
    }
}

struct Maker<'a, 'b> {
    choices: &'a mut Choices<'b>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    buffers: Vec<Buffer>,
    steps: Vec<Step>,
    parameters: Vec<Parameter>,
    /// Number of elements of scratch memory so far.
    scratch_elements: u32,
    /// Written buffers of plain rows and of operands.
    readable: Vec<BufferId>,
    operands: Vec<BufferId>,
    /// Element type of most weights.
    weights: ElementType,
    /// Number of pairs of dimensions that can be rotated.
    rotary: Option<u32>,
}

impl<'a, 'b> Maker<'a, 'b> {
    fn new(choices: &'a mut Choices<'b>) -> Self {
        let weights = choices.one(&WEIGHTS);
        let rotary = (choices.below(2) == 0).then(|| 1 + choices.below(20) as u32);
        let mut maker = Self {
            choices,
            inputs: Vec::new(),
            outputs: Vec::new(),
            buffers: Vec::new(),
            steps: Vec::new(),
            parameters: Vec::new(),
            scratch_elements: 0,
            readable: Vec::new(),
            operands: Vec::new(),
            weights,
            rotary,
        };
        for role in [Role::Hidden, Role::Attended] {
            let width = width(maker.choices);
            maker.add_input(role, width);
        }
        for role in [Role::Cos, Role::Sin] {
            let half = rotary.map(|half| port(role, Rows::Tokens, half));
            maker.inputs.extend(half);
        }
        maker
    }

    /// Finishes the program, with memory reused wherever the check allows it.
    fn made(self) -> Made {
        let mut program = Program {
            buffers: self.buffers,
            steps: self.steps,
        };
        let declared = Kernel {
            name: "k".to_owned(),
            group: Group::Ffn,
            ops: Vec::new(),
            inputs: self.inputs,
            outputs: self.outputs,
            parameters: self.parameters,
            work: Work::default(),
            variants: Vec::new(),
        };
        for _ in 0..20 {
            let at = self.choices.below(program.buffers.len());
            let old = program.buffers[at].place;
            let BufferPlace::Scratch { first } = old else {
                continue;
            };
            let first = 64 * self.choices.below(first as usize / 64 + 1) as u32;
            program.buffers[at].place = BufferPlace::Scratch { first };
            if program.check(&declared).is_err() {
                program.buffers[at].place = old;
            }
        }
        Made { declared, program }
    }

    fn add_input(&mut self, role: Role, width: u32) {
        let index = self.inputs.len() as u32;
        self.inputs.push(port(role, Rows::Tokens, width));
        let id = self.put(width, RowForm::Plain, BufferPlace::Input(index));
        self.readable.push(id);
    }

    fn add_attended_ports(&mut self) -> Attention {
        let kv_heads = 1 + self.choices.below(4) as u32;
        let heads = kv_heads * (1 + self.choices.below(5) as u32);
        let head_dim = match self.choices.below(3) {
            0 => 1 + self.choices.below(20) as u32,
            1 => self.choices.one(&[16, 32, 48, 64, 80, 96, 128]),
            _ => 1 + self.choices.below(140) as u32,
        };
        self.add_input(Role::Query, heads * head_dim);
        for role in [Role::Key, Role::Value] {
            self.inputs
                .push(port(role, Rows::Context, kv_heads * head_dim));
        }
        self.inputs.push(port(Role::Position, Rows::One, 1));
        let sight = match self.choices.below(4) {
            0 => Sight::Whole,
            _ => Sight::Causal,
        };
        let window = sight.is_causal() && self.choices.below(2) == 0;
        Attention {
            heads,
            kv_heads,
            head_dim,
            scale: 0.2,
            window: window.then(|| 1 + self.choices.below(50) as u32),
            softcap: (self.choices.below(2) == 0).then_some(20.0),
            sight,
        }
    }

    fn put(&mut self, width: u32, form: RowForm, place: BufferPlace) -> BufferId {
        self.buffers.push(Buffer {
            name: format!("b{}", self.buffers.len()),
            width,
            form,
            place,
        });
        BufferId(self.buffers.len() as u32 - 1)
    }

    fn scratch(&mut self, width: u32, form: RowForm) -> BufferId {
        let first = self.scratch_elements;
        self.scratch_elements += scratch_width(width);
        let id = self.put(width, form, BufferPlace::Scratch { first });
        match form {
            RowForm::Plain => self.readable.push(id),
            RowForm::Operand => self.operands.push(id),
        }
        id
    }

    fn out(&mut self, width: u32) -> BufferId {
        let form = match self.choices.below(2) {
            0 => RowForm::Operand,
            _ => RowForm::Plain,
        };
        self.scratch(width, form)
    }

    fn width_of(&self, id: BufferId) -> u32 {
        self.buffers[id.0 as usize].width
    }

    fn parameter(&mut self, element: ElementType, shape: Vec<u32>) -> ParameterId {
        let columns = shape.last().copied().unwrap_or_default();
        let groups = GroupColumns::ALL.into_iter();
        let groups: Vec<_> = groups
            .filter(|it| columns.is_multiple_of(it.count()))
            .collect();
        let is_grouped = element.is_grouped() && !groups.is_empty();
        let element = match element.is_grouped() && !is_grouped {
            true => ElementType::I8,
            false => element,
        };
        self.parameters.push(Parameter {
            name: format!("p{}", self.parameters.len()),
            element,
            shape,
            group_columns: is_grouped.then(|| self.choices.one(&groups)),
            centred: match element {
                ElementType::I8 => self.choices.below(2) == 0,
                element => element == ElementType::U4,
            },
        });
        ParameterId(self.parameters.len() as u32 - 1)
    }

    fn vector(&mut self, width: u32) -> ParameterId {
        self.parameter(ElementType::F32, vec![width])
    }

    fn add_step(&mut self) {
        let x = self.choices.one(&self.readable);
        let width = self.width_of(x);
        let step = match self.choices.below(13) {
            0 => self.rms_norm(x, width),
            1 => Step::LayerNorm {
                x,
                weight: self.vector(width),
                bias: (self.choices.below(2) == 0).then(|| self.vector(width)),
                eps: 1e-5,
                out: self.out(width),
            },
            2 | 3 => Step::Copy {
                x,
                out: self.scratch(width, RowForm::Operand),
            },
            4 => match self.rope(x, width) {
                Some(step) => step,
                None => return,
            },
            5 => Step::Gated {
                gate: x,
                up: self.as_wide(width),
                activation: self.choices.one(&ACTIVATIONS),
                out: self.out(width),
            },
            9 => Step::Activated {
                x,
                activation: self.choices.one(&ACTIVATIONS),
                out: self.out(width),
            },
            6 => Step::Add {
                a: x,
                b: self.as_wide(width),
                b_scale: 0.5,
                out: self.scratch(width, RowForm::Plain),
            },
            7 => Step::Scale {
                x,
                factor: 0.7,
                out: self.scratch(width, RowForm::Plain),
            },
            8 => Step::SoftCap {
                x,
                cap: 30.0,
                out: self.scratch(width, RowForm::Plain),
            },
            _ if self.operands.is_empty() => return,
            _ => self.product(),
        };
        self.steps.push(step);
    }

    fn rms_norm(&mut self, x: BufferId, width: u32) -> Step {
        let divisors: Vec<u32> = (1..=width).filter(|it| width.is_multiple_of(*it)).collect();
        let groups = self.choices.one(&divisors);
        Step::RmsNorm {
            x,
            weight: self.vector(width / groups),
            eps: 1e-6,
            offset: 1.0,
            groups,
            out: self.out(width),
        }
    }

    fn rope(&mut self, x: BufferId, width: u32) -> Option<Step> {
        let rotated = self.rotary? * 2;
        let fits = |heads: &u32| width.is_multiple_of(*heads) && width / heads >= rotated;
        let heads: Vec<u32> = (1..=width).filter(fits).collect();
        (!heads.is_empty()).then(|| Step::Rope {
            x,
            heads: self.choices.one(&heads),
            rotated,
            out: self.scratch(width, RowForm::Plain),
        })
    }

    fn product(&mut self) -> Step {
        let x = self.choices.one(&self.operands);
        let columns = self.width_of(x);
        // The product's own output is no term of it.
        let written = self.readable.clone();
        let count = 1 + self.choices.below(3);
        let parts = (0..count).map(|_| {
            let term = (self.choices.below(2) == 0).then(|| self.choices.one(&written));
            let rows = match term {
                Some(to) => self.width_of(to),
                None => width(self.choices),
            };
            let element = match self.choices.below(8) {
                0 => self.choices.one(&WEIGHTS),
                _ => self.weights,
            };
            Part {
                weight: self.parameter(element, vec![rows, columns]),
                bias: (self.choices.below(3) == 0).then(|| self.vector(rows)),
                residual: term.map(|to| Residual { to, factor: 0.3 }),
                out: self.scratch(rows, RowForm::Plain),
            }
        });
        let parts = parts.collect();
        Step::Product { x, parts }
    }

    /// Returns a buffer of the same width.
    fn as_wide(&mut self, width: u32) -> BufferId {
        let all = self.readable.iter().copied();
        let all: Vec<_> = all.filter(|id| self.width_of(*id) == width).collect();
        self.choices.one(&all)
    }

    /// Adds an output: a product for the logits, else a copy, which may be rows of the cache too.
    fn add_output(&mut self, role: Role) {
        let index = self.outputs.len() as u32;
        let place = BufferPlace::Output(index);
        if role == Role::Logits && !self.operands.is_empty() {
            let x = self.choices.one(&self.operands);
            let rows = width(self.choices);
            let columns = self.width_of(x);
            let weight = self.parameter(self.weights, vec![rows, columns]);
            self.outputs.push(port(role, Rows::Tokens, rows));
            let part = Part {
                weight,
                bias: None,
                residual: None,
                out: self.put(rows, RowForm::Plain, place),
            };
            let parts = vec![part];
            self.steps.push(Step::Product { x, parts });
            return;
        }
        let x = self.choices.one(&self.readable);
        let width = self.width_of(x);
        self.outputs.push(port(role, Rows::Tokens, width));
        let out = self.put(width, RowForm::Plain, place);
        self.steps.push(Step::Copy { x, out });
    }
}

/// All activations.
const ACTIVATIONS: [Activation; 3] = [Activation::Silu, Activation::Gelu, Activation::GeluTanh];
