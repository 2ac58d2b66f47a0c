//! Launches carried out: a launch finds the form that fits, its tensors are bound, and it runs.
//!
//! Copies are made in two cases only, both of a few rows: keys and values of a batch of several sequences, which
//! belong to different caches, and rotary rows that are not contiguous in their table. A single token is treated
//! as such a batch: a row is copied in less time than OpenVINO takes to be told of a tensor elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use heg_artifacts::manifest::{Group, Role};
use heg_openvino::{Progress, Request, Tensor};

use super::Executor;
use super::loader::Form;
use super::place::{Place, place_use, shared_place, unknown};
use crate::error::{RuntimeError, openvino};
use crate::mem::{Activations, Half, KvCache};
use crate::sched::{Launch, Span};

/// What launches work on: consecutive rows of activations, and the cache of each span.
pub(crate) struct Batch<'a> {
    pub(crate) rows: &'a Activations,
    pub(crate) caches: &'a [&'a KvCache],
    pub(crate) spans: &'a [Span],
}

impl Batch<'_> {
    /// First row.
    fn first(&self) -> usize {
        self.spans.first().map_or(0, |span| span.row)
    }

    /// Rows that the spans fill.
    fn tokens(&self) -> usize {
        self.spans.iter().map(|span| span.tokens).sum()
    }
}

impl Executor {
    /// Carries out one launch.
    pub(crate) fn launch(&mut self, launch: Launch, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        match (launch.group, launch.layer) {
            (Group::Qkv, Some(layer)) => self.qkv(launch, layer as usize, batch),
            (Group::Mha, Some(layer)) => self.mha(launch, layer as usize, batch),
            (Group::Ffn, Some(layer)) => self.ffn(launch, layer as usize, batch),
            (Group::Head, None) => self.head(launch, batch),
            (group, layer) => Err(RuntimeError::Launch { group, layer }),
        }
    }

    /// Norm, projections, RoPE. Keys and values of one sequence's chunk go straight into its cache.
    fn qkv(&mut self, launch: Launch, layer: usize, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        let (first, tokens) = (batch.first(), batch.tokens());
        let rope = place_use(self.bundle.manifest(), Place::from(launch))?.rope;
        let rows = self.form_rows(launch, tokens)?;
        let table = rope.and_then(|id| self.bundle.manifest().rope.get(id.0 as usize));
        let rotary = table
            .map(|table| self.rotary.rows(table, batch.spans, rows))
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
        self.run(launch, (tokens, 0), inputs, vec![query, keys, values])?;
        if batch.spans.len() > 1 || tokens == 1 {
            self.scatter(layer, batch)?;
        }
        Ok(())
    }

    /// Copies the keys and values of a batch to the caches they belong to.
    fn scatter(&mut self, layer: usize, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        let first = batch.first();
        let mut row = std::mem::take(&mut self.row);
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
        self.row = row;
        Ok(())
    }

    /// Attention of one sequence over its cache.
    ///
    /// It is given more rows than are visible, which the kernel masks: a static form's bucket, or as many that the
    /// shape of a dynamic one changes only every [`CONTEXT_STEP`] tokens.
    fn mha(&mut self, launch: Launch, layer: usize, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        let index = launch.span.unwrap_or(0);
        let (Some(cache), Some(span)) = (batch.caches.get(index), batch.spans.get(index)) else {
            return Err(unknown(Place::from(launch)));
        };
        let visible = span.position + span.tokens;
        let form = self.form(launch, span.tokens, visible)?;
        let (rows, context) = (
            form.rows(span.tokens),
            form.context(visible.next_multiple_of(CONTEXT_STEP)),
        );
        self.scratch
            .position
            .write_row(0, &(span.position as i64).to_le_bytes())?;
        let inputs = vec![
            (Role::Query, batch.rows.query.view(span.row, rows)?),
            (Role::Key, cache.rows(layer, Half::Keys, 0, context)?),
            (Role::Value, cache.rows(layer, Half::Values, 0, context)?),
            (Role::Position, self.scratch.position.vector(1)?),
        ];
        // Rows behind the span's own are those of spans that follow: they are written after.
        let attended = batch.rows.attended.view(span.row, rows)?;
        self.run(launch, (span.tokens, visible), inputs, vec![attended])
    }

    /// Output projection to the end of the layer; the residual stream changes halves.
    fn ffn(&mut self, launch: Launch, layer: usize, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        let (first, tokens) = (batch.first(), batch.tokens());
        let rows = self.form_rows(launch, tokens)?;
        let [from, to] = [layer % 2, (layer + 1) % 2].map(|half| &batch.rows.hidden[half]);
        let inputs = vec![
            (Role::Attended, batch.rows.attended.view(first, rows)?),
            (Role::Hidden, from.view(first, rows)?),
        ];
        let output = to.view(first, rows)?;
        self.run(launch, (tokens, 0), inputs, vec![output])
    }

    /// Logits of the last row of each span.
    fn head(&mut self, launch: Launch, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        let rows = self.form_rows(launch, batch.spans.len())?;
        let layers = self.manifest().layers.len();
        let hidden = &batch.rows.hidden[layers % 2];
        let mut row = std::mem::take(&mut self.row);
        row.resize(hidden.row_bytes(), 0);
        for (index, span) in batch.spans.iter().enumerate() {
            hidden.read_row(span.row + span.tokens - 1, &mut row)?;
            self.scratch.last.write_row(index, &row)?;
        }
        self.row = row;
        let last = self.scratch.last.view(0, rows)?;
        let logits = self.scratch.logits.view(0, rows)?;
        self.run(
            launch,
            (batch.spans.len(), 0),
            vec![(Role::Hidden, last)],
            vec![logits],
        )
    }

    /// Rows that the form for `tokens` tokens computes: those, or a static form's chunk.
    fn form_rows(&mut self, launch: Launch, tokens: usize) -> Result<usize, RuntimeError> {
        let available = self.rows;
        let form = self.form(launch, tokens, 0)?;
        let rows = form.rows(tokens);
        if rows <= available {
            Ok(rows)
        } else {
            Err(RuntimeError::Batch {
                asked: rows,
                rows: available,
            })
        }
    }

    /// The form for `tokens` tokens over `context` visible rows of the cache; 0 where no cache is read.
    fn form(
        &mut self,
        launch: Launch,
        tokens: usize,
        context: usize,
    ) -> Result<&mut Form, RuntimeError> {
        let place = Place::from(launch);
        let place = shared_place(self.bundle.manifest(), place);
        let prepared = self.ready.get_mut(&place).ok_or(RuntimeError::LoaderGone)?;
        let fits = |form: &&mut Form| form.shape.admits(tokens, context);
        prepared
            .forms
            .iter_mut()
            .find(fits)
            .ok_or(RuntimeError::Launch {
                group: launch.group,
                layer: launch.layer,
            })
    }

    /// Binds tensors by role and runs the form that fits.
    fn run(
        &mut self,
        launch: Launch,
        (tokens, context): (usize, usize),
        mut inputs: Vec<(Role, Tensor)>,
        outputs: Vec<Tensor>,
    ) -> Result<(), RuntimeError> {
        let place = Place::from(launch);
        let bundle = Arc::clone(&self.bundle);
        let used = place_use(bundle.manifest(), place)?;
        let kernel = &bundle.manifest().kernels[used.kernel.0 as usize];
        let doing = || format!("run kernel `{}`", kernel.name);
        let cancel = self.cancel.clone();
        let form = self.form(launch, tokens, context)?;
        for (index, port) in kernel.inputs.iter().enumerate() {
            let given = inputs.iter().position(|(role, _)| *role == port.role);
            let Some(given) = given else {
                return Err(RuntimeError::Launch {
                    group: launch.group,
                    layer: launch.layer,
                });
            };
            let (_, tensor) = inputs.swap_remove(given);
            form.request
                .bind_input(index, tensor)
                .map_err(|e| openvino(doing())(e))?;
        }
        for (index, tensor) in outputs.into_iter().enumerate() {
            form.request
                .bind_output(index, tensor)
                .map_err(|e| openvino(doing())(e))?;
        }
        match cancel {
            Some(cancel) => infer_unless(&mut form.request, &cancel),
            None => form.request.infer(),
        }
        .map_err(|e| openvino(doing())(e))?;
        let place = shared_place(bundle.manifest(), place);
        match self.ready.get_mut(&place) {
            Some(prepared) => prepared.give_back(&bundle),
            None => Ok(()),
        }
    }
}

/// The attention's context grows by this many tokens at a time. Chosen: at most 31 masked rows, which cost
/// less than planning for a new shape each token (1.2 ms of 54 ms a token, 1B model, two cores).
pub(crate) const CONTEXT_STEP: usize = 32;

/// Runs to the end, or until `cancel` is set and the device has given up.
fn infer_unless(request: &mut Request, cancel: &AtomicBool) -> Result<(), heg_openvino::Error> {
    request.start()?;
    while request.wait(Some(PATIENCE))? == Progress::Pending {
        if cancel.load(Ordering::Relaxed) {
            request.cancel()?;
        }
    }
    Ok(())
}

/// How often somebody looks whether a kernel should be cancelled.
const PATIENCE: Duration = Duration::from_millis(100);
