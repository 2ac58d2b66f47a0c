//! CPU programs: a kernel's body becomes a flat list of steps over numbered buffers (`heg_artifacts::program`).
//!
//! `joined` finds operators that become one step: linear operators over the same rows, and sums with their products.
//! `steps` walks the body and says for every value in which form it is written, `memory` gives scratch buffers their
//! places.

mod joined;
mod memory;
mod steps;
#[cfg(test)]
mod tests;

use heg_artifacts::manifest::Kernel;
use heg_artifacts::program::Program;

use crate::error::CompileError;
use crate::heg::KernelBody;

/// The program of a body; `kernel` is the body as a manifest describes it.
///
/// # Errors
///
/// [`CompileError::Fusion`] where an operator reads what a program cannot give it,
/// [`CompileError::Artifacts`] where the program would not fit its kernel.
pub(crate) fn lower_program(body: &KernelBody, kernel: &Kernel) -> Result<Program, CompileError> {
    let mut program = steps::program(body)?;
    memory::place(&mut program);
    program.check(kernel)?;
    Ok(program)
}
