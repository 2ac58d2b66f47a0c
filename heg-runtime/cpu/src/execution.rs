//! One call of an order on all threads of a device: phase after phase, in pieces.
//!
//! The assignment of pieces to threads and sides does not affect results: every output is computed by one thread, in an
//! order independent of pieces.

use std::ops::Range;
use std::time::Duration;

use heg_artifacts::manifest::{Parameter, Role};
use heg_artifacts::program::{
    Attention, BufferId, ParameterId, Part, Step, StepPhase, scratch_width,
};

use crate::attention::{self, AttentionCall, AttentionItem, AttentionItems, KvElement, Tree};
use crate::cache_form::CacheForm;
use crate::call::{CpuCall, WeightBytes};
use crate::device::{Address, PerThread};
use crate::division::{AREAS, Area, Division, SIDES, WorkItem, index};
use crate::error::CpuError;
use crate::kernel::{CpuKernel, Layout, Port, PortForm};
use crate::lanes::elements::Element;
use crate::listed::ListedPhase;
use crate::pool::Taken;
use crate::product::{
    FloatProduct, Grouped, IntegerProduct, Residual, Scaling, float_product, integer_product,
    unpack,
};
use heg_spec::{Bug, CutProduct, Isa, Side, bug};

/// A running call.
pub(crate) struct Execution<'a> {
    pub(crate) isa: Isa,
    pub(crate) kernel: &'a CpuKernel,
    pub(crate) call: &'a CpuCall<'a>,
    pub(crate) scratch: Address,
    /// Row addresses by port: inputs, then outputs.
    pub(crate) tables: &'a [Vec<Address>],
    /// Pieces of attention, by side.
    pub(crate) items: [&'a [Item]; 2],
    pub(crate) threads: &'a [PerThread],
    pub(crate) crews: [usize; 2],
    /// The side of a pair that is a partner, if one is.
    pub(crate) partner: Option<Side>,
}

/// A piece of attention: heads and rows of one sequence.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// Index of the sequence.
    context: usize,
    work: AttentionItem,
}

/// A piece that was run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ran {
    /// Multiply-adds of a product; 0 for other phases.
    pub(crate) units: usize,
    /// Time that a partner was busy with it; `None` if no partner was, or none that knows.
    pub(crate) busy: Option<Duration>,
}

/// Rows of a buffer with a constant stride.
#[derive(Clone, Copy)]
pub(crate) struct Strided {
    pub(crate) first: *mut f32,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
}

impl Strided {
    /// The rows from `row` on.
    pub(crate) fn starting_at(self, row: usize) -> Self {
        Self {
            first: self.first.wrapping_add(row * self.stride),
            ..self
        }
    }
}

impl Execution<'_> {
    /// The work of a phase, before it is divided.
    pub(crate) fn work_item(&self, phase: usize) -> WorkItem {
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
        WorkItem {
            product,
            rows,
            columns: parts.first().map_or(0, |part| self.columns(part)),
            tokens: self.call.rows,
            times: [1.0; 2],
            hand_over_ns: [0.0; 2],
            alone: None,
        }
    }

    /// Multiply-adds of a phase's product; 0 if it has none.
    pub(crate) fn units(&self, phase: usize) -> usize {
        let parts = self.parts(phase).iter();
        let weights = parts.map(|part| self.kernel.width(part.out) * self.columns(part));
        weights.sum::<usize>() * self.call.rows
    }

    /// Appends a side's pieces of the call's attention, if it has one.
    pub(crate) fn list_items(
        &self,
        division: Division,
        side: Side,
        items: &mut Vec<Item>,
    ) -> Result<(), Bug> {
        // A kernel of the group may have a product in its place.
        let Some((attributes, out)) = self.kernel.attention() else {
            return Ok(());
        };
        let kv_heads = attributes.kv_heads as usize;
        let areas = (0..AREAS).map(|number| division.area(side, number, kv_heads, self.call.rows));
        for area in areas.filter(|area| !area.outputs.is_empty()) {
            let mut first = 0;
            for (context, sequence) in self.call.contexts.iter().enumerate() {
                let call = self.attention_call(attributes, out, context)?;
                let of_call = |token: usize| token.saturating_sub(first).min(sequence.tokens);
                let part = AttentionItem {
                    kv_heads: area.outputs.clone(),
                    rows: of_call(area.tokens.start)..of_call(area.tokens.end),
                };
                let pieces = AttentionItems::of(&call, part, self.crew(side));
                let item = |index| Item {
                    context,
                    work: pieces.get(index),
                };
                items.extend((0..pieces.len()).map(item));
                first += sequence.tokens;
            }
        }
        Ok(())
    }

    /// Number of pieces of a phase, by side.
    pub(crate) fn pieces(&self, phase: usize, division: Division) -> [usize; 2] {
        SIDES.map(|side| match self.kernel.phases.get(phase) {
            Some(StepPhase::Rows(_)) => {
                let tokens = division.rows(side, self.call.rows).len();
                tokens.div_ceil(self.rows_of_piece(side, tokens))
            }
            Some(StepPhase::Product(_)) => {
                let shares = self.shares(self.parts(phase), division, side);
                let pieces = shares.map(|share| share.pieces).sum();
                match self.partner == Some(side) {
                    // It takes all at once.
                    true => usize::min(pieces, 1),
                    false => pieces,
                }
            }
            Some(StepPhase::Attention(_)) => self.items[index(side)].len(),
            None => 0,
        })
    }

    /// Runs one piece of a phase.
    pub(crate) fn run(&self, taken: Taken, phase: ListedPhase) -> Result<Ran, CpuError> {
        let division = phase.division;
        match self.kernel.phases.get(phase.index) {
            Some(StepPhase::Rows(steps)) => self.rows(taken, steps.clone(), division)?,
            Some(StepPhase::Product(step)) => return self.product(taken, *step, division),
            Some(StepPhase::Attention(step)) => self.attention(taken, *step)?,
            None => return Err(bug!("an order lists a phase that its kernel does not have").into()),
        }
        Ok(Ran::default())
    }

    /// Runs steps on the rows of a piece.
    fn rows(&self, taken: Taken, steps: Range<usize>, division: Division) -> Result<(), Bug> {
        let tokens = division.rows(taken.side, self.call.rows);
        let size = self.rows_of_piece(taken.side, tokens.len());
        let steps = self.kernel.program.steps.get(steps);
        let steps = steps.ok_or_else(|| bug!("a phase has steps behind its program's end"))?;
        let first = tokens.start + taken.piece * size;
        for row in first..tokens.end.min(first + size) {
            for step in steps {
                self.row_step(taken.thread, step, row)?;
            }
        }
        Ok(())
    }

    fn rows_of_piece(&self, side: Side, tokens: usize) -> usize {
        let pieces = self.crew(side) * PIECES_OF_A_THREAD;
        tokens.div_ceil(pieces).max(1)
    }

    /// Number of threads of a side.
    pub(crate) fn crew(&self, side: Side) -> usize {
        self.crews[index(side)].max(1)
    }

    /// The matrices of a phase's product; empty for other phases.
    pub(crate) fn parts(&self, phase: usize) -> &[Part] {
        match self.kernel.phases.get(phase) {
            Some(StepPhase::Product(step)) => match self.kernel.program.steps.get(*step) {
                Some(Step::Product { parts, .. }) => parts,
                _ => &[],
            },
            _ => &[],
        }
    }

    /// Computes a piece of a product.
    fn product(&self, taken: Taken, step: usize, division: Division) -> Result<Ran, CpuError> {
        let mut piece = taken.piece;
        let Some(Step::Product { x, parts }) = self.kernel.program.steps.get(step) else {
            return Err(bug!("the step of a product's phase is no product").into());
        };
        if self.partner == Some(taken.side) {
            return self.partners_piece(taken, step, *x, parts, division);
        }
        for share in self.shares(parts, division, taken.side) {
            if piece < share.pieces {
                let Area { outputs, tokens } = share.area;
                let first = outputs.start + piece * share.size;
                let outputs = first..outputs.end.min(first + share.size);
                let units = outputs.len() * tokens.len() * self.columns(share.part);
                self.multiply(taken.thread, *x, share.part, outputs, tokens)?;
                return Ok(Ran { units, busy: None });
            }
            piece -= share.pieces;
        }
        Err(bug!("a thread took a piece that the product does not have").into())
    }

    /// The weight of a part.
    fn weight(&self, part: &Part) -> Result<(&Parameter, WeightBytes<'_>), Bug> {
        let number = part.weight.0 as usize;
        let parameter = self.kernel.parameters.get(number);
        let weight = parameter.zip(self.call.weights.get(number).copied());
        weight.ok_or_else(|| bug!("a product has no weight"))
    }

    /// Columns of a part's matrix.
    pub(crate) fn columns(&self, part: &Part) -> usize {
        let parameter = self.kernel.parameters.get(part.weight.0 as usize);
        let columns = parameter.and_then(|parameter| parameter.shape.last());
        columns.map_or(0, |columns| *columns as usize)
    }

    pub(crate) fn multiply(
        &self,
        thread: usize,
        x: BufferId,
        part: &Part,
        outputs: Range<usize>,
        tokens: Range<usize>,
    ) -> Result<(), Bug> {
        let (parameter, weight) = self.weight(part)?;
        let first_row = tokens.start;
        let out = self.strided(part.out)?.starting_at(first_row);
        let local = self.local(thread)?;
        let scaling = weight.affine.and_then(|of| Scaling::of(parameter, of));
        let bias = part.bias.map(|bias| self.vector(bias)).transpose()?;
        let residual = self.residual(part, first_row)?;
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
                // SAFETY: `Program::read` checked widths and that buffers do not overlap, `CpuCall::check` that weights
                // and rows exist; each output is in one piece, which one thread has; a thread has its own memory.
                unsafe { integer_product(self.isa, &product, outputs, &mut local.get().panel) };
            }
            (Some(Layout::Plain(first)), scaling) => {
                let (width, x) = (self.kernel.width(x), self.plain(*first, x, first_row));
                let product = FloatProduct {
                    weights: weight.values.as_ptr(),
                    element: Element::of(parameter.element).unwrap_or(Element::F32),
                    affine: scaling.and_then(Scaling::of_rows),
                    width,
                    x: x.first.cast_const(),
                    x_stride: x.stride,
                    rows,
                    bias,
                    residual,
                    out: out.first,
                    out_stride: out.stride,
                };
                // SAFETY: `CpuCall::check` found all rows and weights; one thread has each output;
                // `CpuDevice::make_room` made the thread's own row as wide as any.
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
            _ => {
                return Err(bug!(
                    "the operand of a product is not in the form of its weights"
                ));
            }
        }
        Ok(())
    }

    /// The term that a part's outputs are added to, from `row` on; `None` if it has none.
    pub(crate) fn residual(&self, part: &Part, row: usize) -> Result<Option<Residual>, Bug> {
        let Some(residual) = part.residual else {
            return Ok(None);
        };
        let to = self.strided(residual.to)?.starting_at(row);
        Ok(Some(Residual {
            from: to.first.cast_const(),
            stride: to.stride,
            factor: residual.factor,
        }))
    }

    /// Memory of a thread.
    pub(crate) fn local(&self, thread: usize) -> Result<&PerThread, Bug> {
        let local = self.threads.get(thread);
        local.ok_or_else(|| bug!("a thread has no memory of its own"))
    }

    /// Computes outputs of a product with 4-bit weights in f32: each matrix row is unpacked to `own` first.
    ///
    /// # Safety
    ///
    /// As [`float_product`], with 4-bit weights; `own` has room for the width.
    unsafe fn unpacked_product(
        &self,
        groups: &Grouped,
        product: &FloatProduct,
        outputs: Range<usize>,
        own: *mut f32,
    ) {
        for output in outputs {
            // SAFETY: the matrix has this output, `own` has the width, and terms and results are those of this output
            // alone.
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

    /// Computes a piece of attention.
    fn attention(&self, taken: Taken, step: usize) -> Result<(), Bug> {
        let Some(Step::Attention { attributes, out }) = self.kernel.program.steps.get(step) else {
            return Err(bug!("the step of an attention's phase is no attention"));
        };
        let item = self.items[index(taken.side)].get(taken.piece);
        let item =
            item.ok_or_else(|| bug!("a thread took a piece that attention does not have"))?;
        let local = self.local(taken.thread)?;
        let call = self.attention_call(attributes, *out, item.context)?;
        // SAFETY: `CpuCall::check` found all visible rows; each piece has its own rows and heads, and each thread its
        // own memory.
        unsafe {
            attention::attend(
                self.isa,
                &call,
                item.work.kv_heads.clone(),
                item.work.rows.clone(),
                &mut local.get().attention,
            );
        }
        Ok(())
    }

    fn attention_call(
        &self,
        attributes: &Attention,
        out: BufferId,
        index: usize,
    ) -> Result<AttentionCall<'_>, Bug> {
        let (Some(before), Some(context)) = (
            self.call.contexts.get(..index),
            self.call.contexts.get(index),
        ) else {
            return Err(bug!("attention has no context"));
        };
        let first: usize = before.iter().map(|context| context.tokens).sum();
        let mut inputs = self.kernel.inputs.iter().zip(0..);
        let of_role = |role| move |(port, _): &(&Port, usize)| port.role == role;
        let queries = inputs.find(of_role(Role::Query));
        let (_, queries) = queries.ok_or_else(|| bug!("attention has no queries"))?;
        let query = self.port_rows(queries, self.call.inputs)?;
        let out = self.strided(out)?;
        let mut inputs = self.kernel.inputs.iter().zip(0..);
        let keys = inputs.find(of_role(Role::Key));
        let (keys, _) = keys.ok_or_else(|| bug!("attention has no keys"))?;
        Ok(AttentionCall {
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
            element: match keys.form {
                PortForm::Cache(CacheForm::I8 { .. }) => KvElement::I8,
                PortForm::Cache(CacheForm::Bf16) => KvElement::Bf16,
                _ => KvElement::F32,
            },
        })
    }

    /// A weight that is a vector of f32.
    pub(crate) fn vector(&self, id: ParameterId) -> Result<*const f32, Bug> {
        let weight = self.call.weights.get(id.0 as usize);
        let weight = weight.ok_or_else(|| bug!("a step has no weight"))?;
        Ok(weight.values.as_ptr().cast())
    }

    /// Address of the element that is `first` in calls of one row.
    pub(crate) fn scratch_at(&self, first: usize) -> *mut f32 {
        let elements = self.scratch.0.cast::<f32>();
        elements.wrapping_add(first * self.call.rows)
    }

    /// The rows of a buffer with a constant stride.
    pub(crate) fn strided(&self, id: BufferId) -> Result<Strided, Bug> {
        match self.kernel.layouts.get(id.0 as usize) {
            Some(Layout::Plain(first)) => Ok(self.plain(*first, id, 0)),
            Some(Layout::Input(port)) => self.port_rows(*port, self.call.inputs),
            Some(Layout::Output(port)) => self.port_rows(*port, self.call.outputs),
            Some(Layout::Rounded(..)) | None => Err(bug!("a buffer has no rows of one stride")),
        }
    }

    /// Rows of a buffer in scratch memory, from `row` on.
    pub(crate) fn plain(&self, first: usize, id: BufferId, row: usize) -> Strided {
        let rows = Strided {
            first: self.scratch_at(first),
            stride: plain_stride(self.kernel.width(id)),
        };
        rows.starting_at(row)
    }

    /// The rows of a port that is a single run.
    fn port_rows(&self, port: usize, ports: &[&[crate::ProgramRows<'_>]]) -> Result<Strided, Bug> {
        let Some([run]) = ports.get(port) else {
            return Err(bug!("a port that is read by one stride is no single run"));
        };
        Ok(Strided {
            first: run.row(0).cast(),
            stride: run.stride_bytes() / size_of::<f32>(),
        })
    }
}

/// Elements from one row of scratch memory to the next.
pub(crate) const fn plain_stride(width: usize) -> usize {
    // Widths come from buffers, which store them in 32 bits.
    scratch_width(width as u32) as usize
}

/// Pieces per thread in a phase that is not large. Chosen: a thread that was held up leaves at most a fifth of its
/// share to the others.
pub(crate) const PIECES_OF_A_THREAD: usize = 4;
