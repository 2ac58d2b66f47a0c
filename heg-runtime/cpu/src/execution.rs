//! One call of an order on all threads of a device: phase after phase, each in pieces.
//!
//! Which thread takes which piece, and of which side, changes nothing in the results: every output is computed by one
//! thread, in an order that knows nothing of pieces.

use std::ops::Range;

use heg_artifacts::manifest::{ElementType, Role};
use heg_artifacts::program::{
    Attention, BufferId, ParameterId, Part, Step, StepPhase, scratch_width,
};

use crate::attention::{self, AttentionCall, KvElement, Tree, WorkItem, WorkItems};
use crate::call::{Context, CpuCall};
use crate::device::{Address, OfThread};
use crate::division::{AREAS, Area, Division, SIDES, Uncut, index};
use crate::kernel::{Kernel, Layout};
use crate::lanes::elements::Element;
use crate::listed::ListedPhase;
use crate::product::{
    FloatProduct, Grouped, IntegerProduct, Residual, Scaling, float_product, integer_product,
    unpack,
};
use heg_spec::{CutProduct, Isa, Side};

/// A call that is under way.
pub(crate) struct Execution<'a> {
    pub(crate) isa: Isa,
    pub(crate) kernel: &'a Kernel,
    pub(crate) call: &'a CpuCall<'a>,
    pub(crate) scratch: Address,
    /// Addresses of rows, by port: inputs, then outputs.
    pub(crate) tables: &'a [Vec<Address>],
    /// Pieces of its attention, of each side.
    pub(crate) items: [&'a [Item]; 2],
    pub(crate) threads: &'a [OfThread],
    /// Number of threads of each side.
    pub(crate) crews: [usize; 2],
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

impl Strided {
    /// The rows from `row` on.
    fn starting_at(self, row: usize) -> Self {
        Self {
            first: self.first.wrapping_add(row * self.stride),
            ..self
        }
    }
}

impl Execution<'_> {
    /// A phase before it is cut.
    pub(crate) fn uncut(&self, phase: usize) -> Uncut {
        let product = self.kernel.cut_products.get(phase).copied().flatten();
        let parts = self.parts(phase);
        let widths = parts.iter().map(|part| self.kernel.width(part.out));
        let rows = match product {
            Some(CutProduct::Attention) => {
                let attention = self.kernel.attention();
                attention.map_or(0, |(attention, _)| attention.kv_heads as usize)
            }
            Some(CutProduct::GateUp) => widths.max().unwrap_or(0),
            _ => widths.sum(),
        };
        Uncut {
            product,
            rows,
            columns: parts.first().map_or(0, |part| self.columns(part)),
            tokens: self.call.rows,
            times: [1.0; 2],
            alone: None,
        }
    }

    /// Adds a side's pieces of the call's attention, if it has one.
    pub(crate) fn list_items(&self, division: Division, side: Side, items: &mut Vec<Item>) {
        let Some((attributes, out)) = self.kernel.attention() else {
            return;
        };
        let kv_heads = attributes.kv_heads as usize;
        let areas = (0..AREAS).map(|number| division.area(side, number, kv_heads, self.call.rows));
        for area in areas.filter(|area| !area.outputs.is_empty()) {
            let mut first = 0;
            for (context, sequence) in self.call.contexts.iter().enumerate() {
                let Some(call) = self.attention_call(attributes, out, context) else {
                    return;
                };
                let of_call = |token: usize| token.saturating_sub(first).min(sequence.tokens);
                let part = WorkItem {
                    kv_heads: area.outputs.clone(),
                    rows: of_call(area.tokens.start)..of_call(area.tokens.end),
                };
                let pieces = WorkItems::of(&call, part, self.crew(side));
                let item = |index| Item {
                    context,
                    work: pieces.get(index),
                };
                items.extend((0..pieces.len()).map(item));
                first += sequence.tokens;
            }
        }
    }

    /// Number of pieces of a phase, for each side.
    pub(crate) fn pieces(&self, phase: usize, division: Division) -> [usize; 2] {
        SIDES.map(|side| match self.kernel.phases.get(phase) {
            Some(StepPhase::Rows(_)) => {
                let tokens = division.rows(side, self.call.rows).len();
                tokens.div_ceil(self.rows_of_piece(side, tokens))
            }
            Some(StepPhase::Product(_)) => {
                let shares = self.shares(self.parts(phase), division, side);
                shares.map(|share| share.pieces).sum()
            }
            Some(StepPhase::Attention(_)) => self.items[index(side)].len(),
            None => 0,
        })
    }

    /// Works on a side's piece of a phase. Returns the work in it that products are, each of a weight and an activation.
    pub(crate) fn run(&self, thread: usize, phase: ListedPhase, side: Side, piece: usize) -> usize {
        let division = phase.division;
        match self.kernel.phases.get(phase.index) {
            Some(StepPhase::Rows(steps)) => {
                let tokens = division.rows(side, self.call.rows);
                self.rows(thread, steps.clone(), (tokens, side), piece);
            }
            Some(StepPhase::Product(step)) => {
                return self.product(thread, *step, (division, side), piece);
            }
            Some(StepPhase::Attention(step)) => self.attention(thread, *step, side, piece),
            None => {}
        }
        0
    }

    /// Runs steps on some rows.
    fn rows(
        &self,
        thread: usize,
        steps: Range<usize>,
        (tokens, side): (Range<usize>, Side),
        piece: usize,
    ) {
        let size = self.rows_of_piece(side, tokens.len());
        let steps = self.kernel.program.steps.get(steps).unwrap_or_default();
        let first = tokens.start + piece * size;
        for row in first..tokens.end.min(first + size) {
            for step in steps {
                self.row_step(thread, step, row);
            }
        }
    }

    fn rows_of_piece(&self, side: Side, tokens: usize) -> usize {
        let pieces = self.crew(side) * PIECES_OF_A_THREAD;
        tokens.div_ceil(pieces).max(1)
    }

    /// Number of threads of a side.
    pub(crate) fn crew(&self, side: Side) -> usize {
        self.crews[index(side)].max(1)
    }

    /// The parts of a phase's product; none of another phase.
    fn parts(&self, phase: usize) -> &[Part] {
        match self.kernel.phases.get(phase) {
            Some(StepPhase::Product(step)) => match self.kernel.program.steps.get(*step) {
                Some(Step::Product { parts, .. }) => parts,
                _ => &[],
            },
            _ => &[],
        }
    }

    /// Computes some outputs of a product.
    fn product(
        &self,
        thread: usize,
        step: usize,
        (division, side): (Division, Side),
        mut piece: usize,
    ) -> usize {
        let Some(Step::Product { x, parts }) = self.kernel.program.steps.get(step) else {
            return 0;
        };
        for share in self.shares(parts, division, side) {
            if piece < share.pieces {
                let Area { outputs, tokens } = share.area;
                let first = outputs.start + piece * share.size;
                let outputs = first..outputs.end.min(first + share.size);
                let work = outputs.len() * tokens.len() * self.columns(share.part);
                self.multiply(thread, *x, share.part, outputs, tokens);
                return work;
            }
            piece -= share.pieces;
        }
        0
    }

    /// Columns of a part's matrix.
    fn columns(&self, part: &Part) -> usize {
        let parameter = self.kernel.parameters.get(part.weight.0 as usize);
        let columns = parameter.and_then(|parameter| parameter.shape.last());
        columns.map_or(0, |columns| *columns as usize)
    }

    fn multiply(
        &self,
        thread: usize,
        x: BufferId,
        part: &Part,
        outputs: Range<usize>,
        tokens: Range<usize>,
    ) {
        let Some(parameter) = self.kernel.parameters.get(part.weight.0 as usize) else {
            return;
        };
        let Some(weight) = self.call.weights.get(part.weight.0 as usize) else {
            return;
        };
        let first_row = tokens.start;
        let out = self.strided(part.out);
        let out = out.map(|out| out.starting_at(first_row));
        let (Some(out), Some(local)) = (out, self.threads.get(thread)) else {
            return;
        };
        let scaling = weight.affine.and_then(|of| Scaling::of(parameter, of));
        let bias = part.bias.and_then(|bias| self.vector(bias));
        let residual = self.residual(part, first_row);
        let rows = tokens.len();
        match (self.kernel.layouts.get(x.0 as usize), scaling) {
            (Some(Layout::Rounded(first, form)), Some(scaling)) => {
                let product = IntegerProduct {
                    weights: weight.values.as_ptr().cast(),
                    scaling,
                    form: *form,
                    operand: self.scratch_at(*first).cast_const().cast(),
                    operand_rows: self.call.rows,
                    first_row,
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
            (Some(Layout::Plain(first)), scaling) => {
                let affine = match scaling {
                    Some(Scaling::Rows(affine)) => Some(affine),
                    Some(Scaling::Groups(_)) | None => None,
                };
                let (width, x) = (self.kernel.width(x), self.plain(*first, x, first_row));
                let product = FloatProduct {
                    weights: weight.values.as_ptr(),
                    element: Element::of(parameter.element).unwrap_or(Element::F32),
                    affine,
                    width,
                    x: x.first.cast_const(),
                    x_stride: x.stride,
                    rows,
                    bias,
                    residual,
                    out: out.first,
                    out_stride: out.stride,
                };
                // SAFETY: as above; `CpuDevice::make_room` made the thread's own row as wide as any.
                unsafe {
                    match scaling {
                        Some(Scaling::Groups(groups)) => {
                            let own = local.get().row.as_ptr().cast();
                            self.unpacked_product(&groups, &product, outputs, own);
                        }
                        _ => float_product(self.isa, &product, outputs),
                    }
                }
            }
            _ => {}
        }
    }

    /// What a part's outputs are added to, from a row on.
    fn residual(&self, part: &Part, row: usize) -> Option<Residual> {
        let residual = part.residual?;
        let to = self.strided(residual.to)?.starting_at(row);
        Some(Residual {
            from: to.first.cast_const(),
            stride: to.stride,
            factor: residual.factor,
        })
    }

    /// Computes outputs of a product with weights of half a byte in f32, each of a row that is unpacked to `own`.
    ///
    /// # Safety
    ///
    /// As [`float_product`], but that weights are such; `own` has the width.
    unsafe fn unpacked_product(
        &self,
        groups: &Grouped,
        product: &FloatProduct,
        outputs: Range<usize>,
        own: *mut f32,
    ) {
        for output in outputs {
            // SAFETY: passed on; the one output has the terms and results of this one.
            unsafe {
                unpack(groups, product.weights, product.width, output, own);
                let one = FloatProduct {
                    weights: own.cast_const().cast(),
                    bias: product.bias.map(|bias| bias.add(output)),
                    residual: product.residual.map(|residual| Residual {
                        from: residual.from.add(output),
                        ..residual
                    }),
                    out: product.out.add(output),
                    ..*product
                };
                float_product(self.isa, &one, 0..1);
            }
        }
    }

    /// Works on one item of attention.
    fn attention(&self, thread: usize, step: usize, side: Side, piece: usize) {
        let Some(Step::Attention { attributes, out }) = self.kernel.program.steps.get(step) else {
            return;
        };
        let item = self.items[index(side)].get(piece);
        let (Some(item), Some(local)) = (item, self.threads.get(thread)) else {
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
            Layout::Plain(first) => Some(self.plain(*first, id, 0)),
            Layout::Input(port) => self.port_rows(*port, self.call.inputs),
            Layout::Output(port) => self.port_rows(*port, self.call.outputs),
            Layout::Rounded(..) => None,
        }
    }

    /// Rows of a buffer in scratch memory, from `row` on.
    fn plain(&self, first: usize, id: BufferId, row: usize) -> Strided {
        let rows = Strided {
            first: self.scratch_at(first),
            stride: plain_stride(self.kernel.width(id)),
        };
        rows.starting_at(row)
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
pub(crate) const PIECES_OF_A_THREAD: usize = 4;
