//! Checks of a call: all that modules read and write is there. Modules check nothing.

use heg_artifacts::manifest::{ElementType, Port, Role};
use heg_artifacts::program::{BufferId, BufferPlace, Step};

use heg_spirv::is_cache;

use super::product::OUTPUT_STEP;
use super::{GpuCall, GpuProduct, GpuProgram, GpuRows, GpuWeight};
use crate::error::GpuError;

impl GpuProgram {
    /// Fails where a call lacks anything.
    pub(super) fn check(&self, call: &GpuCall<'_>) -> Result<(), GpuError> {
        at_least("rows", 0, 1, u64::from(call.rows))?;
        at_least(
            "rows of the state",
            0,
            u64::from(call.rows),
            u64::from(call.state.limits().rows),
        )?;
        same("input ports", self.inputs.len(), call.inputs.len())?;
        same("output ports", self.outputs.len(), call.outputs.len())?;
        same("weights", self.parameters.len(), call.weights.len())?;
        let scratch = 4 * u64::from(self.scratch_elements()) * u64::from(call.rows);
        at_least("bytes of scratch memory", 0, scratch, call.scratch.bytes())?;
        for (index, weight) in call.weights.iter().enumerate() {
            self.check_weight(index, weight)?;
        }
        let inputs = self.inputs.iter().zip(call.inputs).enumerate();
        for (index, (port, rows)) in inputs {
            self.check_port("input", index, port, rows.as_ref(), call)?;
        }
        let outputs = self.outputs.iter().zip(call.outputs).enumerate();
        for (index, (port, rows)) in outputs {
            self.check_port("output", index, port, rows.as_ref(), call)?;
        }
        Ok(())
    }

    /// Fails where areas of a product lack anything of the buffers that they work on.
    pub(super) fn check_product(
        &self,
        product: &GpuProduct<'_>,
        buffers: &[BufferId],
    ) -> Result<(), GpuError> {
        let rows = product.rows;
        at_least("rows", 0, 1, u64::from(rows))?;
        same("weights", self.parameters.len(), product.weights.len())?;
        let scratch = 4 * u64::from(self.scratch_elements()) * u64::from(rows);
        let found = product.scratch.bytes();
        at_least("bytes of scratch memory", 0, scratch, found)?;
        for (index, weight) in product.weights.iter().enumerate() {
            self.check_weight(index, weight)?;
        }
        for id in buffers {
            let buffer = self.program.buffers.get(id.0 as usize);
            let (side, all, port) = match buffer.map(|buffer| buffer.place) {
                Some(BufferPlace::Input(port)) => ("input", product.inputs, port),
                Some(BufferPlace::Output(port)) => ("output", product.outputs, port),
                Some(BufferPlace::Scratch { .. }) | None => continue,
            };
            let of_port = all.get(port as usize).and_then(Option::as_ref);
            let Some(of_port) = of_port else {
                return at_least("rows of an input or output", port as usize, 1, 0);
            };
            check_stride(side, port as usize, self.width(*id), of_port, rows)?;
        }
        let Some(Step::Product { parts, .. }) = self.program.steps.get(product.step) else {
            return at_least("product", product.step, 1, 0);
        };
        for (index, area) in product.areas.iter().enumerate() {
            let part = parts.get(area.part);
            let width = part.map_or(0, |part| self.width(part.out));
            let (outputs, of_rows) = (&area.outputs, &area.rows);
            let ends = [(outputs, width), (of_rows, rows)];
            for (range, end) in ends {
                at_least(
                    "end of an area",
                    index,
                    u64::from(range.end),
                    u64::from(end),
                )?;
                let begin = u64::from(range.start) + 1;
                at_least("size of an area", index, begin, u64::from(range.end))?;
            }
            same(
                "first output of an area",
                0,
                (outputs.start % OUTPUT_STEP) as usize,
            )?;
        }
        Ok(())
    }

    fn check_port(
        &self,
        side: &'static str,
        index: usize,
        port: &Port,
        rows: Option<&GpuRows>,
        call: &GpuCall<'_>,
    ) -> Result<(), GpuError> {
        match rows {
            _ if is_cache(port.role) => self.check_cache(port, call),
            Some(rows) => check_rows(side, index, port, rows, call),
            None if port.role == Role::Position => Ok(()),
            None => at_least("rows of an input or output", index, 1, 0),
        }
    }

    /// Keys and values are where the state says, which has checked that all halves of its layers are there.
    fn check_cache(&self, port: &Port, call: &GpuCall<'_>) -> Result<(), GpuError> {
        let limits = call.state.limits();
        let layers = u64::from(limits.layers);
        at_least("layers of caches", 0, u64::from(call.layer) + 1, layers)?;
        same(
            "bytes of a row of the cache",
            usize::try_from(limits.cache_row_bytes).unwrap_or(usize::MAX),
            usize::try_from(u64::from(port.width) * self.kv.bytes()).unwrap_or(usize::MAX),
        )
    }

    fn check_weight(&self, index: usize, weight: &GpuWeight) -> Result<(), GpuError> {
        let Some(parameter) = self.parameters.get(index) else {
            return Ok(());
        };
        let elements = parameter
            .shape
            .iter()
            .map(|size| u64::from(*size))
            .product();
        let bytes = parameter.element.bytes_of(elements).unwrap_or(u64::MAX);
        at_least("bytes of weight", index, bytes, weight.values.bytes())?;
        let bytes = parameter.affine_bytes();
        let found = |region: &Option<crate::GpuRegion>| region.as_ref().map_or(0, |it| it.bytes());
        at_least(
            "bytes of the scales of weight",
            index,
            bytes,
            found(&weight.scales),
        )?;
        let bytes = if parameter.centred { bytes } else { 0 };
        at_least(
            "bytes of the centres of weight",
            index,
            bytes,
            found(&weight.centres),
        )
    }

    /// The rows of a port that a buffer is.
    pub(super) fn port_rows<'a>(
        &self,
        place: BufferPlace,
        call: &'a GpuCall<'_>,
    ) -> Option<&'a GpuRows> {
        match place {
            BufferPlace::Input(port) => call.inputs.get(port as usize)?.as_ref(),
            BufferPlace::Output(port) => call.outputs.get(port as usize)?.as_ref(),
            BufferPlace::Scratch { .. } => None,
        }
    }
}

fn check_rows(
    side: &'static str,
    index: usize,
    port: &Port,
    rows: &GpuRows,
    call: &GpuCall<'_>,
) -> Result<(), GpuError> {
    let tables = matches!(port.role, Role::Cos | Role::Sin);
    let count = match tables {
        true => call.state.limits().positions,
        false => call.rows,
    };
    if tables {
        // Modules take the width for the distance.
        same(
            "elements from a row to the next of a rotary table",
            port.width as usize,
            rows.stride as usize,
        )?;
    }
    check_stride(side, index, port.width, rows, count)
}

/// Fails unless there are as many rows of a width.
fn check_stride(
    side: &'static str,
    index: usize,
    width: u32,
    rows: &GpuRows,
    count: u32,
) -> Result<(), GpuError> {
    let (stride, width) = (u64::from(rows.stride), u64::from(width));
    at_least(
        "elements from a row to the next of an input or output",
        index,
        width,
        stride,
    )?;
    let elements = u64::from(count.saturating_sub(1)) * stride + width;
    let bytes = ElementType::F32.bytes_of(elements).unwrap_or(u64::MAX);
    let what = match side {
        "input" => "bytes of input",
        _ => "bytes of output",
    };
    at_least(what, index, bytes, rows.region.bytes())
}

fn at_least(what: &'static str, index: usize, expected: u64, found: u64) -> Result<(), GpuError> {
    match found >= expected {
        true => Ok(()),
        false => Err(GpuError::Call {
            what,
            index,
            expected,
            found,
        }),
    }
}

fn same(what: &'static str, expected: usize, found: usize) -> Result<(), GpuError> {
    match expected == found {
        true => Ok(()),
        false => Err(GpuError::Call {
            what,
            index: 0,
            expected: expected as u64,
            found: found as u64,
        }),
    }
}
