//! Areas of a product that the device computes for somebody who computes the rest, over memory that both work on: a pair
//! of HeteroLLM (§4.1).
//!
//! Rows that are multiplied as integers have another form on each side, so the device rounds them itself, from the rows
//! that both see.

use std::ops::Range;

use heg_artifacts::program::{BufferId, BufferPlace, Part, Step, scratch_width};
use heg_spirv::StepShape;

use super::product::OUTPUT_STEP;
use super::steps::{Window, Writer};
use super::{GpuCall, GpuProgram, GpuRows, GpuWeight};
use crate::device::GpuDevice;
use crate::error::GpuError;
use crate::region::GpuRegion;
use crate::state::CallState;
use crate::vulkan::Dispatch;

/// A product of a call, and the areas of it that the device computes.
#[derive(Clone, Copy)]
pub struct GpuProduct<'a> {
    /// Index of the product among the program's steps.
    pub step: usize,
    /// Rows of the whole call.
    pub rows: u32,
    /// One for each parameter of the kernel.
    pub weights: &'a [GpuWeight],
    /// Rows of each input port; none of ports that the product does not read.
    pub inputs: &'a [Option<GpuRows>],
    /// Rows of each output port, likewise.
    pub outputs: &'a [Option<GpuRows>],
    /// Scratch memory that both work on, laid out as the program says for all rows of the call.
    pub scratch: &'a GpuRegion,
    /// Memory of the device for operands: as many bytes as [`GpuProgram::operand_bytes`] says.
    pub operands: &'a GpuRegion,
    /// Any state: products read none.
    pub state: &'a CallState,
    /// Areas that do not overlap, those over the same rows one after the other.
    pub areas: &'a [GpuArea],
}

/// Outputs of one of a product's matrices, for some rows of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GpuArea {
    /// Number of the matrix in the product.
    pub part: usize,
    /// From a multiple of [`OUTPUT_STEP`](GpuProduct::OUTPUT_STEP) on.
    pub outputs: Range<u32>,
    /// Rows of the call.
    pub rows: Range<u32>,
}

impl GpuProduct<'_> {
    /// Outputs at whose multiples areas begin.
    pub const OUTPUT_STEP: u32 = OUTPUT_STEP;
}

/// The steps that an area needs.
struct AreaSteps<'p> {
    x: BufferId,
    parts: &'p [Part],
    shapes: &'p [StepShape],
    /// The step that rounds the operand; `None` if rows are multiplied as they are.
    rounding: Option<(&'p Step, &'p [StepShape])>,
}

impl GpuProgram {
    /// Whether the device can compute areas of a step while another computes the rest: a product whose operand it can
    /// round from rows that are still there, and whose results go to memory of their own.
    pub fn has_areas(&self, step: usize) -> bool {
        self.area_steps(step).is_some()
    }

    /// Buffers of rows that both see, which areas of a product read and write; empty if it has no areas.
    fn shared_buffers(&self, step: usize) -> Vec<BufferId> {
        let Some(steps) = self.area_steps(step) else {
            return Vec::new();
        };
        let read = match steps.rounding {
            Some((rounding, _)) => rounding.reads(),
            None => vec![steps.x],
        };
        let parts = steps.parts.iter().flat_map(|part| {
            let to = part.residual.map(|residual| residual.to);
            std::iter::once(part.out).chain(to)
        });
        read.into_iter().chain(parts).collect()
    }

    /// Whether areas of a product need the rows of an input port (`false`: an output port).
    pub fn needs_port(&self, step: usize, is_input: bool, port: usize) -> bool {
        let mut shared = self.shared_buffers(step).into_iter();
        shared.any(|id| {
            let buffer = self.program.buffers.get(id.0 as usize);
            match buffer.map(|buffer| buffer.place) {
                Some(BufferPlace::Input(at)) => is_input && at as usize == port,
                Some(BufferPlace::Output(at)) => !is_input && at as usize == port,
                Some(BufferPlace::Scratch { .. }) | None => false,
            }
        })
    }

    /// Bytes of memory for the operands of a call of `rows` rows.
    pub fn operand_bytes(&self, rows: u32) -> u64 {
        let widths = self.program.buffers.iter().map(|buffer| buffer.width);
        let widest = scratch_width(widths.max().unwrap_or(0));
        // Of both areas of an L.
        2 * 4 * u64::from(widest) * u64::from(rows.max(1))
    }

    fn area_steps(&self, step: usize) -> Option<AreaSteps<'_>> {
        let steps = &self.program.steps;
        let shapes = |index: usize| self.shapes.steps().get(index).map(Vec::as_slice);
        let Some(Step::Product { x, parts }) = steps.get(step) else {
            return None;
        };
        let is_whole = parts.iter().all(|part| {
            let own = part
                .residual
                .is_none_or(|to| !self.overlap(to.to, part.out));
            own && !self.is_cached(part.out)
        });
        if !is_whole {
            return None;
        }
        let (rounding, kept) = match self.is_integers(*x) {
            true => {
                let before = steps.get(..step)?;
                let writes = |of: &Step| of.writes().contains(x);
                let index = before.iter().rposition(writes)?;
                let rounding = steps.get(index).filter(|of| is_on_rows(of))?;
                (Some((index, rounding)), index + 1)
            }
            false => (None, step),
        };
        let read = rounding.map_or_else(|| vec![*x], |(_, rounding)| rounding.reads());
        let mut written = steps.get(kept..=step)?.iter().flat_map(Step::writes);
        if written.any(|to| read.iter().any(|from| self.overlap(*from, to))) {
            return None;
        }
        let rounding = match rounding {
            Some((index, rounding)) => Some((rounding, shapes(index)?)),
            None => None,
        };
        Some(AreaSteps {
            x: *x,
            parts,
            shapes: shapes(step)?,
            rounding,
        })
    }

    /// Whether two buffers have memory in common.
    fn overlap(&self, one: BufferId, other: BufferId) -> bool {
        let buffer = |id: BufferId| self.program.buffers.get(id.0 as usize);
        let (Some(own), Some(others)) = (buffer(one), buffer(other)) else {
            return true;
        };
        match (own.place, others.place) {
            (BufferPlace::Scratch { first }, BufferPlace::Scratch { first: begin }) => {
                first < begin + scratch_width(others.width)
                    && begin < first + scratch_width(own.width)
            }
            (place, others) => place == others,
        }
    }

    /// The dispatches of a product's areas, after all that they read and write was checked.
    pub(crate) fn area_dispatches(
        &self,
        device: &GpuDevice,
        product: &GpuProduct<'_>,
    ) -> Result<Vec<Dispatch>, GpuError> {
        let steps = self.area_steps(product.step).ok_or(GpuError::Call {
            what: "step with areas",
            index: product.step,
            expected: 1,
            found: 0,
        })?;
        self.check_product(product, &self.shared_buffers(product.step))?;
        let mut all = Vec::new();
        let mut operand_first = 0;
        for areas in product.areas.chunk_by(|one, next| one.rows == next.rows) {
            let Some(first) = areas.first() else { continue };
            let rows = first.rows.clone();
            let count = rows.end.saturating_sub(rows.start);
            let bytes = 4 * u64::from(scratch_width(self.width(steps.x))) * u64::from(count);
            let operands = product.operands.part(operand_first, bytes)?;
            operand_first += bytes;
            let call = GpuCall {
                rows: count,
                weights: product.weights,
                layer: 0,
                inputs: product.inputs,
                outputs: product.outputs,
                scratch: product.scratch,
                state: product.state,
            };
            let writer = Writer {
                program: self,
                device,
                call: &call,
                window: Some(Window {
                    rows: product.rows,
                    first_row: rows.start,
                    operands: &operands,
                }),
            };
            if let Some((rounding, shapes)) = steps.rounding {
                all.extend(writer.step(rounding, shapes)?);
            }
            // All areas of these rows read what was rounded, and write apart from each other.
            for (number, area) in areas.iter().enumerate() {
                let part = steps.parts.get(area.part).zip(steps.shapes.get(area.part));
                let Some((part, shape)) = part else { continue };
                let dispatch = writer.product(steps.x, part, shape, area.outputs.clone())?;
                let waits = number == 0;
                all.push(Dispatch { waits, ..dispatch });
            }
        }
        Ok(all)
    }
}

/// Whether a step works on rows alone, and needs nothing of a call's state.
fn is_on_rows(step: &Step) -> bool {
    matches!(
        step,
        Step::RmsNorm { .. }
            | Step::LayerNorm { .. }
            | Step::Copy { .. }
            | Step::Scale { .. }
            | Step::SoftCap { .. }
            | Step::Add { .. }
            | Step::Activated { .. }
            | Step::Gated { .. }
    )
}
