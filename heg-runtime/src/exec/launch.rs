//! Runs launches: finds the form that fits, binds its tensors, and runs it.
//!
//! Rows are copied in two cases only, and only a few: keys and values of a batch of several sequences, which belong to
//! different caches, and rotary rows that are not contiguous in their table. A single token is treated like such a
//! batch, because copying a row takes less time than binding a tensor at another address.

use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use heg_artifacts::manifest::{Kernel, Role};
use heg_openvino::{InferRequest, Progress, Tensor};
use heg_spec::{DeviceClass, Group};

use super::Executor;
use super::form::Runner;
use super::streams::Slot;
use super::table::Target;
use crate::error::{RuntimeError, openvino};
use crate::mem::{Activations, Half, KvCache, Rows};
use heg_sched::{Launch, Span};

/// The memory that a launch works on: consecutive rows of activations, and the KV cache of each span.
pub(crate) struct Batch<'a> {
    pub(crate) rows: &'a Activations,
    pub(crate) caches: &'a [&'a KvCache],
    pub(crate) spans: &'a [Span],
    /// For spans whose tokens are a tree: of each token but the first, the earlier one that it follows. Only programs run
    /// trees. No entry is needed behind the last tree.
    pub(crate) trees: &'a [Option<&'a [u16]>],
}

impl<'a> Batch<'a> {
    /// How the tokens of a span follow each other, if not one after the other.
    pub(super) fn tree(&self, span: usize) -> Option<&'a [u16]> {
        self.trees.get(span).copied().flatten()
    }

    /// First row.
    pub(super) fn first(&self) -> usize {
        self.spans.first().map_or(0, |span| span.row)
    }

    /// Rows that the spans fill.
    pub(super) fn tokens(&self) -> usize {
        self.spans.iter().map(|span| span.tokens).sum()
    }

    /// The spans in runs of at most so many rows, each part with the index of its sequence.
    fn cut(&self, rows: usize) -> Vec<Vec<(usize, Span)>> {
        let mut runs = vec![Vec::new()];
        let mut room = rows;
        for (sequence, span) in self.spans.iter().enumerate() {
            let mut done = 0;
            while done < span.tokens {
                if room == 0 {
                    runs.push(Vec::new());
                    room = rows;
                }
                let tokens = room.min(span.tokens - done);
                let part = Span {
                    row: span.row + done,
                    tokens,
                    position: span.position + done,
                };
                if let Some(run) = runs.last_mut() {
                    run.push((sequence, part));
                }
                (done, room) = (done + tokens, room - tokens);
            }
        }
        runs
    }

    /// Rows of the longest cache that a span sees.
    pub(super) fn longest_context(&self) -> usize {
        let visible = self.spans.iter().map(|span| span.position + span.tokens);
        visible.max().unwrap_or(0)
    }
}

/// Says, while a launch ends, whether this one is to follow.
pub(crate) type GoesOn<'a> = dyn Fn(Launch) -> bool + Sync + 'a;

impl Executor {
    /// Runs one launch.
    pub(crate) fn launch(&mut self, launch: Launch, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        self.launch_all(&[launch], batch, &|_| true)?;
        Ok(())
    }

    /// Runs launches over the same rows one after the other, and returns the number of those that ran. A processor of
    /// programs gets those of its launches that follow each other as one order. Before each launch but the first,
    /// `goes_on` is asked whether to run it.
    pub(crate) fn launch_all(
        &mut self,
        launches: &[Launch],
        batch: &Batch<'_>,
        goes_on: &GoesOn<'_>,
    ) -> Result<usize, RuntimeError> {
        let mut done = 0;
        while let Some(rest @ [first, ..]) = launches.get(done..) {
            if done > 0 && !goes_on(*first) {
                break;
            }
            let (programs, ran) = self.run_programs(rest, batch, goes_on)?;
            if programs == 0 {
                if batch.trees.iter().any(Option::is_some) {
                    return Err(RuntimeError::Tree);
                }
                self.launch_form(*first, batch)?;
                done += 1;
                continue;
            }
            done += ran;
            if ran < programs {
                break;
            }
        }
        Ok(done)
    }

    /// Runs one launch on OpenVINO.
    fn launch_form(&mut self, launch: Launch, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        if matches!(launch.group, Group::Qkv | Group::Ffn) {
            self.switch_before(launch, batch.tokens())?;
        }
        let target = self.forms.target(launch)?;
        match (launch.group, launch.layer) {
            (Group::Qkv, Some(layer)) => self.qkv_in_calls(target, layer as usize, batch),
            (Group::Mha, Some(layer)) => self.mha(target, layer as usize, batch),
            (Group::Ffn, Some(layer)) => self.ffn(target, layer as usize, batch),
            (Group::Head, None) => self.head(target, batch),
            (group, layer) => Err(RuntimeError::Launch { group, layer }),
        }
    }

    /// `qkv` in as many calls as its form takes rows: those of prompts are many where a block has its short graph.
    fn qkv_in_calls(
        &mut self,
        target: Target,
        layer: usize,
        batch: &Batch<'_>,
    ) -> Result<(), RuntimeError> {
        let most = self.forms.prepared(target)?.tokens_max();
        if batch.tokens() <= most {
            return self.qkv(target, layer, batch);
        }
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
            self.qkv(target, layer, &some)?;
        }
        Ok(())
    }

    /// Norm, projections, RoPE. Keys and values of one sequence's chunk go straight into its cache.
    fn qkv(&mut self, target: Target, layer: usize, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        let (first, tokens) = (batch.first(), batch.tokens());
        let rows = self.form_rows(target, tokens)?;
        let rotary = target
            .rope(self.bundle.manifest())
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
        self.run(target, (tokens, 0), inputs, vec![query, keys, values])?;
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

    /// Attention of each sequence over its own cache; single tokens side by side where that is faster.
    fn mha(&mut self, target: Target, layer: usize, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        if batch.caches.len() < batch.spans.len() {
            return Err(target.unknown());
        }
        let calls: Vec<Attention<'_>> = batch
            .caches
            .iter()
            .zip(batch.spans)
            .map(|(cache, span)| Attention {
                rows: batch.rows,
                cache,
                layer,
                span: *span,
            })
            .collect();
        for calls in calls.chunk_by(|a, b| a.span.tokens == 1 && b.span.tokens == 1) {
            if !self.attend_together(target, calls)? {
                for call in calls {
                    self.attend(target, call)?;
                }
            }
        }
        Ok(())
    }

    /// Attention of one sequence.
    fn attend(&mut self, target: Target, call: &Attention<'_>) -> Result<(), RuntimeError> {
        let (tokens, visible) = (call.span.tokens, call.visible());
        let form = self.forms.form(target, tokens, visible)?;
        let (rows, context) = (form.rows(tokens), form.context(call.context()));
        let inputs = call.inputs(rows, context, &self.scratch.position)?;
        // Rows behind the span's own are those of spans that follow: they are written after.
        let attended = call.rows.attended.view(call.span.row, rows)?;
        self.run(target, (tokens, visible), inputs, vec![attended])
    }

    /// Attention of single tokens of several sequences on streams of the CPU; false, and nothing runs, where that is
    /// slower.
    fn attend_together(
        &mut self,
        target: Target,
        calls: &[Attention<'_>],
    ) -> Result<bool, RuntimeError> {
        let Some((first, rest)) = calls.split_first().filter(|(_, rest)| !rest.is_empty()) else {
            return Ok(false);
        };
        let rung = self.forms.form(target, 1, first.visible())?.rung;
        if rung.role != DeviceClass::Cpu {
            return Ok(false);
        }
        for call in rest {
            if self.forms.form(target, 1, call.visible())?.rung != rung {
                return Ok(false);
            }
        }
        let streams = match self.streams.entry((target.place, rung)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let loader = &self.order.loader;
                new.insert(loader.streams(target.place, rung, self.options.batch)?)
            }
        };
        let contexts: Vec<usize> = calls.iter().map(Attention::context).collect();
        let Some(streams) = streams.as_mut().filter(|streams| streams.suit(&contexts)) else {
            return Ok(false);
        };
        let kernel = target.kernel(self.bundle.manifest())?;
        let bind_call = |call: &Attention<'_>, slot: &mut Slot| {
            let inputs = call.inputs(1, call.context(), &slot.position)?;
            let attended = call.rows.attended.view(call.span.row, 1)?;
            bind(&mut slot.request, target, kernel, inputs, vec![attended])
        };
        streams.run(calls, bind_call, self.cancel.as_deref())?;
        Ok(true)
    }

    /// Output projection and MLP: the rest of the layer. The residual stream moves to its other buffer.
    fn ffn(&mut self, target: Target, layer: usize, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        let [from, to] = [layer % 2, (layer + 1) % 2].map(|half| &batch.rows.hidden[half]);
        let end = batch.first() + batch.tokens();
        let step = self.rows_at_a_time(target, batch.tokens())?;
        for first in (batch.first()..end).step_by(step) {
            let tokens = step.min(end - first);
            let rows = self.form_rows(target, tokens)?;
            let inputs = vec![
                (Role::Attended, batch.rows.attended.view(first, rows)?),
                (Role::Hidden, from.view(first, rows)?),
            ];
            let output = to.view(first, rows)?;
            self.run(target, (tokens, 0), inputs, vec![output])?;
        }
        Ok(())
    }

    /// Rows of `tokens` that one call of `ffn` takes. Rows do not depend on each other, and each layer's kernel keeps
    /// the memory of its largest call.
    fn rows_at_a_time(&mut self, target: Target, tokens: usize) -> Result<usize, RuntimeError> {
        let most = self.forms.prepared(target)?.tokens_max();
        let form = self.forms.form(target, tokens.min(most), 0)?;
        let rows = match form.rung.role {
            DeviceClass::Cpu => FFN_ROWS,
            DeviceClass::Igpu | DeviceClass::Npu => tokens.max(1),
        };
        Ok(rows.min(most))
    }

    /// Logits of the last row of each span.
    fn head(&mut self, target: Target, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        let rows = self.form_rows(target, batch.spans.len())?;
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
            target,
            (batch.spans.len(), 0),
            vec![(Role::Hidden, last)],
            vec![logits],
        )
    }

    /// Rows that the form for `tokens` tokens computes: those, or a static form's chunk.
    fn form_rows(&mut self, target: Target, tokens: usize) -> Result<usize, RuntimeError> {
        let available = self.rows;
        let form = self.forms.form(target, tokens, 0)?;
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

    /// Binds tensors by role and runs the form that fits.
    fn run(
        &mut self,
        target: Target,
        (tokens, context): (usize, usize),
        inputs: Vec<(Role, Tensor)>,
        outputs: Vec<Tensor>,
    ) -> Result<(), RuntimeError> {
        let kernel = target.kernel(self.bundle.manifest())?;
        let Runner::Plugin(form) = &mut self.forms.form(target, tokens, context)?.runner else {
            return Err(target.unknown());
        };
        if let Some(class) = self.class {
            form.band.select(class, form.request.model());
        }
        bind(&mut form.request, target, kernel, inputs, outputs)?;
        match &self.cancel {
            Some(cancel) => {
                let started = form.request.start();
                started.and_then(|()| finish(&mut form.request, Some(cancel)))
            }
            None => form.request.infer(),
        }
        .map_err(running(kernel))?;
        self.forms.prepared(target)?.give_back(&self.bundle)
    }
}

/// Rows that `ffn` takes at a time on the CPU. Chosen: the fewest at which prefill is as fast as with all 256 of a
/// chunk at once (268 and 271 tokens/s of 512, 1B model, two cores); 2 000 MB instead of 2 380 at most are resident.
const FFN_ROWS: usize = 64;

/// The attention's context grows by this many tokens at a time. Chosen: at most 31 masked rows, which cost
/// less than planning for a new shape each token (1.2 ms of 54 ms a token, 1B model, two cores).
pub(crate) const CONTEXT_STEP: usize = 32;

/// Attention of one sequence's new tokens in one layer.
struct Attention<'a> {
    rows: &'a Activations,
    cache: &'a KvCache,
    layer: usize,
    span: Span,
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
        position: &Rows,
    ) -> Result<Vec<(Role, Tensor)>, RuntimeError> {
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
) -> Result<(), RuntimeError> {
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
fn running(kernel: &Kernel) -> impl Fn(heg_openvino::Error) -> RuntimeError {
    let name = &kernel.name;
    move |error| openvino(format!("run kernel `{name}`"))(error)
}

/// Waits for a request that was started; cancels it once `cancel` is set.
pub(super) fn finish(
    request: &mut InferRequest,
    cancel: Option<&AtomicBool>,
) -> Result<(), heg_openvino::Error> {
    while request.wait(cancel.map(|_| PATIENCE))? == Progress::Pending {
        if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            request.cancel()?;
        }
    }
    Ok(())
}

/// Interval at which the cancel flag is read while a kernel runs.
const PATIENCE: Duration = Duration::from_millis(100);
