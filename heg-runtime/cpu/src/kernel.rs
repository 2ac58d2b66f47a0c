//! A prepared program: its steps in phases, and the layout of each buffer.

use std::sync::Arc;

use heg_artifacts::manifest::{ElementType, Kernel as Declared, Parameter, Role};
use heg_artifacts::program::{
    Attention, Buffer, BufferId, BufferPlace, Part, Program, RowForm, Step, StepPhase,
    scratch_width,
};

use crate::cache_form::CacheForm;
use crate::error::CpuError;
use crate::execution::plain_stride;
use crate::partner::PartnerKernel;
use crate::product::{Bits, Rounded, WeightKind};
use heg_spec::{Activations, CutProduct, Group};

/// A kernel that a device can run, shared by all places of the model that use it.
#[derive(Debug)]
pub struct CpuKernel {
    pub(crate) program: Program,
    pub(crate) phases: Vec<StepPhase>,
    /// By phase: the product that a pair may divide; `None` for steps on single rows.
    pub(crate) cut_products: Vec<Option<CutProduct>>,
    /// By buffer.
    pub(crate) layouts: Vec<Layout>,
    /// By input port.
    pub(crate) inputs: Vec<Port>,
    /// By output port.
    pub(crate) outputs: Vec<Port>,
    /// By parameter: element type and shape.
    pub(crate) parameters: Vec<Parameter>,
    /// Elements of the widest row.
    pub(crate) widest: usize,
    /// Elements of scratch memory per row.
    pub(crate) scratch_elements: usize,
    /// Its products on the partner of a pair.
    pub(crate) partner: Option<Arc<dyn PartnerKernel>>,
}

/// A port of a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Port {
    pub(crate) role: Role,
    pub(crate) width: usize,
    pub(crate) form: PortForm,
}

/// Form of a port's rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PortForm {
    /// 32-bit floats.
    Floats,
    /// 64-bit integers.
    Position,
    /// Keys or values.
    Cache(CacheForm),
}

impl Port {
    fn new(port: &heg_artifacts::manifest::Port, kv: CacheForm) -> Self {
        Self {
            role: port.role,
            width: port.width as usize,
            form: match port.role {
                Role::Key | Role::Value => PortForm::Cache(kv),
                Role::Position => PortForm::Position,
                _ => PortForm::Floats,
            },
        }
    }

    pub(crate) const fn row_bytes(self) -> usize {
        match self.form {
            PortForm::Floats => self.width * size_of::<f32>(),
            PortForm::Position => self.width * size_of::<i64>(),
            PortForm::Cache(form) => form.row_bytes(self.width),
        }
    }
}

/// Location and form of a buffer's rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Layout {
    /// Rows of an input port.
    Input(usize),
    /// Rows of an output port.
    Output(usize),
    /// f32 rows in scratch memory, at this element offset for calls of one row.
    Plain(usize),
    /// Rows rounded to integers, in scratch memory likewise.
    Rounded(usize, Rounded),
}

impl CpuKernel {
    /// Prepares a program for products with `activations`, and for keys and values in the form `kv`.
    ///
    /// # Errors
    ///
    /// [`CpuError::Unchecked`] if the program is not valid for the kernel, on which everything that runs it relies.
    /// [`CpuError::Program`] if keys and values have other heads than their form.
    pub fn new(
        program: Program,
        declared: &Declared,
        kv: CacheForm,
        activations: Activations,
    ) -> Result<Self, CpuError> {
        let unsound = |source| CpuError::Unchecked {
            kernel: declared.name.clone(),
            source: Box::new(source),
        };
        program.check(declared).map_err(unsound)?;
        let ports = |ports: &[heg_artifacts::manifest::Port]| -> Vec<Port> {
            ports.iter().map(|port| Port::new(port, kv)).collect()
        };
        check_heads(&program, declared, kv)?;
        let layout = |(index, buffer): (u32, &Buffer)| match buffer.place {
            BufferPlace::Input(port) => Layout::Input(port as usize),
            BufferPlace::Output(port) => Layout::Output(port as usize),
            BufferPlace::Scratch { first } => {
                let is_operand = buffer.form == RowForm::Operand;
                let bits = match activations {
                    Activations::F32 => None,
                    Activations::I8 => Some(Bits::Eight),
                    Activations::I16 => Some(Bits::Sixteen),
                };
                let weight_kind = weight_kind_of(&program, BufferId(index), &declared.parameters);
                match bits.zip(weight_kind.filter(|_| is_operand)) {
                    Some((bits, weight_kind)) => {
                        let width = buffer.width as usize;
                        let form = Rounded {
                            width,
                            bits,
                            weight_kind,
                        };
                        debug_assert!(form.bytes(1) <= size_of::<f32>() * plain_stride(width));
                        Layout::Rounded(first as usize, form)
                    }
                    None => Layout::Plain(first as usize),
                }
            }
        };
        let phases = program.phases();
        Ok(Self {
            layouts: (0..).zip(&program.buffers).map(layout).collect(),
            cut_products: cut_products(&phases, declared.group),
            phases,
            inputs: ports(&declared.inputs),
            outputs: ports(&declared.outputs),
            parameters: declared.parameters.clone(),
            widest: widest(&program),
            scratch_elements: program.scratch_elements() as usize,
            program,
            partner: None,
        })
    }

    /// Has a partner compute parts of its products, in pairs with that partner.
    #[must_use]
    pub fn with_partner(self, partner: Option<Arc<dyn PartnerKernel>>) -> Self {
        Self { partner, ..self }
    }

    /// The attention step, if there is one, and the buffer that it writes.
    pub(crate) fn attention(&self) -> Option<(&Attention, BufferId)> {
        let mut steps = self.program.steps.iter();
        steps.find_map(|step| match step {
            Step::Attention { attributes, out } => Some((attributes, *out)),
            _ => None,
        })
    }

    pub(crate) fn buffer(&self, id: BufferId) -> Option<&Buffer> {
        self.program.buffers.get(id.0 as usize)
    }

    /// Elements per row of a buffer.
    pub(crate) fn width(&self, id: BufferId) -> usize {
        self.buffer(id).map_or(0, |buffer| buffer.width as usize)
    }
}

/// Checks that keys and values of a kernel are the heads that their form has.
fn check_heads(program: &Program, declared: &Declared, kv: CacheForm) -> Result<(), CpuError> {
    let refused = |found: String| CpuError::Program {
        what: format!("heads of keys and values of kernel `{}`", declared.name),
        expected: "those of the model, which have scales of their own",
        found,
    };
    let CacheForm::I8 { head_dim } = kv else {
        return Ok(());
    };
    let mut ports = declared.inputs.iter().chain(&declared.outputs);
    let odd = ports.find(|port| {
        let is_cached = matches!(port.role, Role::Key | Role::Value);
        is_cached && !kv.divides(port.width as usize)
    });
    if let Some(port) = odd {
        return Err(refused(format!("rows of {} elements", port.width)));
    }
    let mut steps = program.steps.iter();
    let other = steps.find_map(|step| match step {
        Step::Attention { attributes, .. } => {
            Some(attributes.head_dim).filter(|of_step| *of_step as usize != head_dim)
        }
        _ => None,
    });
    match other {
        Some(of_step) => Err(refused(format!("attention with heads of {of_step}"))),
        None => Ok(()),
    }
}

/// Element kind of the integer matrices that an operand is multiplied with, if all have the same.
fn weight_kind_of(
    program: &Program,
    operand: BufferId,
    parameters: &[Parameter],
) -> Option<WeightKind> {
    let of_part = |part: &Part| match parameters.get(part.weight.0 as usize)?.element {
        ElementType::I8 => Some(WeightKind::Bytes),
        ElementType::I4 | ElementType::U4 => Some(WeightKind::Nibbles),
        _ => None,
    };
    let parts = program.steps.iter().flat_map(|step| match step {
        Step::Product { x, parts } if *x == operand => parts.as_slice(),
        _ => &[],
    });
    let mut kinds = parts.map(of_part);
    let first = kinds.next()??;
    kinds.all(|kind| kind == Some(first)).then_some(first)
}

/// The product that each phase is to a partition. The last kernel of a layer begins with the output projection and ends
/// with the down projection, in all families.
fn cut_products(phases: &[StepPhase], group: Group) -> Vec<Option<CutProduct>> {
    let is_product = |phase: &StepPhase| matches!(phase, StepPhase::Product(_));
    let first = phases.iter().position(is_product);
    let last = phases.iter().rposition(is_product);
    let of_phase = |(number, phase): (usize, &StepPhase)| match (phase, group) {
        (StepPhase::Rows(_), _) => None,
        (StepPhase::Attention(_), _) | (_, Group::Mha) => Some(CutProduct::Attention),
        (_, Group::Qkv) => Some(CutProduct::Qkv),
        (_, Group::Head) => Some(CutProduct::Head),
        (_, Group::Ffn) if first == Some(number) => Some(CutProduct::Out),
        (_, Group::Ffn) if last == Some(number) => Some(CutProduct::Down),
        (_, Group::Ffn) => Some(CutProduct::GateUp),
    };
    phases.iter().enumerate().map(of_phase).collect()
}

fn widest(program: &Program) -> usize {
    let widths = program.buffers.iter().map(|buffer| buffer.width);
    scratch_width(widths.max().unwrap_or(0)) as usize
}
