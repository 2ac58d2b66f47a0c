//! Steps on single rows: finds the row of each buffer, runs the step's kernel, and stores the result in the form of the
//! output buffer.

use heg_artifacts::manifest::Role;
use heg_artifacts::program::{BufferId, ParameterId, Step};
use heg_spec::{Bug, bug};

use crate::cache_form::CacheForm;
use crate::device::Address;
use crate::execution::{Execution, plain_stride};
use crate::kernel::{Layout, PortForm};
use crate::lanes::{self, Kernel as RowKernel};
use crate::product::{Rounded, round_row};
use crate::rows::{
    Activated, Add, Gated, LayerNorm, RmsNorm, Rope, RoundHeads, RoundToBf16, Scale, SoftCap,
};

/// Destination of a step's output.
enum Target {
    /// The row itself.
    Row(*mut f32),
    /// A bf16 row, rounded from the thread's own row.
    Bf16(*mut u16),
    /// Heads of 8-bit integers, rounded from the thread's own row.
    Heads {
        /// The first head.
        to: *mut u8,
        /// Elements of a head.
        head_dim: usize,
    },
    /// A row of an operand, rounded from the thread's own row.
    Operand(*mut u8, Rounded),
}

impl Execution<'_> {
    /// Runs a step on one row.
    pub(crate) fn row_step(&self, thread: usize, step: &Step, row: usize) -> Result<(), Bug> {
        let done = self.try_row_step(thread, step, row);
        // `Program::read` and `CpuCall::check` exclude that.
        done.ok_or_else(|| bug!("a step has no row, or is none on single rows"))
    }

    /// [`row_step`](Self::row_step); `None` if a row is missing, or the step is none on single rows.
    fn try_row_step(&self, thread: usize, step: &Step, row: usize) -> Option<()> {
        match step {
            Step::RmsNorm { .. } | Step::LayerNorm { .. } => self.norm(thread, step, row),
            // A factor of one changes no number.
            Step::Copy { x, out } => self.scaled(thread, row, *x, 1.0, *out),
            Step::Scale { x, factor, out } => self.scaled(thread, row, *x, *factor, *out),
            Step::Rope {
                x,
                heads,
                rotated,
                out,
            } => {
                let (from, cos) = (self.input_row(*x, row)?, self.rotary_row(Role::Cos, row)?);
                let sin = self.rotary_row(Role::Sin, row)?;
                self.stored(thread, *out, row, |out| Rope {
                    x: from,
                    cos,
                    sin,
                    heads: *heads as usize,
                    head_dim: self.kernel.width(*x) / (*heads as usize).max(1),
                    rotated: *rotated as usize,
                    out,
                })
            }
            Step::Activated { .. }
            | Step::Gated { .. }
            | Step::Add { .. }
            | Step::SoftCap { .. } => self.elementwise(thread, step, row),
            Step::Product { .. } | Step::Attention { .. } => None,
        }
    }

    /// Runs a norm on one row.
    fn norm(&self, thread: usize, step: &Step, row: usize) -> Option<()> {
        match step {
            Step::RmsNorm {
                x,
                weight,
                eps,
                offset,
                groups,
                out,
            } => {
                let (from, weight) = (self.input_row(*x, row)?, self.vector(*weight).ok()?);
                self.stored(thread, *out, row, |out| RmsNorm {
                    x: from,
                    weight,
                    width: self.kernel.width(*x),
                    groups: *groups as usize,
                    eps: *eps,
                    offset: *offset,
                    out,
                })
            }
            Step::LayerNorm {
                x,
                weight,
                bias,
                eps,
                out,
            } => {
                let (from, weight) = (self.input_row(*x, row)?, self.vector(*weight).ok()?);
                let bias = bias.map(|bias: ParameterId| self.vector(bias));
                let bias = bias.transpose().ok()?;
                self.stored(thread, *out, row, |out| LayerNorm {
                    x: from,
                    weight,
                    bias,
                    width: self.kernel.width(*x),
                    eps: *eps,
                    out,
                })
            }
            _ => None,
        }
    }

    /// Runs a step on one row whose outputs follow from the inputs at the same place.
    fn elementwise(&self, thread: usize, step: &Step, row: usize) -> Option<()> {
        let input = |id| self.input_row(id, row);
        let width = |id| self.kernel.width(id);
        match step {
            Step::Activated { x, activation, out } => {
                let from = input(*x)?;
                self.stored(thread, *out, row, |to| Activated {
                    x: from,
                    activation: *activation,
                    width: width(*out),
                    out: to,
                })
            }
            Step::Gated {
                gate,
                up,
                activation,
                out,
            } => {
                let (gate, up) = (input(*gate)?, input(*up)?);
                self.stored(thread, *out, row, |to| Gated {
                    gate,
                    up,
                    activation: *activation,
                    width: width(*out),
                    out: to,
                })
            }
            Step::Add { a, b, b_scale, out } => {
                let (a, b) = (input(*a)?, input(*b)?);
                self.stored(thread, *out, row, |to| Add {
                    a,
                    b,
                    b_scale: *b_scale,
                    width: width(*out),
                    out: to,
                })
            }
            Step::SoftCap { x, cap, out } => {
                let from = input(*x)?;
                self.stored(thread, *out, row, |to| SoftCap {
                    x: from,
                    cap: *cap,
                    width: width(*out),
                    out: to,
                })
            }
            _ => None,
        }
    }

    /// Stores a row of `x`, times `factor`, in `out`.
    fn scaled(
        &self,
        thread: usize,
        row: usize,
        x: BufferId,
        factor: f32,
        out: BufferId,
    ) -> Option<()> {
        let from = self.input_row(x, row)?;
        let width = self.kernel.width(out);
        self.stored(thread, out, row, |to| Scale {
            x: from,
            factor,
            width,
            out: to,
        })
    }

    /// Runs a kernel that writes an f32 row, and converts the row to the buffer's form.
    fn stored<K: RowKernel<Output = ()>>(
        &self,
        thread: usize,
        out: BufferId,
        row: usize,
        kernel: impl FnOnce(*mut f32) -> K,
    ) -> Option<()> {
        let target = self.target(out, row)?;
        // SAFETY: each thread uses its own memory, and for one row at a time.
        let local = unsafe { self.threads.get(thread)?.get() };
        let own = local.row.as_ptr().cast::<f32>();
        let direct = match target {
            Target::Row(row) => row,
            Target::Bf16(_) | Target::Heads { .. } | Target::Operand(..) => own,
        };
        // SAFETY: the machine has the instructions; `Program::read` and `CpuCall::check` found every row as wide as the
        // kernel needs, `CpuDevice::make_room` made the thread's own row as wide as any, and each row has one thread.
        unsafe { lanes::run(self.isa, kernel(direct)) };
        match target {
            Target::Row(_) => {}
            Target::Bf16(to) => {
                let rounded = RoundToBf16 {
                    x: own,
                    width: self.kernel.width(out),
                    out: to,
                };
                // SAFETY: the thread's own row has the width, and this thread alone writes this row.
                unsafe { lanes::run(self.isa, rounded) };
            }
            Target::Heads { to, head_dim } => {
                let rounded = RoundHeads {
                    x: own,
                    heads: self.kernel.width(out) / head_dim,
                    head_dim,
                    out: to,
                };
                // SAFETY: the thread's own row has the width, and this thread alone writes this row.
                unsafe { lanes::run(self.isa, rounded) };
            }
            Target::Operand(operand, form) => {
                // SAFETY: the thread's own row has the width; scratch memory has the operand, and this thread alone
                // rounds this row.
                unsafe { round_row(self.isa, form, self.call.rows, row, own, operand) };
            }
        }
        Some(())
    }

    /// The row that a step reads.
    fn input_row(&self, id: BufferId, row: usize) -> Option<*const f32> {
        match self.kernel.layouts.get(id.0 as usize)? {
            Layout::Plain(first) => Some(self.plain_row(*first, id, row).cast_const()),
            Layout::Input(port) => Some(self.table_row(*port, row)?.cast_const().cast()),
            Layout::Output(_) | Layout::Rounded(..) => None,
        }
    }

    fn target(&self, id: BufferId, row: usize) -> Option<Target> {
        match self.kernel.layouts.get(id.0 as usize)? {
            Layout::Plain(first) => Some(Target::Row(self.plain_row(*first, id, row))),
            Layout::Rounded(first, form) => {
                Some(Target::Operand(self.scratch_at(*first).cast(), *form))
            }
            Layout::Output(port) => {
                let address = self.table_row(self.kernel.inputs.len() + port, row)?;
                Some(match self.kernel.outputs.get(*port)?.form {
                    PortForm::Cache(CacheForm::Bf16) => Target::Bf16(address.cast()),
                    PortForm::Cache(CacheForm::I8 { head_dim }) => Target::Heads {
                        to: address,
                        head_dim,
                    },
                    _ => Target::Row(address.cast()),
                })
            }
            Layout::Input(_) => None,
        }
    }

    fn plain_row(&self, first: usize, id: BufferId, row: usize) -> *mut f32 {
        let stride = plain_stride(self.kernel.width(id));
        self.scratch_at(first).wrapping_add(row * stride)
    }

    /// Cosines or sines of a row's position.
    fn rotary_row(&self, role: Role, row: usize) -> Option<*const f32> {
        let mut inputs = self.kernel.inputs.iter();
        let port = inputs.position(|port| port.role == role)?;
        Some(self.table_row(port, row)?.cast_const().cast())
    }

    fn table_row(&self, port: usize, row: usize) -> Option<*mut u8> {
        let Address(address) = *self.tables.get(port)?.get(row)?;
        Some(address)
    }
}
