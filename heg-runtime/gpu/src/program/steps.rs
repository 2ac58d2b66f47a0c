//! Steps of a program as dispatches.

use heg_artifacts::manifest::{ElementType, Port, Role};
use heg_artifacts::program::{
    Attention, BufferId, BufferPlace, ParameterId, Part, Step, scratch_width,
};
use heg_spirv::{Module, StepShape, constant, is_cache};

use super::{GpuCall, GpuProgram, GpuRows};
use crate::device::GpuDevice;
use crate::error::GpuError;
use crate::region::GpuRegion;
use crate::vulkan::{Args, Dispatch};

/// Writes the steps of one call down.
pub(super) struct Writer<'a> {
    pub(super) program: &'a GpuProgram,
    pub(super) device: &'a GpuDevice,
    pub(super) call: &'a GpuCall<'a>,
    /// The larger call whose rows these are; `None` if they are a call of their own.
    pub(super) window: Option<Window<'a>>,
}

/// Some rows of a larger call, whose memory the device shares with another.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    /// Rows of the larger call, which scratch memory is laid out for.
    pub(super) rows: u32,
    pub(super) first_row: u32,
    /// Memory of the device's own for operands, which the other has in another form.
    pub(super) operands: &'a GpuRegion,
}

/// Address of a buffer's rows; 0 if there are none.
#[derive(Clone, Copy, Default)]
pub(super) struct Placed {
    pub(super) address: u64,
    /// Elements from a row to the next.
    pub(super) stride: u32,
}

impl From<&GpuRows> for Placed {
    fn from(rows: &GpuRows) -> Self {
        Self {
            address: rows.region.address(),
            stride: rows.stride,
        }
    }
}

/// The buffers of a step on single rows.
#[derive(Clone, Copy)]
struct RowBuffers {
    x: BufferId,
    /// A second input.
    y: Option<BufferId>,
    out: BufferId,
}

impl RowBuffers {
    /// Of a step with one input.
    fn new(x: &BufferId, out: &BufferId) -> Self {
        Self {
            x: *x,
            y: None,
            out: *out,
        }
    }

    /// The same with a second input.
    fn and(self, y: &BufferId) -> Self {
        Self {
            y: Some(*y),
            ..self
        }
    }
}

/// Workgroups for a row of a step on single elements: one for each piece of `shaders/include/rows.glsl` on a wide device.
pub(crate) fn row_pieces(device: &GpuDevice, width: u32) -> u32 {
    match device.is_wide() {
        true => width.div_ceil(256).max(1),
        false => 1,
    }
}

/// Invocations for a head, and rows that they share: a processor computes the scores of tokens that nobody asks for, too,
/// and few rows are those of many sequences, which share nothing.
fn attention_shape(device: &GpuDevice, rows: u32, head_dim: u32) -> [u32; 2] {
    match device.is_wide() {
        true if rows >= 32 && head_dim <= 256 => [256, 4],
        true => [256, 1],
        false => [64, 1],
    }
}

/// Invocations that norm a row, and the bytes of shared memory that the largest number of them takes.
const NORM_INVOCATIONS: [u32; 2] = [128, 512];
const NORM_SHARED_BYTES: u32 = 24 << 10;

/// Columns of a row from which on more invocations norm it, on a wide device. Chosen: 128 take them in two rounds, and
/// each round waits for memory.
const NORM_COLUMNS: u32 = 2048;

/// The number of invocations that norm a row of `columns` columns.
fn norm_invocations(device: &GpuDevice, columns: u32) -> u32 {
    let [few, many] = NORM_INVOCATIONS;
    let fits = device.invocations() >= many && device.shared_bytes() >= NORM_SHARED_BYTES;
    match device.is_wide() && fits && columns >= NORM_COLUMNS {
        true => many,
        false => few,
    }
}

impl Writer<'_> {
    /// The dispatches of a step, which do not wait for each other.
    pub(super) fn step(
        &self,
        step: &Step,
        shapes: &[StepShape],
    ) -> Result<Vec<Dispatch>, GpuError> {
        let Some(shape) = shapes.first() else {
            // A product of no parts.
            return Ok(Vec::new());
        };
        let one = match step {
            Step::Product { x, parts } => {
                let parts = parts.iter().zip(shapes);
                let product = |(part, shape): (&Part, _)| {
                    self.product(*x, part, shape, 0..self.program.width(part.out))
                };
                return parts.map(product).collect();
            }
            Step::RmsNorm {
                x,
                weight,
                eps,
                offset,
                out,
                ..
            } => {
                let buffers = RowBuffers::new(x, out);
                let mut args = self.row_args(buffers);
                args.at[1] = self.values(*weight);
                (args.s[0], args.s[1]) = (*eps, *offset);
                self.rows(shape, *x, args)
            }
            Step::LayerNorm {
                x,
                weight,
                bias,
                eps,
                out,
            } => {
                let mut args = self.row_args(RowBuffers::new(x, out));
                args.at[1] = self.values(*weight);
                args.at[4] = bias.map_or(0, |bias| self.values(bias));
                args.n[2] = u32::from(bias.is_some());
                args.s[0] = *eps;
                self.rows(shape, *x, args)
            }
            Step::Copy { x, out } => self.elementwise(shape, RowBuffers::new(x, out), 0.0),
            Step::Scale { x, factor, out } => {
                self.elementwise(shape, RowBuffers::new(x, out), *factor)
            }
            Step::SoftCap { x, cap, out } => self.elementwise(shape, RowBuffers::new(x, out), *cap),
            Step::Add { a, b, b_scale, out } => {
                let buffers = RowBuffers::new(a, out).and(b);
                self.elementwise(shape, buffers, *b_scale)
            }
            // Refused when the program was made.
            Step::Activated { x, out, .. } => self.elementwise(shape, RowBuffers::new(x, out), 0.0),
            Step::Gated { gate, up, out, .. } => {
                let buffers = RowBuffers::new(gate, out).and(up);
                self.elementwise(shape, buffers, 0.0)
            }
            Step::Rope { x, out, .. } => {
                let mut args = self.row_args(RowBuffers::new(x, out));
                args.at[1] = self.port(Role::Cos).address;
                args.at[4] = self.port(Role::Sin).address;
                self.rows(shape, *x, args)
            }
            Step::Attention { attributes, out } => self.attention(shape, attributes, *out),
        };
        Ok(vec![one?])
    }

    fn elementwise(
        &self,
        shape: &StepShape,
        buffers: RowBuffers,
        factor: f32,
    ) -> Result<Dispatch, GpuError> {
        let mut args = self.row_args(buffers);
        args.s[0] = factor;
        self.rows(shape, buffers.x, args)
    }

    /// Arguments that steps on single rows have in common.
    fn row_args(&self, buffers: RowBuffers) -> Args {
        let (from, to) = (self.placed(buffers.x), self.placed(buffers.out));
        let second = buffers.y.map(|y| self.placed(y)).unwrap_or_default();
        let mut args = Args::default();
        args.at[0] = from.address;
        args.at[1] = second.address;
        args.at[2] = to.address;
        args.at[3] = self.call.state.region().address();
        args.n[..4].copy_from_slice(&[self.call.rows, from.stride, second.stride, to.stride]);
        args
    }

    /// A step on single rows of `x`: a workgroup for each, or more where the step is on single elements.
    fn rows(&self, shape: &StepShape, x: BufferId, args: Args) -> Result<Dispatch, GpuError> {
        let (mut constants, width) = (shape.constants.clone(), self.program.width(x));
        let pieces = match shape.module {
            Module::RmsNorm => {
                let invocations = norm_invocations(self.device, width);
                constants.push((constant::INVOCATIONS, invocations));
                1
            }
            Module::LayerNorm => 1,
            _ => row_pieces(self.device, width),
        };
        let groups = [self.call.rows, pieces];
        self.dispatch(shape.module, &constants, args, groups)
    }

    fn attention(
        &self,
        shape: &StepShape,
        attributes: &Attention,
        out: BufferId,
    ) -> Result<Dispatch, GpuError> {
        let Attention {
            heads,
            kv_heads,
            head_dim,
            scale,
            window,
            softcap,
            sight: _,
        } = *attributes;
        let (query, keys) = (self.port(Role::Query), self.cached(Role::Key));
        let (values, to) = (self.cached(Role::Value), self.placed(out));
        let log2_e = std::f32::consts::LOG2_E;
        let args = Args {
            at: [
                query.address,
                keys.address,
                values.address,
                self.call.state.region().address(),
                to.address,
                0,
                0,
                0,
            ],
            n: [
                heads,
                kv_heads,
                query.stride,
                to.stride,
                keys.stride,
                window.unwrap_or(0),
                u32::from(softcap.is_some()),
                self.call.rows,
            ],
            s: [
                softcap.map_or(scale * log2_e, |cap| scale / cap),
                softcap.map_or(0.0, |cap| cap * log2_e),
                0.0,
                0.0,
            ],
        };
        let in_quad = match self.program.kv {
            ElementType::F32 => 4,
            _ => 8,
        };
        // A cache begins at a multiple of 16 bytes, and so does each of its halves.
        let rows = [head_dim, keys.stride, values.stride];
        let quads = rows.iter().all(|width| width.is_multiple_of(in_quad));
        let [invocations, together] = attention_shape(self.device, self.call.rows, head_dim);
        let mut constants = shape.constants.clone();
        constants.extend([
            (constant::QUADS, u32::from(quads)),
            (constant::ROWS, together),
            (constant::INVOCATIONS, invocations),
        ]);
        let groups = [heads, self.call.rows.div_ceil(together)];
        self.dispatch(shape.module, &constants, args, groups)
    }

    pub(super) fn dispatch(
        &self,
        module: Module,
        constants: &[(u32, u32)],
        args: Args,
        groups: [u32; 2],
    ) -> Result<Dispatch, GpuError> {
        let arithmetic = self.device.probe().arithmetic;
        let pipeline = self.device.pipelines.of(module, constants, arithmetic)?;
        Ok(Dispatch {
            pipeline,
            args,
            groups,
            waits: true,
        })
    }

    /// Address of a buffer's rows. Checked calls lack none.
    pub(super) fn placed(&self, id: BufferId) -> Placed {
        let Some(buffer) = self.program.program.buffers.get(id.0 as usize) else {
            return Placed::default();
        };
        if let BufferPlace::Scratch { first } = buffer.place {
            let stride = scratch_width(buffer.width);
            if let Some(window) = self.window.filter(|_| self.program.is_integers(id)) {
                let address = window.operands.address();
                return Placed { address, stride };
            }
            let rows = self.window.map_or(self.call.rows, |window| window.rows);
            let first = 4 * u64::from(first) * u64::from(rows);
            let address = self.call.scratch.address() + first;
            return self.behind_first(Placed { address, stride });
        }
        if let Some(port) = self.program.port_of(buffer.place)
            && is_cache(port.role)
        {
            return self.half(port);
        }
        let rows = self.program.port_rows(buffer.place, self.call);
        let rows = rows.map(Placed::from);
        rows.map_or_else(Placed::default, |rows| self.behind_first(rows))
    }

    /// The first of the rows that are written down, of rows of the larger call.
    fn behind_first(&self, rows: Placed) -> Placed {
        let first = self.window.map_or(0, |window| window.first_row);
        let before = 4 * u64::from(first) * u64::from(rows.stride);
        Placed {
            address: rows.address + before,
            ..rows
        }
    }

    /// The half of caches that a port is, by its number.
    fn half(&self, port: &Port) -> Placed {
        Placed {
            address: 2 * u64::from(self.call.layer) + u64::from(port.role == Role::Value),
            stride: port.width,
        }
    }

    /// The half of caches with the keys, or the values, that attention reads.
    fn cached(&self, role: Role) -> Placed {
        let mut inputs = self.program.inputs.iter();
        let port = inputs.find(|port| port.role == role);
        port.map(|port| self.half(port)).unwrap_or_default()
    }

    /// The rows of the input port of a role.
    fn port(&self, role: Role) -> Placed {
        let mut inputs = self.program.inputs.iter();
        let index = inputs.position(|port| port.role == role);
        let rows = index.and_then(|index| self.call.inputs.get(index)?.as_ref());
        rows.map(Placed::from).unwrap_or_default()
    }

    /// Address of a weight's elements.
    pub(super) fn values(&self, id: ParameterId) -> u64 {
        let weight = self.call.weights.get(id.0 as usize);
        weight.map_or(0, |weight| weight.values.address())
    }
}
