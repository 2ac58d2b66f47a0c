//! Products as dispatches.

use std::ops::Range;

use heg_artifacts::manifest::Parameter;
use heg_artifacts::program::{BufferId, Part};
use heg_spirv::{Module, StepShape};

use super::steps::Writer;
use super::tiling::{Shape, Tiling};
use crate::error::GpuError;
use crate::vulkan::{Args, Dispatch};

/// The operation after the sums, as `shaders/include/product.glsl` has it.
mod flag {
    pub(super) const CENTRES: u32 = 1;
    pub(super) const BIAS: u32 = 2;
    pub(super) const RESIDUAL: u32 = 4;
}

impl Writer<'_> {
    /// The product of rows with some outputs of one matrix, which begin at a multiple of [`OUTPUT_STEP`].
    pub(super) fn product(
        &self,
        x: BufferId,
        part: &Part,
        shape: &StepShape,
        outputs: Range<u32>,
    ) -> Result<Dispatch, GpuError> {
        let index = part.weight.0 as usize;
        let parameter = self.program.parameters.get(index);
        let weight = self.call.weights.get(index);
        let (Some(parameter), Some(weight)) = (parameter, weight) else {
            // Calls are checked before.
            return Err(GpuError::Call {
                what: "weight",
                index,
                expected: 1,
                found: 0,
            });
        };
        let (from, to) = (self.placed(x), self.placed(part.out));
        let before = Before::new(parameter, outputs.start);
        let first = 4 * u64::from(outputs.start);
        let outputs = outputs.end - outputs.start;
        let address = |region: &Option<crate::GpuRegion>| {
            region
                .as_ref()
                .map_or(0, |it| it.address() + before.affine_bytes)
        };
        let residual = part
            .residual
            .map(|residual| (self.placed(residual.to), residual.factor));
        let flags = [
            (parameter.centred, flag::CENTRES),
            (part.bias.is_some(), flag::BIAS),
            (residual.is_some(), flag::RESIDUAL),
        ];
        let flags = flags.iter().filter(|(is, _)| *is).map(|(_, flag)| flag);
        let rows = self.call.rows;
        let args = Args {
            at: [
                weight.values.address() + before.value_bytes,
                address(&weight.scales),
                address(&weight.centres),
                from.address,
                part.bias.map_or(0, |bias| self.values(bias) + first),
                residual.map_or(0, |(to, _)| to.address + first),
                to.address + first,
                0,
            ],
            n: [
                rows,
                outputs,
                to.stride,
                residual.map_or(0, |(to, _)| to.stride),
                flags.sum(),
                from.stride,
                0,
                0,
            ],
            s: [residual.map_or(0.0, |(_, factor)| factor), 0.0, 0.0, 0.0],
        };
        match shape.module {
            Module::Product => self.integers(self.program.width(x), shape.constants.clone(), args),
            module => {
                let groups = [outputs.div_ceil(4), rows];
                self.dispatch(module, &shape.constants, args, groups)
            }
        }
    }

    /// The product of an operand.
    fn integers(
        &self,
        columns: u32,
        mut constants: Vec<(u32, u32)>,
        args: Args,
    ) -> Result<Dispatch, GpuError> {
        let shape = Shape {
            rows: args.n[0],
            outputs: args.n[1],
            columns,
            at: [args.at[0], args.at[3]],
        };
        let tiling = Tiling::new(self.device, shape);
        constants.extend(tiling.constants());
        let module = tiling.module(self.device.probe().arithmetic.dots);
        self.dispatch(module, &constants, args, tiling.groups(shape))
    }
}

/// Outputs at whose multiples a matrix is cut. Chosen: rows of eight outputs, and their scales, are whole words whatever
/// their element type.
pub(super) const OUTPUT_STEP: u32 = 8;

/// Bytes of a weight before one of its outputs.
struct Before {
    value_bytes: u64,
    affine_bytes: u64,
}

impl Before {
    fn new(parameter: &Parameter, output: u32) -> Self {
        let (rows, columns) = match parameter.shape.as_slice() {
            [rows, rest @ ..] => (*rows, rest.iter().map(|size| u64::from(*size)).product()),
            [] => (1, 1),
        };
        let elements = u64::from(output) * columns;
        let of_row = parameter.affine_bytes() / u64::from(rows.max(1));
        Self {
            // Whole steps of outputs are whole bytes.
            value_bytes: parameter.element.bytes_of(elements).unwrap_or(0),
            affine_bytes: u64::from(output) * of_row,
        }
    }
}
