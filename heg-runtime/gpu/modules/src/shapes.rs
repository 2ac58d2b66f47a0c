//! The shapes in which a program's steps need modules: constants that follow from widths, element types and forms.
//!
//! Both sides use this: the compiler to say what a bundle needs, the GPU role to specialise what it runs.

use heg_artifacts::manifest::{ElementType, Kernel, Parameter, Port, Role};
use heg_artifacts::program::{Activation, Buffer, BufferId, BufferPlace, Part, Program, Step};
use heg_spec::Activations;

use crate::form::{Form, form_of, row_form};
use crate::module::{Module, constant};

/// A module with the constants that a step needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepShape {
    /// The module, or the first of its [`alternatives`](Module::alternatives).
    pub module: Module,
    /// Values of specialisation constants, by number.
    pub constants: Vec<(u32, u32)>,
}

/// The shapes of a program.
#[derive(Debug)]
pub struct Shapes {
    /// By buffer.
    forms: Vec<Form>,
    /// By step: one for each part of a product, and one for any other step.
    steps: Vec<Vec<StepShape>>,
}

/// Operations of `shaders/elementwise.comp`.
mod operation {
    pub(super) const COPY: u32 = 0;
    pub(super) const SCALE: u32 = 1;
    pub(super) const ADD: u32 = 2;
    pub(super) const SOFT_CAP: u32 = 3;
    pub(super) const SILU: u32 = 4;
    pub(super) const GELU: u32 = 5;
    pub(super) const GELU_TANH: u32 = 6;
}

/// Numbers of element types in the modules.
pub const fn element_number(element: ElementType) -> u32 {
    match element {
        ElementType::F32 | ElementType::I64 => 0,
        ElementType::Bf16 => 1,
        ElementType::F16 => 2,
        ElementType::I8 => 3,
        ElementType::I4 => 4,
        ElementType::U4 => 5,
    }
}

/// Whether a port's rows are keys or values.
pub const fn is_cache(role: Role) -> bool {
    matches!(role, Role::Key | Role::Value)
}

/// The operation of a gate with an activation.
const fn gated(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => operation::SILU,
        Activation::Gelu => operation::GELU,
        Activation::GeluTanh => operation::GELU_TANH,
    }
}

impl Shapes {
    /// Derives the shapes of a kernel's checked program, for keys and values of type `kv`.
    pub fn new(
        program: &Program,
        kernel: &Kernel,
        kv: ElementType,
        activations: Activations,
    ) -> Self {
        let ids = (0..).map(BufferId).zip(&program.buffers);
        let form = |(id, buffer)| form_of(program, id, buffer, &kernel.parameters, activations);
        let forms: Vec<Form> = ids.map(form).collect();
        let shaper = Shaper {
            buffers: &program.buffers,
            forms: &forms,
            outputs: &kernel.outputs,
            parameters: &kernel.parameters,
            kv,
        };
        let steps = program.steps.iter().map(|step| shaper.step(step)).collect();
        Self { forms, steps }
    }

    /// For each of the program's buffers, whether its rows are integers that share scales.
    pub fn are_integers(&self) -> impl Iterator<Item = bool> {
        let forms = self.forms.iter();
        forms.map(|form| matches!(form, Form::Operand(_)))
    }

    /// The shapes of each step, in order: one for each part of a product, and one for any other step.
    pub fn steps(&self) -> &[Vec<StepShape>] {
        &self.steps
    }
}

/// The facts that decide the shapes of steps.
struct Shaper<'a> {
    buffers: &'a [Buffer],
    forms: &'a [Form],
    outputs: &'a [Port],
    parameters: &'a [Parameter],
    kv: ElementType,
}

impl Shaper<'_> {
    fn step(&self, step: &Step) -> Vec<StepShape> {
        let one = match step {
            Step::Product { x, parts } => {
                return parts.iter().map(|part| self.product(*x, part)).collect();
            }
            Step::RmsNorm { x, groups, out, .. } => {
                self.rows(Module::RmsNorm, *x, *out, &[(constant::GROUPS, *groups)])
            }
            Step::LayerNorm { x, out, .. } => self.rows(Module::LayerNorm, *x, *out, &[]),
            Step::Copy { x, out } => self.elementwise(operation::COPY, *x, *out),
            Step::Scale { x, out, .. } => self.elementwise(operation::SCALE, *x, *out),
            Step::SoftCap { x, out, .. } => self.elementwise(operation::SOFT_CAP, *x, *out),
            Step::Add { a, out, .. } => self.elementwise(operation::ADD, *a, *out),
            // No module computes an activation alone: `GpuProgram` refuses it.
            Step::Activated { x, activation, out } => {
                self.elementwise(gated(*activation), *x, *out)
            }
            Step::Gated {
                gate,
                activation,
                out,
                ..
            } => self.elementwise(gated(*activation), *gate, *out),
            Step::Rope {
                x,
                heads,
                rotated,
                out,
            } => {
                let head = self.width(*x).checked_div(*heads).unwrap_or(0);
                let own = [(constant::HEAD, head), (constant::ROTATED, *rotated)];
                self.rows(Module::Rope, *x, *out, &own)
            }
            Step::Attention { attributes, .. } => StepShape {
                module: Module::Attention,
                constants: vec![
                    (constant::HEAD, attributes.head_dim),
                    (constant::ELEMENT, element_number(self.kv)),
                ],
            },
        };
        vec![one]
    }

    /// A product of rows with one matrix; how many rows an invocation multiplies is a call's choice.
    fn product(&self, x: BufferId, part: &Part) -> StepShape {
        let parameter = self.parameters.get(part.weight.0 as usize);
        let element = parameter.map_or(ElementType::F32, |parameter| parameter.element);
        let mut constants = vec![
            (constant::WIDTH, self.width(x)),
            (constant::ELEMENT, element_number(element)),
        ];
        if let Some(columns) = parameter.and_then(|parameter| parameter.group_columns) {
            constants.push((constant::COLUMNS, columns.count()));
        }
        let module = match self.form(x) {
            Form::Operand(operand) => {
                constants.push((constant::DIGITS, operand.digits));
                Module::Product
            }
            Form::Plain => Module::FloatProduct,
        };
        StepShape { module, constants }
    }

    fn elementwise(&self, operation: u32, x: BufferId, out: BufferId) -> StepShape {
        let own = [(constant::OPERATION, operation)];
        self.rows(Module::Elementwise, x, out, &own)
    }

    /// A step on single rows.
    fn rows(&self, module: Module, x: BufferId, out: BufferId, own: &[(u32, u32)]) -> StepShape {
        let mut constants = vec![
            (constant::WIDTH, self.width(x)),
            (constant::FORM, self.row_form(out)),
        ];
        if let Form::Operand(operand) = self.form(out) {
            constants.push((constant::DIGITS, operand.digits));
            constants.push((constant::NIBBLES, u32::from(operand.nibbles)));
        }
        constants.extend_from_slice(own);
        StepShape { module, constants }
    }

    fn row_form(&self, out: BufferId) -> u32 {
        if let Form::Operand(_) = self.form(out) {
            return row_form::OPERAND;
        }
        let buffer = self.buffers.get(out.0 as usize);
        let role = buffer.and_then(|buffer| match buffer.place {
            BufferPlace::Output(port) => Some(self.outputs.get(port as usize)?.role),
            BufferPlace::Input(_) | BufferPlace::Scratch { .. } => None,
        });
        match (role.is_some_and(is_cache), self.kv) {
            (false, _) => row_form::PLAIN,
            (true, ElementType::Bf16) => row_form::CACHE_BF16,
            (true, ElementType::F16) => row_form::CACHE_F16,
            (true, _) => row_form::CACHE_F32,
        }
    }

    fn width(&self, id: BufferId) -> u32 {
        let buffer = self.buffers.get(id.0 as usize);
        buffer.map_or(0, |buffer| buffer.width)
    }

    fn form(&self, id: BufferId) -> Form {
        let form = self.forms.get(id.0 as usize);
        form.copied().unwrap_or(Form::Plain)
    }
}
