//! Runs launches on OpenVINO: finds the form that fits, binds its tensors, and runs it.
//!
//! Rows are copied in two cases only, and only a few: keys and values of a batch of several sequences, which belong to
//! different caches, and rotary rows that are not contiguous in their table. A single token is treated like such a
//! batch, because copying a row takes less time than binding a tensor at another address.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{Kernel, Role};
use heg_openvino::{InferRequest, Tensor};
use heg_spec::Group;

use super::form::PluginForm;
use super::marks::{MarkedRows, Marks};
use super::rotary::RotaryRows;
use super::watch::{DeviceWatch, RunError};
use crate::batch::Batch;
use crate::error::{ExecError, Loss, chain, last_line, openvino};
use crate::mem::{ActivationRows, Half, KvCache, RowBuffer, Scratch};
use crate::padding::CONTEXT_STEP;
use crate::table::{FormTable, Target};
use heg_sched::{Class, Launch, Span};

/// An order that is being carried out.
pub(super) struct Running<'a> {
    pub(super) bundle: &'a Bundle,
    pub(super) rotary: &'a RotaryRows,
    /// A row that is being copied.
    pub(super) row: &'a mut Vec<u8>,
    /// Most rows of a call, including padding.
    pub(super) rows: usize,
    pub(super) forms: &'a mut FormTable,
    pub(super) scratch: &'a Scratch,
    pub(super) class: Option<Class>,
    pub(super) cancel: Option<&'a AtomicBool>,
    /// The watch over the device that a kernel of the launch ran on last.
    pub(super) watch: Option<Arc<DeviceWatch>>,
}

impl Running<'_> {
    /// Runs one launch, and again if its device fails or gives no result: kernels write nothing that they read, so it gives
    /// the same.
    ///
    /// # Errors
    ///
    /// [`ExecError::DeviceLost`] if the device fails again.
    pub(super) fn launch_again(
        &mut self,
        launch: Launch,
        batch: &Batch<'_>,
    ) -> Result<(), ExecError> {
        match self.launch(launch, batch) {
            Err(error) if self.may_pass(&error) => {}
            outcome => return outcome,
        }
        self.launch(launch, batch).map_err(|error| {
            let watch = self.watch.as_ref().filter(|_| self.may_pass(&error));
            match (watch, error) {
                (Some(watch), ExecError::OpenVino { doing, source }) => {
                    watch.lose(Loss::Failed, format!("{doing}: {}", last_line(&source)))
                }
                (Some(watch), error) => watch.lose(Loss::Failed, chain(&error)),
                (None, error) => error,
            }
        })
    }

    fn may_pass(&self, error: &ExecError) -> bool {
        let watch = self.watch.as_ref();
        watch.is_some_and(|watch| watch.may_pass(error))
    }

    /// Runs one launch.
    pub(super) fn launch(&mut self, launch: Launch, batch: &Batch<'_>) -> Result<(), ExecError> {
        let target = self.forms.target(launch)?;
        match (launch.group, launch.layer) {
            (Group::Qkv, Some(layer)) => self.qkv_in_calls(target, layer as usize, batch),
            (Group::Mha, Some(layer)) => self.mha(target, layer as usize, batch),
            (Group::Ffn, Some(layer)) => self.ffn(target, layer as usize, batch),
            (Group::Head, None) => self.head(target, batch),
            (group, layer) => Err(ExecError::Launch { group, layer }),
        }
    }

    /// `qkv` in as many calls as its form takes rows: those of prompts are many where a block has its short graph.
    fn qkv_in_calls(
        &mut self,
        target: Target,
        layer: usize,
        batch: &Batch<'_>,
    ) -> Result<(), ExecError> {
        let most = self.forms.prepared(target)?.tokens_max();
        let positions: Vec<usize> = batch.positions().collect();
        if batch.tokens() <= most {
            return self.qkv(target, layer, batch, &positions);
        }
        let mut left = positions.as_slice();
        for calls in batch.cut(most) {
            let caches: Vec<&KvCache> = calls
                .iter()
                .filter_map(|(sequence, _)| batch.caches.get(*sequence).copied())
                .collect();
            let spans: Vec<Span> = calls.iter().map(|(_, span)| *span).collect();
            let some = Batch {
                rows: batch.rows,
                caches: &caches,
                spans: &spans,
                trees: &[],
            };
            let (here, rest) = left.split_at(some.tokens().min(left.len()));
            left = rest;
            self.qkv(target, layer, &some, here)?;
        }
        Ok(())
    }

    /// Norm, projections, RoPE. Keys and values of one sequence's chunk go straight into its cache.
    fn qkv(
        &mut self,
        target: Target,
        layer: usize,
        batch: &Batch<'_>,
        positions: &[usize],
    ) -> Result<(), ExecError> {
        let (first, tokens) = (batch.first(), batch.tokens());
        let rows = self.form_rows(target, tokens)?;
        let rotary = target
            .rope(self.bundle.manifest())
            .map(|table| self.rotary.rows(table, positions, rows))
            .transpose()?;
        let hidden = batch.rows.hidden[layer % 2].view(first, rows)?;
        let query = batch.rows.query.view(first, rows)?;
        let (keys, values) = match (batch.caches, batch.spans) {
            ([cache], [span]) if span.tokens > 1 => (
                cache.rows(layer, Half::Keys, span.position, rows)?,
                cache.rows(layer, Half::Values, span.position, rows)?,
            ),
            _ => (
                self.scratch.keys.view(0, rows)?,
                self.scratch.values.view(0, rows)?,
            ),
        };
        let mut inputs = vec![(Role::Hidden, hidden)];
        inputs.extend(
            rotary
                .into_iter()
                .flat_map(|(cos, sin)| [(Role::Cos, cos), (Role::Sin, sin)]),
        );
        let written = MarkedRows::new(&batch.rows.query, first, tokens);
        self.run(
            target,
            (tokens, 0),
            inputs,
            vec![query, keys, values],
            written,
        )?;
        if batch.spans.len() > 1 || tokens == 1 {
            self.scatter(layer, batch)?;
        }
        Ok(())
    }

    /// Copies the keys and values of a batch to the caches they belong to.
    fn scatter(&mut self, layer: usize, batch: &Batch<'_>) -> Result<(), ExecError> {
        let first = batch.first();
        let mut row = std::mem::take(self.row);
        row.resize(self.scratch.keys.row_bytes(), 0);
        for (cache, span) in batch.caches.iter().zip(batch.spans) {
            for token in 0..span.tokens {
                for (half, from) in [
                    (Half::Keys, &self.scratch.keys),
                    (Half::Values, &self.scratch.values),
                ] {
                    from.read_row(span.row - first + token, &mut row)?;
                    cache.write_row(layer, half, span.position + token, &row)?;
                }
            }
        }
        *self.row = row;
        Ok(())
    }

    /// Attention of each sequence over its own cache; one sequence after the other.
    fn mha(&mut self, target: Target, layer: usize, batch: &Batch<'_>) -> Result<(), ExecError> {
        if batch.caches.len() < batch.spans.len() {
            return Err(target.unknown());
        }
        let calls: Vec<Attention<'_>> = batch
            .caches
            .iter()
            .zip(batch.spans)
            .enumerate()
            .map(|(index, (cache, span))| Attention {
                rows: batch.rows,
                cache,
                layer,
                span: *span,
                tree: batch.tree(index),
            })
            .collect();
        calls.iter().try_for_each(|call| self.attend(target, call))
    }

    /// Attention of one sequence.
    fn attend(&mut self, target: Target, call: &Attention<'_>) -> Result<(), ExecError> {
        let (tokens, visible) = (call.span.tokens, call.visible());
        let form = self.forms.form(target, tokens, visible)?;
        let (rows, context) = (form.rows(tokens), form.context(call.context()));
        let runner = PluginForm::of_mut(&mut *form.runner).ok_or(target.unknown())?;
        match (&mut runner.tree, call.tree) {
            (Some(tree), follows) => tree.set(follows.unwrap_or_default())?,
            (None, Some(_)) => return Err(ExecError::Tree),
            (None, None) => {}
        }
        let inputs = call.inputs(rows, context, &self.scratch.position)?;
        // Rows behind the span's own are those of spans that follow: they are written after.
        let attended = call.rows.attended.view(call.span.row, rows)?;
        let written = MarkedRows::new(&call.rows.attended, call.span.row, tokens);
        self.run(target, (tokens, visible), inputs, vec![attended], written)
    }

    /// Output projection and MLP: the rest of the layer. The residual stream moves to its other buffer.
    fn ffn(&mut self, target: Target, layer: usize, batch: &Batch<'_>) -> Result<(), ExecError> {
        let [from, to] = [layer % 2, (layer + 1) % 2].map(|half| &batch.rows.hidden[half]);
        let end = batch.first() + batch.tokens();
        let step = self.forms.prepared(target)?.tokens_max();
        for first in (batch.first()..end).step_by(step) {
            let tokens = step.min(end - first);
            let rows = self.form_rows(target, tokens)?;
            let inputs = vec![
                (Role::Attended, batch.rows.attended.view(first, rows)?),
                (Role::Hidden, from.view(first, rows)?),
            ];
            let output = to.view(first, rows)?;
            let written = MarkedRows::new(to, first, tokens);
            self.run(target, (tokens, 0), inputs, vec![output], written)?;
        }
        Ok(())
    }

    /// Logits of the last row of each span.
    fn head(&mut self, target: Target, batch: &Batch<'_>) -> Result<(), ExecError> {
        let rows = self.form_rows(target, batch.spans.len())?;
        let layers = self.bundle.manifest().layers.len();
        let hidden = &batch.rows.hidden[layers % 2];
        let mut row = std::mem::take(self.row);
        row.resize(hidden.row_bytes(), 0);
        for (index, span) in batch.spans.iter().enumerate() {
            hidden.read_row(span.row + span.tokens - 1, &mut row)?;
            self.scratch.last.write_row(index, &row)?;
        }
        *self.row = row;
        let last = self.scratch.last.view(0, rows)?;
        let logits = self.scratch.logits.view(0, rows)?;
        let spans = batch.spans.len();
        let written = MarkedRows::new(&self.scratch.logits, 0, spans);
        self.run(
            target,
            (spans, 0),
            vec![(Role::Hidden, last)],
            vec![logits],
            written,
        )
    }

    /// Rows that the form for `tokens` tokens computes: those, or a static form's chunk.
    fn form_rows(&mut self, target: Target, tokens: usize) -> Result<usize, ExecError> {
        let available = self.rows;
        let form = self.forms.form(target, tokens, 0)?;
        let rows = form.rows(tokens);
        if rows <= available {
            Ok(rows)
        } else {
            Err(ExecError::Batch {
                asked: rows,
                rows: available,
            })
        }
    }

    /// Binds tensors by role and runs the form that fits, which is to write rows.
    fn run(
        &mut self,
        target: Target,
        (tokens, context): (usize, usize),
        inputs: Vec<(Role, Tensor)>,
        outputs: Vec<Tensor>,
        written: MarkedRows<'_>,
    ) -> Result<(), ExecError> {
        let kernel = target.kernel(self.bundle.manifest())?;
        let form = self.forms.form(target, tokens, context)?;
        let form = PluginForm::of_mut(&mut *form.runner).ok_or(target.unknown())?;
        if let Some(class) = self.class {
            form.band.select(class, form.request.model());
        }
        let watch = self.watch.insert(Arc::clone(&form.watch));
        watch.check()?;
        bind(&mut form.request, target, kernel, inputs, outputs)?;
        let written = watch.may_fail().then_some(written);
        written.map_or(Ok(()), MarkedRows::mark)?;
        watch
            .run(&mut form.request, self.cancel)
            .map_err(|error| match error {
                RunError::Failed(error) => running(kernel)(error),
                RunError::Lost(error) => error,
            })?;
        let found = match written.map_or(Ok(Marks::Numbers), MarkedRows::look)? {
            Marks::Numbers => return Ok(()),
            Marks::NoNumbers => "no numbers",
            Marks::Zeros => "zeros",
        };
        Err(ExecError::NoResult {
            device: watch.device().to_owned(),
            kernel: kernel.name.clone(),
            found,
        })
    }
}

/// Attention of one sequence's new tokens in one layer.
struct Attention<'a> {
    rows: &'a ActivationRows,
    cache: &'a KvCache,
    layer: usize,
    span: Span,
    /// The earlier token that each but the first follows, if that is not always the one before it.
    tree: Option<&'a [u16]>,
}

impl Attention<'_> {
    /// Rows of the cache that its last token sees.
    fn visible(&self) -> usize {
        self.span.position + self.span.tokens
    }

    /// Rows of the cache that a dynamic form is given: more than are visible, which the kernel masks, so that its
    /// shape changes only every [`CONTEXT_STEP`] tokens.
    fn context(&self) -> usize {
        self.visible().next_multiple_of(CONTEXT_STEP)
    }

    /// Inputs of a form that takes `rows` queries and `context` rows of the cache.
    fn inputs(
        &self,
        rows: usize,
        context: usize,
        position: &RowBuffer,
    ) -> Result<Vec<(Role, Tensor)>, ExecError> {
        position.write_row(0, &(self.span.position as i64).to_le_bytes())?;
        let half = |half| self.cache.rows(self.layer, half, 0, context);
        Ok(vec![
            (Role::Query, self.rows.query.view(self.span.row, rows)?),
            (Role::Key, half(Half::Keys)?),
            (Role::Value, half(Half::Values)?),
            (Role::Position, position.vector(1)?),
        ])
    }
}

/// Binds tensors to the ports of a place's kernel: inputs by role, outputs in order.
fn bind(
    request: &mut InferRequest,
    target: Target,
    kernel: &Kernel,
    mut inputs: Vec<(Role, Tensor)>,
    outputs: Vec<Tensor>,
) -> Result<(), ExecError> {
    for (index, port) in kernel.inputs.iter().enumerate() {
        let given = inputs.iter().position(|(role, _)| *role == port.role);
        let Some(given) = given else {
            return Err(target.unknown());
        };
        let (_, tensor) = inputs.swap_remove(given);
        let bound = request.bind_input(index, tensor);
        bound.map_err(running(kernel))?;
    }
    for (index, tensor) in outputs.into_iter().enumerate() {
        let bound = request.bind_output(index, tensor);
        bound.map_err(running(kernel))?;
    }
    Ok(())
}

/// An error of OpenVINO while a kernel was to run.
fn running(kernel: &Kernel) -> impl Fn(heg_openvino::OpenvinoError) -> ExecError {
    let name = &kernel.name;
    move |error| openvino(format!("run kernel `{name}`"))(error)
}
