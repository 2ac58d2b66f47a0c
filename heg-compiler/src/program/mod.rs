//! CPU programs: compiles a kernel's body to a flat list of steps over numbered buffers (`heg_artifacts::program`).
//!
//! `joined` finds operators that become one step: linear operators over the same rows, and sums with their products.
//! `steps` walks the body and chooses the form in which each value is written, `memory` gives scratch buffers their
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

/// Returns the program of a body; `kernel` is the body's description in the manifest.
///
/// # Errors
///
/// [`CompileError::Fusion`] if an operator reads something that a program cannot provide, [`CompileError::Artifacts`]
/// if the program would not fit its kernel.
pub(crate) fn lower_program(body: &KernelBody, kernel: &Kernel) -> Result<Program, CompileError> {
    let mut program = steps::program(body)?;
    memory::place(&mut program);
    program.check(kernel)?;
    Ok(program)
}
