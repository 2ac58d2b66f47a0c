//! Forms of buffers: what their rows are made of on the device.

use heg_artifacts::manifest::{ElementType, Parameter};
use heg_artifacts::program::{Buffer, BufferId, Program, RowForm, Step};
use heg_spec::Activations;

/// The form of a buffer's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// f32; at a port of keys or values, elements of the cache.
    Plain,
    /// Integers, in groups of columns that share a scale.
    Operand(Operand),
}

/// Integers of an operand, as `shaders/include/rows.glsl` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operand {
    /// Digits of each: one for 8 bits, two for 16.
    pub(crate) digits: u32,
    /// Whether it meets weights of half a byte.
    pub(crate) nibbles: bool,
}

/// Numbers of forms in the modules.
pub(crate) mod row_form {
    /// f32.
    pub(crate) const PLAIN: u32 = 0;
    /// Integers with scales.
    pub(crate) const OPERAND: u32 = 1;
    /// Rows of the cache in bf16.
    pub(crate) const CACHE_BF16: u32 = 2;
    /// Rows of the cache in f32.
    pub(crate) const CACHE_F32: u32 = 3;
    /// Rows of the cache in f16.
    pub(crate) const CACHE_F16: u32 = 4;
}

/// The form of a buffer: an operand is rounded where both its weights and the activations are integers, as on the CPU.
pub(crate) fn form_of(
    program: &Program,
    id: BufferId,
    buffer: &Buffer,
    parameters: &[Parameter],
    activations: Activations,
) -> Form {
    let digits = match activations {
        Activations::F32 => None,
        Activations::I8 => Some(1),
        Activations::I16 => Some(2),
    };
    let digits = digits.filter(|_| buffer.form == RowForm::Operand);
    let nibbles = nibbles_met(program, id, parameters);
    match digits.zip(nibbles) {
        Some((digits, nibbles)) => Form::Operand(Operand { digits, nibbles }),
        None => Form::Plain,
    }
}

/// Whether the matrices that an operand meets are of half bytes; `None` unless all are integers of one kind.
fn nibbles_met(program: &Program, operand: BufferId, parameters: &[Parameter]) -> Option<bool> {
    let parts = program.steps.iter().flat_map(|step| match step {
        Step::Product { x, parts } if *x == operand => parts.as_slice(),
        _ => &[],
    });
    let mut kinds = parts.map(
        |part| match parameters.get(part.weight.0 as usize)?.element {
            ElementType::I8 => Some(false),
            ElementType::I4 | ElementType::U4 => Some(true),
            _ => None,
        },
    );
    let first = kinds.next()??;
    kinds.all(|kind| kind == Some(first)).then_some(first)
}
