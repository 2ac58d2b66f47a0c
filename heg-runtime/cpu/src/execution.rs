//! One call of an order on all threads of a device: phase after phase, each in pieces.
//!
//! Which thread takes which piece changes nothing in the results: every output is computed by one thread, in an order
//! that knows nothing of pieces.

use std::ops::Range;

use heg_artifacts::manifest::{ElementType, Parameter, Role};
use heg_artifacts::program::{
    Attention, BufferId, ParameterId, Part, Step, StepPhase, scratch_width,
};

use crate::attention::{self, AttentionCall, KvElement, Tree, WorkItem, WorkItems};
use crate::call::{Context, CpuCall};
use crate::device::{Address, OfThread};
use crate::kernel::{Kernel, Layout};
use crate::lanes::elements::Element;
use crate::product::{
    Affine, FloatProduct, IntegerProduct, Residual, float_product, integer_product,
};
use heg_spec::Isa;

/// A call that is under way.
pub(crate) struct Execution<'a> {
    pub(crate) isa: Isa,
    pub(crate) kernel: &'a Kernel,
    pub(crate) call: &'a CpuCall<'a>,
    pub(crate) scratch: Address,
    /// Addresses of rows, by port: inputs, then outputs.
    pub(crate) tables: &'a [Vec<Address>],
    /// Pieces of its attention.
    pub(crate) items: &'a [Item],
    pub(crate) threads: &'a [OfThread],
}

/// A piece of attention: some heads of some rows of one sequence.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// Index of the sequence.
    context: usize,
    work: WorkItem,
}

/// Rows of a buffer at one distance from each other.
#[derive(Clone, Copy)]
pub(crate) struct Strided {
    pub(crate) first: *mut f32,
    /// Elements from a row to the next.
    pub(crate) stride: usize,
}

impl Execution<'_> {
    /// Adds the pieces of the call's attention, if it has one.
    pub(crate) fn list_items(&self, items: &mut Vec<Item>) {
        let Some((attributes, out)) = self.kernel.attention() else {
            return;
        };
        for context in 0..self.call.contexts.len() {
            let Some(call) = self.attention_call(attributes, out, context) else {
                return;
            };
            let pieces = WorkItems::of(&call, self.threads.len());
            let item = |index| Item {
                context,
                work: pieces.get(index),
            };
            items.extend((0..pieces.len()).map(item));
        }
    }

    /// Number of pieces of each phase.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = usize> {
        let steps = &self.kernel.program.steps;
        self.kernel.phases.iter().map(move |phase| match phase {
            StepPhase::Rows(_) => self.call.rows.div_ceil(self.rows_of_piece()),
            StepPhase::Product(step) => match steps.get(*step) {
                Some(Step::Product { parts, .. }) => self.pieces_of(parts).sum(),
                _ => 0,
            },
            StepPhase::Attention(_) => self.items.len(),
        })
    }

    /// Works on a piece of a phase.
    pub(crate) fn run(&self, thread: usize, phase: usize, piece: usize) {
        match self.kernel.phases.get(phase) {
            Some(StepPhase::Rows(steps)) => self.rows(thread, steps.clone(), piece),
            Some(StepPhase::Product(step)) => self.product(thread, *step, piece),
            Some(StepPhase::Attention(step)) => self.attention(thread, *step, piece),
            None => {}
        }
    }

    /// Runs steps on some rows.
    fn rows(&self, thread: usize, steps: Range<usize>, piece: usize) {
        let size = self.rows_of_piece();
        let steps = self.kernel.program.steps.get(steps).unwrap_or_default();
        for row in piece * size..self.call.rows.min((piece + 1) * size) {
            for step in steps {
                self.row_step(thread, step, row);
            }
        }
    }

    fn rows_of_piece(&self) -> usize {
        let pieces = self.threads.len() * PIECES_OF_A_THREAD;
        self.call.rows.div_ceil(pieces).max(1)
    }

    /// Computes some outputs of a product.
    fn product(&self, thread: usize, step: usize, mut piece: usize) {
        let Some(Step::Product { x, parts }) = self.kernel.program.steps.get(step) else {
            return;
        };
        for (part, pieces) in parts.iter().zip(self.pieces_of(parts)) {
            if piece < pieces {
                let size = self.outputs_of_piece(parts, part);
                let end = self.kernel.width(part.out).min((piece + 1) * size);
                return self.multiply(thread, *x, part, piece * size..end);
            }
            piece -= pieces;
        }
    }

    /// Number of pieces of each part of a product.
    fn pieces_of<'p>(&self, parts: &'p [Part]) -> impl Iterator<Item = usize> + use<'p, '_> {
        let pieces = |part: &Part| {
            let outputs = self.kernel.width(part.out);
            outputs.div_ceil(self.outputs_of_piece(parts, part))
        };
        parts.iter().map(pieces)
    }

    /// Outputs of a part's pieces: so few that all threads end at about the same time, and enough to be worth taking.
    fn outputs_of_piece(&self, parts: &[Part], part: &Part) -> usize {
        let all: usize = parts.iter().map(|part| self.kernel.width(part.out)).sum();
        let fair = all.div_ceil(self.threads.len() * PIECES_OF_A_THREAD);
        let most = PIECE_BYTES / self.row_bytes(part).max(1);
        fair.min(most).div_ceil(OUTPUT_STEP).max(1) * OUTPUT_STEP
    }

    /// Bytes of a row of a part's matrix.
    fn row_bytes(&self, part: &Part) -> usize {
        let parameter = self.kernel.parameters.get(part.weight.0 as usize);
        parameter.map_or(1, |Parameter { element, shape, .. }| {
            shape.last().map_or(1, |width| *width as usize) * element.bytes() as usize
        })
    }

    fn multiply(&self, thread: usize, x: BufferId, part: &Part, outputs: Range<usize>) {
        let Some(parameter) = self.kernel.parameters.get(part.weight.0 as usize) else {
            return;
        };
        let Some(weight) = self.call.weights.get(part.weight.0 as usize) else {
            return;
        };
        let (Some(out), Some(local)) = (self.strided(part.out), self.threads.get(thread)) else {
            return;
        };
        let affine = weight.affine.map(|affine| Affine {
            scales: affine.scales.as_ptr().cast(),
            centres: affine.centres.map(|centres| centres.as_ptr().cast()),
        });
        let bias = part.bias.and_then(|bias| self.vector(bias));
        let residual = part.residual.and_then(|residual| {
            let to = self.strided(residual.to)?;
            Some(Residual {
                from: to.first.cast_const(),
                stride: to.stride,
                factor: residual.factor,
            })
        });
        let rows = self.call.rows;
        match (self.kernel.layouts.get(x.0 as usize), affine) {
            (Some(Layout::Rounded(first, form)), Some(affine)) => {
                let product = IntegerProduct {
                    weights: weight.values.as_ptr().cast(),
                    affine,
                    form: *form,
                    operand: self.scratch_at(*first).cast_const().cast(),
                    rows,
                    bias,
                    residual,
                    out: out.first,
                    out_stride: out.stride,
                };
                // SAFETY: `Program::read` checked widths and that buffers do not overlap, `CpuCall::check` that weights and
                // rows are there; every output is in one piece, which one thread has; a thread has its own memory.
                unsafe { integer_product(self.isa, &product, outputs, &mut local.get().panel) };
            }
            (Some(Layout::Plain(first)), affine) => {
                let Some(element) = Element::of(parameter.element) else {
                    return;
                };
                let width = self.kernel.width(x);
                let product = FloatProduct {
                    weights: weight.values.as_ptr(),
                    element,
                    affine,
                    width,
                    x: self.scratch_at(*first).cast_const(),
                    x_stride: plain_stride(width),
                    rows,
                    bias,
                    residual,
                    out: out.first,
                    out_stride: out.stride,
                };
                // SAFETY: as above.
                unsafe { float_product(self.isa, &product, outputs) };
            }
            _ => {}
        }
    }

    /// Works on one item of attention.
    fn attention(&self, thread: usize, step: usize, piece: usize) {
        let Some(Step::Attention { attributes, out }) = self.kernel.program.steps.get(step) else {
            return;
        };
        let (Some(item), Some(local)) = (self.items.get(piece), self.threads.get(thread)) else {
            return;
        };
        let Some(call) = self.attention_call(attributes, *out, item.context) else {
            return;
        };
        // SAFETY: `CpuCall::check` found all rows that are visible; each piece has rows and heads of its own, and each
        // thread its memory.
        unsafe {
            attention::attend(
                self.isa,
                &call,
                item.work.kv_heads.clone(),
                item.work.rows.clone(),
                &mut local.get().attention,
            );
        }
    }

    fn attention_call(
        &self,
        attributes: &Attention,
        out: BufferId,
        index: usize,
    ) -> Option<AttentionCall<'_>> {
        let before = self.call.contexts.get(..index)?;
        let first: usize = before.iter().map(|context| context.tokens).sum();
        let context: &Context<'_> = self.call.contexts.get(index)?;
        let mut inputs = self.kernel.inputs.iter();
        let queries = inputs.position(|port| port.role == Role::Query)?;
        let query = self.port_rows(queries, self.call.inputs)?;
        let out = self.strided(out)?;
        let mut inputs = self.kernel.inputs.iter();
        let keys = inputs.find(|port| port.role == Role::Key)?;
        Some(AttentionCall {
            attributes: *attributes,
            query: query.first.wrapping_add(first * query.stride).cast_const(),
            query_stride: query.stride,
            out: out.first.wrapping_add(first * out.stride),
            out_stride: out.stride,
            rows: context.tokens,
            position: context.position,
            tree: context.follows.map(Tree::new),
            keys: context.keys.row(0).cast_const(),
            values: context.values.row(0).cast_const(),
            kv_stride_bytes: context.keys.stride_bytes(),
            element: match keys.element {
                ElementType::Bf16 => KvElement::Bf16,
                _ => KvElement::F32,
            },
        })
    }

    /// A vector of f32 among the weights.
    pub(crate) fn vector(&self, id: ParameterId) -> Option<*const f32> {
        let weight = self.call.weights.get(id.0 as usize)?;
        Some(weight.values.as_ptr().cast())
    }

    /// Address in scratch memory that is an element of it for calls of one row.
    pub(crate) fn scratch_at(&self, first: usize) -> *mut f32 {
        let elements = self.scratch.0.cast::<f32>();
        elements.wrapping_add(first * self.call.rows)
    }

    /// The rows of a buffer that has them at one distance.
    fn strided(&self, id: BufferId) -> Option<Strided> {
        match self.kernel.layouts.get(id.0 as usize)? {
            Layout::Plain(first) => Some(Strided {
                first: self.scratch_at(*first),
                stride: plain_stride(self.kernel.width(id)),
            }),
            Layout::Input(port) => self.port_rows(*port, self.call.inputs),
            Layout::Output(port) => self.port_rows(*port, self.call.outputs),
            Layout::Rounded(..) => None,
        }
    }

    /// The rows of a port that is one run.
    fn port_rows(&self, port: usize, ports: &[&[crate::ProgramRows<'_>]]) -> Option<Strided> {
        let run = ports.get(port)?.first()?;
        Some(Strided {
            first: run.row(0).cast(),
            stride: run.stride_bytes() / size_of::<f32>(),
        })
    }
}

/// Elements from a row of scratch memory to the next.
pub(crate) const fn plain_stride(width: usize) -> usize {
    // Widths come from buffers, where they are 32 bits.
    scratch_width(width as u32) as usize
}

/// Pieces that a thread takes of a phase that is not large. Chosen: a thread that was held up leaves a fifth of its
/// share to the others at most.
const PIECES_OF_A_THREAD: usize = 4;

/// Bytes of weights of a piece at most. Chosen: reading them takes some 15 µs, so that taking a piece costs nothing.
const PIECE_BYTES: usize = 1 << 19;

/// Pieces are multiples of this many outputs, as wide as the widest tile of a kernel.
const OUTPUT_STEP: usize = 64;
