//! Checks of a call: all that modules read and write is there. Modules check nothing.

use heg_artifacts::manifest::{ElementType, Port, Role};
use heg_artifacts::program::BufferPlace;

use heg_spirv::is_cache;

use super::{GpuCall, GpuProgram, GpuRows, GpuWeight};
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
    let (stride, width) = (u64::from(rows.stride), u64::from(port.width));
    at_least(
        "elements from a row to the next of an input or output",
        index,
        width,
        stride,
    )?;
    if tables {
        // Modules take the width for the distance.
        same(
            "elements from a row to the next of a rotary table",
            port.width as usize,
            rows.stride as usize,
        )?;
    }
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
