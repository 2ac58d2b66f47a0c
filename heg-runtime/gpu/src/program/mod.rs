//! Programs on a device: made ready once for a kernel, and written down as dispatches for each call.

mod area;
mod call;
mod check;
mod product;
mod steps;
mod tiling;

use heg_artifacts::manifest::{ElementType, Kernel as Declared, Parameter, Port, Role};
use heg_artifacts::program::{BufferId, BufferPlace, Program, Step};
use heg_spec::Activations;
use heg_spirv::{Shapes, is_cache};

pub use area::{GpuArea, GpuProduct};
pub use call::{GpuCall, GpuRows, GpuWeight};
pub(crate) use steps::row_pieces;
pub use tiling::row_counts;

use crate::device::GpuDevice;
use crate::error::GpuError;
use crate::vulkan::Dispatch;

/// A kernel's program that a device can run, the same at all places that use it.
#[derive(Debug)]
pub struct GpuProgram {
    name: String,
    program: Program,
    shapes: Shapes,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    parameters: Vec<Parameter>,
    kv: ElementType,
}

impl GpuProgram {
    /// Makes a program ready for products with such activations, for keys and values of type `kv`.
    ///
    /// # Errors
    ///
    /// [`GpuError::Unchecked`] where the program is not sound for the kernel, and [`GpuError::Program`] where it has what
    /// no module computes.
    pub fn new(
        program: Program,
        declared: &Declared,
        kv: ElementType,
        activations: Activations,
    ) -> Result<Self, GpuError> {
        program
            .check(declared)
            .map_err(|source| GpuError::Unchecked {
                kernel: declared.name.clone(),
                source: Box::new(source),
            })?;
        let ready = Self {
            name: declared.name.clone(),
            shapes: Shapes::new(&program, declared, kv, activations),
            inputs: declared.inputs.clone(),
            outputs: declared.outputs.clone(),
            parameters: declared.parameters.clone(),
            kv,
            program,
        };
        ready.check_supported()?;
        Ok(ready)
    }

    /// The f32 elements of scratch memory that each row of a call takes.
    pub fn scratch_elements(&self) -> u32 {
        self.program.scratch_elements()
    }

    /// A call's dispatches, after all that they read and write was checked.
    pub(crate) fn dispatches(
        &self,
        device: &GpuDevice,
        call: &GpuCall<'_>,
    ) -> Result<Vec<Dispatch>, GpuError> {
        self.check(call)?;
        let writer = steps::Writer {
            program: self,
            device,
            call,
            window: None,
        };
        let mut all = Vec::new();
        // Buffers that were written since the device last waited, within one phase: later phases write where it read.
        let (mut phase, mut written) = (None, Vec::new());
        let phases = self.program.phase_of_steps();
        let steps = self.program.steps.iter().zip(self.shapes.steps());
        for ((step, shapes), of_step) in steps.zip(phases) {
            let reads = step.reads();
            let waits = phase != Some(of_step) || reads.iter().any(|id| written.contains(id));
            if waits {
                written.clear();
            }
            phase = Some(of_step);
            written.extend(step.writes());
            // Parts of one product read what was written before, and write apart from each other.
            let starts = std::iter::once(waits).chain(std::iter::repeat(false));
            let dispatches = writer.step(step, shapes)?.into_iter().zip(starts);
            all.extend(dispatches.map(|(dispatch, waits)| Dispatch { waits, ..dispatch }));
        }
        Ok(all)
    }

    fn width(&self, id: BufferId) -> u32 {
        let buffer = self.program.buffers.get(id.0 as usize);
        buffer.map_or(0, |buffer| buffer.width)
    }

    /// Fails where a program is sound, but has what no module computes.
    fn check_supported(&self) -> Result<(), GpuError> {
        let refuse = |what: &str, found: String, expected: &str| {
            Err(GpuError::Program {
                kernel: self.name.clone(),
                what: what.to_owned(),
                expected: expected.to_owned(),
                found,
            })
        };
        let kinds = [ElementType::F32, ElementType::Bf16, ElementType::F16];
        if !kinds.contains(&self.kv) {
            let found = format!("{:?}", self.kv);
            return refuse(
                "the element type of keys and values",
                found,
                "f32, bf16 or f16",
            );
        }
        let kv_ports = self.inputs.iter().chain(&self.outputs);
        let mut kv_ports = kv_ports.filter(|port| is_cache(port.role));
        let odd = kv_ports.find(|port| self.kv != ElementType::F32 && port.width % 2 == 1);
        if let Some(port) = odd {
            let found = format!("{} elements", port.width);
            return refuse("a row of the cache", found, "an even number of elements");
        }
        for step in &self.program.steps {
            // Attention names none of its ports; all other modules but those that write rows of caches take addresses.
            let mut reads = step.reads().into_iter();
            let mut writes = step.writes().into_iter();
            if reads.any(|id| self.is_cached(id))
                || (!step.gives_cache_rows() && writes.any(|id| self.is_cached(id)))
            {
                let found = "keys or values".to_owned();
                return refuse("a step", found, "rows of floats");
            }
            if let Some((what, found, expected)) = unsupported(step) {
                return refuse(what, found, &expected);
            }
        }
        let widths = self.program.buffers.iter().zip(self.shapes.are_integers());
        for (buffer, is_integers) in widths {
            if is_integers && buffer.width > OPERAND_MAX {
                let found = format!("{} columns", buffer.width);
                return refuse(
                    "an operand",
                    found,
                    &format!("at most {OPERAND_MAX} columns"),
                );
            }
            let place = buffer.place;
            if matches!(place, BufferPlace::Output(port) if self.output_role(port) == Some(Role::Position))
            {
                return refuse("an output", "positions".to_owned(), "rows of floats");
            }
        }
        Ok(())
    }

    fn output_role(&self, port: u32) -> Option<Role> {
        Some(self.outputs.get(port as usize)?.role)
    }

    /// The port that a buffer is.
    fn port_of(&self, place: BufferPlace) -> Option<&Port> {
        match place {
            BufferPlace::Input(port) => self.inputs.get(port as usize),
            BufferPlace::Output(port) => self.outputs.get(port as usize),
            BufferPlace::Scratch { .. } => None,
        }
    }

    /// Whether a buffer's rows are integers that share scales.
    fn is_integers(&self, id: BufferId) -> bool {
        let mut all = self.shapes.are_integers();
        all.nth(id.0 as usize).unwrap_or(false)
    }

    /// Whether a buffer is keys or values of the cache.
    fn is_cached(&self, id: BufferId) -> bool {
        let buffer = self.program.buffers.get(id.0 as usize);
        let port = buffer.and_then(|buffer| self.port_of(buffer.place));
        port.is_some_and(|port| is_cache(port.role))
    }
}

/// The part of a step that no module computes, what was found there and what is computed.
fn unsupported(step: &Step) -> Option<(&'static str, String, String)> {
    match step {
        Step::RmsNorm { groups, .. } if *groups > GROUPS_MAX => {
            let found = format!("{groups} parts");
            Some(("a norm", found, format!("at most {GROUPS_MAX} parts")))
        }
        Step::Attention { attributes, .. } if attributes.head_dim > HEAD_MAX => {
            let found = format!("{} elements", attributes.head_dim);
            Some(("a head", found, format!("at most {HEAD_MAX} elements")))
        }
        Step::Attention { attributes, .. } if !attributes.sight.is_causal() => {
            let found = "over the whole text".to_owned();
            let expected = "one over tokens before each token".to_owned();
            Some(("an attention", found, expected))
        }
        Step::Activated { activation, .. } => {
            let found = format!("{activation:?} alone");
            Some(("an activation", found, "one that gates".to_owned()))
        }
        _ => None,
    }
}

/// Parts of a norm whose factors fit in the shared memory that every device has (16 KiB, with the rest of the module).
const GROUPS_MAX: u32 = 1024;

/// Elements of a head, likewise.
const HEAD_MAX: u32 = 1024;

/// Columns of an operand, whose groups' sums pass through shared memory likewise.
const OPERAND_MAX: u32 = 65536;
