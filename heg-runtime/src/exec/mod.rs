//! The executor: carries out launches on OpenVINO, with every tensor a view of memory of ours.
//!
//! One lane, synchronous: a launch returns when its kernel is done. Which launch comes next is decided in
//! `sched`; here a launch finds its compiled form, its tensors are bound, and it runs. Copies are made in two
//! cases only, both of a few rows: keys and values of a batch of several sequences, which belong to different
//! caches, and rotary rows that are not contiguous in their table.

mod embedding;
mod ir;
mod kernels;
mod loader;
mod lone;
mod place;
mod rotary;

use std::collections::BTreeMap;
use std::sync::Arc;

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{Group, Manifest, Role};
use heg_openvino::{Core, Tensor};
use heg_spec::Soc;

use crate::error::{RuntimeError, openvino};
use crate::mem::{Activations, Half, KvCache, KvShape, Widths};
use crate::sched::{Launch, Logits, Span, launches};
use embedding::EmbeddingTable;
use kernels::{Kernels, LoadPlan, Prepared};
use loader::{Form, tensor_element};
use place::{place_use, shared_place};
use rotary::RotaryRows;

pub use loader::Loader;
pub use lone::LoneKernel;
pub use place::Place;

/// How an executor is set up.
#[derive(Debug, Clone, Copy)]
pub struct ExecutorOptions {
    /// Largest number of tokens in a prefill chunk.
    pub chunk_tokens: usize,
    /// Largest number of sequences in a decode batch.
    pub batch: usize,
    /// Threads that prepare kernels.
    pub loader_threads: usize,
}

impl Default for ExecutorOptions {
    /// 256 tokens is the chunk of the papers; 32 is the largest decode batch of Agent.xpu §4.5.
    fn default() -> Self {
        Self {
            chunk_tokens: 256,
            batch: 32,
            loader_threads: 2,
        }
    }
}

/// A sequence with its KV cache.
pub struct Sequence {
    cache: KvCache,
}

impl Sequence {
    /// Tokens in the cache.
    pub fn tokens(&self) -> usize {
        self.cache.tokens()
    }

    /// Forgets all tokens from `tokens` on.
    pub fn truncate(&mut self, tokens: usize) {
        self.cache.truncate(tokens);
    }
}

/// Runs kernels of one bundle.
pub struct Executor {
    bundle: Arc<Bundle>,
    kernels: Kernels,
    ready: BTreeMap<Place, Prepared>,
    embedding: EmbeddingTable,
    rotary: RotaryRows,
    activations: Activations,
    kv: KvShape,
    /// Half of `activations.hidden` that holds the current residual stream.
    current: usize,
    /// Rows a call may have, padding included.
    rows: usize,
    options: ExecutorOptions,
    logits: Vec<f32>,
    row: Vec<u8>,
}

impl Executor {
    /// Sets up the executor and begins to prepare kernels; returns before they are ready.
    pub fn new(
        bundle: Arc<Bundle>,
        soc: &Soc,
        core: Core,
        options: ExecutorOptions,
    ) -> Result<Self, RuntimeError> {
        let loader = Loader::new(core, Arc::clone(&bundle), soc.clone());
        let plan = LoadPlan::new(bundle.manifest(), soc)?;
        let kernels = Kernels::load(Arc::new(loader), options.loader_threads);
        let manifest = bundle.manifest();
        let model = &manifest.model;
        let options = ExecutorOptions {
            chunk_tokens: options.chunk_tokens.clamp(1, plan.chunk_max),
            batch: options.batch.clamp(1, plan.chunk_max),
            ..options
        };
        let static_max = model.chunk_tokens.last().map_or(0, |chunk| *chunk as usize);
        let padding = if plan.chunk_max == usize::MAX {
            0
        } else {
            static_max
        };
        let rows = options.chunk_tokens.max(options.batch).max(padding);
        let element = tensor_element(plan.activations);
        let (heads, head_dim) = (model.heads as usize, model.head_dim as usize);
        let kv = KvShape {
            layers: manifest.layers.len(),
            width: model.kv_heads as usize * head_dim,
            context_tokens: model.context_tokens as usize,
            padding_rows: padding.max(CONTEXT_STEP),
            element,
        };
        let widths = Widths {
            hidden: model.hidden as usize,
            query: heads * head_dim,
            key: kv.width,
            vocab: model.vocab as usize,
        };
        let table = &manifest.weights[manifest.embedding.table.0 as usize];
        let embedding = EmbeddingTable::new(&bundle, table, manifest.embedding.scale);
        Ok(Self {
            rotary: RotaryRows::new(&bundle, rows)?,
            kernels,
            ready: BTreeMap::new(),
            embedding,
            activations: Activations::new(rows, options.batch.max(padding), widths, element)?,
            kv,
            current: 0,
            rows,
            options,
            logits: Vec::new(),
            row: Vec::new(),
            bundle,
        })
    }

    /// What the executor runs.
    pub fn manifest(&self) -> &Manifest {
        self.bundle.manifest()
    }

    /// How the executor is set up, as far as the bundle allows.
    pub fn options(&self) -> ExecutorOptions {
        self.options
    }

    /// A new, empty sequence.
    pub fn sequence(&self) -> Result<Sequence, RuntimeError> {
        Ok(Sequence {
            cache: KvCache::reserve(self.kv)?,
        })
    }

    /// Waits until every kernel is ready; the first pass does so by itself.
    pub fn wait_ready(&mut self) -> Result<(), RuntimeError> {
        if self.ready.is_empty() {
            self.ready = self.kernels.join()?;
        }
        Ok(())
    }

    /// Runs new tokens of one sequence through the model; the logits of the last one are returned where
    /// asked for, as one row of V.
    pub fn prefill(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        logits: Logits,
    ) -> Result<&mut [f32], RuntimeError> {
        let mut sequences = [sequence];
        self.pass(&mut sequences, &[tokens], logits)
    }

    /// Runs one new token of each sequence; the result is one row of V per sequence, one after the other.
    pub fn decode(
        &mut self,
        sequences: &mut [&mut Sequence],
        tokens: &[u32],
    ) -> Result<&mut [f32], RuntimeError> {
        let tokens: Vec<&[u32]> = tokens.iter().map(std::slice::from_ref).collect();
        self.pass(sequences, &tokens, Logits::LastRows)
    }

    fn pass(
        &mut self,
        sequences: &mut [&mut Sequence],
        tokens: &[&[u32]],
        logits: Logits,
    ) -> Result<&mut [f32], RuntimeError> {
        let spans = self.spans(sequences, tokens)?;
        self.wait_ready()?;
        self.current = 0;
        for (span, tokens) in spans.iter().zip(tokens) {
            self.embedding
                .gather(tokens, &self.activations.hidden[0], span.row)?;
        }
        let layers = self.manifest().layers.len() as u32;
        for launch in launches(layers, spans.len(), logits) {
            self.launch(launch, sequences, &spans)?;
        }
        for (sequence, span) in sequences.iter_mut().zip(&spans) {
            sequence.cache.advance(span.tokens);
        }
        match logits {
            Logits::LastRows => {
                let vocab = self.manifest().model.vocab as usize;
                self.logits.resize(spans.len() * vocab, 0.0);
                self.activations.logits.read_f32(&mut self.logits)?;
            }
            Logits::None => self.logits.clear(),
        }
        Ok(&mut self.logits)
    }

    /// Lays the new tokens of all sequences into rows; what does not fit is refused before anything runs.
    fn spans(
        &self,
        sequences: &[&mut Sequence],
        tokens: &[&[u32]],
    ) -> Result<Vec<Span>, RuntimeError> {
        let mut spans = Vec::with_capacity(tokens.len());
        let mut row = 0;
        for (sequence, tokens) in sequences.iter().zip(tokens) {
            if tokens.is_empty() {
                return Err(RuntimeError::EmptyPrompt);
            }
            let position = sequence.tokens();
            let asked = position + tokens.len();
            if asked > self.kv.context_tokens {
                return Err(RuntimeError::Context {
                    asked,
                    context: self.kv.context_tokens,
                });
            }
            spans.push(Span {
                row,
                tokens: tokens.len(),
                position,
            });
            row += tokens.len();
        }
        if spans.is_empty() {
            return Err(RuntimeError::EmptyPrompt);
        }
        let limit = self.options.chunk_tokens.max(self.options.batch);
        if row > limit || spans.len() > self.options.batch {
            return Err(RuntimeError::Batch {
                asked: row,
                rows: limit,
            });
        }
        Ok(spans)
    }

    /// Carries out one launch.
    fn launch(
        &mut self,
        launch: Launch,
        sequences: &[&mut Sequence],
        spans: &[Span],
    ) -> Result<(), RuntimeError> {
        match (launch.group, launch.layer) {
            (Group::Qkv, Some(layer)) => self.qkv(launch, layer as usize, sequences, spans),
            (Group::Mha, Some(layer)) => {
                let index = launch.span.unwrap_or(0);
                self.mha(launch, layer as usize, sequences[index], spans[index])
            }
            (Group::Ffn, Some(_)) => self.ffn(launch, spans),
            (Group::Head, None) => self.head(launch, spans),
            (group, layer) => Err(RuntimeError::Launch { group, layer }),
        }
    }

    /// Norm, projections, RoPE. Keys and values of one sequence go straight into its cache.
    fn qkv(
        &mut self,
        launch: Launch,
        layer: usize,
        sequences: &[&mut Sequence],
        spans: &[Span],
    ) -> Result<(), RuntimeError> {
        let tokens = rows_of(spans);
        let rope = place_use(self.bundle.manifest(), Place::from(launch))?.rope;
        let rows = self.form_rows(launch, tokens)?;
        let table = rope.and_then(|id| self.bundle.manifest().rope.get(id.0 as usize));
        let rotary = table
            .map(|table| self.rotary.rows(table, spans, rows))
            .transpose()?;
        let hidden = self.activations.hidden[self.current].view(0, rows)?;
        let query = self.activations.query.view(0, rows)?;
        let (keys, values) = match (sequences, spans) {
            ([sequence], [span]) => (
                sequence
                    .cache
                    .rows(layer, Half::Keys, span.position, rows)?,
                sequence
                    .cache
                    .rows(layer, Half::Values, span.position, rows)?,
            ),
            _ => (
                self.activations.keys.view(0, rows)?,
                self.activations.values.view(0, rows)?,
            ),
        };
        let mut inputs = vec![(Role::Hidden, hidden)];
        inputs.extend(
            rotary
                .into_iter()
                .flat_map(|(cos, sin)| [(Role::Cos, cos), (Role::Sin, sin)]),
        );
        self.run(launch, tokens, inputs, vec![query, keys, values])?;
        if spans.len() > 1 {
            self.scatter(layer, sequences, spans)?;
        }
        Ok(())
    }

    /// Copies the keys and values of a batch to the caches they belong to.
    fn scatter(
        &mut self,
        layer: usize,
        sequences: &[&mut Sequence],
        spans: &[Span],
    ) -> Result<(), RuntimeError> {
        let mut row = std::mem::take(&mut self.row);
        row.resize(self.activations.keys.row_bytes(), 0);
        for (sequence, span) in sequences.iter().zip(spans) {
            for token in 0..span.tokens {
                for (half, from) in [
                    (Half::Keys, &self.activations.keys),
                    (Half::Values, &self.activations.values),
                ] {
                    from.read_row(span.row + token, &mut row)?;
                    sequence
                        .cache
                        .write_row(layer, half, span.position + token, &row)?;
                }
            }
        }
        self.row = row;
        Ok(())
    }

    /// Attention of one sequence over its cache.
    ///
    /// It is given a few rows more than are visible, which the kernel masks, so that its shape changes only
    /// every [`CONTEXT_STEP`] tokens: plugins take a millisecond to plan for a new one.
    fn mha(
        &mut self,
        launch: Launch,
        layer: usize,
        sequence: &Sequence,
        span: Span,
    ) -> Result<(), RuntimeError> {
        let visible = (span.position + span.tokens).next_multiple_of(CONTEXT_STEP);
        self.activations
            .position
            .write_row(0, &(span.position as i64).to_le_bytes())?;
        let inputs = vec![
            (
                Role::Query,
                self.activations.query.view(span.row, span.tokens)?,
            ),
            (
                Role::Key,
                sequence.cache.rows(layer, Half::Keys, 0, visible)?,
            ),
            (
                Role::Value,
                sequence.cache.rows(layer, Half::Values, 0, visible)?,
            ),
            (Role::Position, self.activations.position.vector(1)?),
        ];
        let attended = self.activations.attended.view(span.row, span.tokens)?;
        self.run(launch, span.tokens, inputs, vec![attended])
    }

    /// Output projection to the end of the layer; the residual stream changes halves.
    fn ffn(&mut self, launch: Launch, spans: &[Span]) -> Result<(), RuntimeError> {
        let tokens = rows_of(spans);
        let rows = self.form_rows(launch, tokens)?;
        let inputs = vec![
            (Role::Attended, self.activations.attended.view(0, rows)?),
            (
                Role::Hidden,
                self.activations.hidden[self.current].view(0, rows)?,
            ),
        ];
        let output = self.activations.hidden[1 - self.current].view(0, rows)?;
        self.run(launch, tokens, inputs, vec![output])?;
        self.current = 1 - self.current;
        Ok(())
    }

    /// Logits of the last row of each span.
    fn head(&mut self, launch: Launch, spans: &[Span]) -> Result<(), RuntimeError> {
        let rows = self.form_rows(launch, spans.len())?;
        let hidden = &self.activations.hidden[self.current];
        let mut row = std::mem::take(&mut self.row);
        row.resize(hidden.row_bytes(), 0);
        for (index, span) in spans.iter().enumerate() {
            hidden.read_row(span.row + span.tokens - 1, &mut row)?;
            self.activations.last.write_row(index, &row)?;
        }
        self.row = row;
        let last = self.activations.last.view(0, rows)?;
        let logits = self.activations.logits.view(0, rows)?;
        self.run(
            launch,
            spans.len(),
            vec![(Role::Hidden, last)],
            vec![logits],
        )
    }

    /// Rows that the form for `tokens` tokens computes: those, or a static form's chunk.
    fn form_rows(&mut self, launch: Launch, tokens: usize) -> Result<usize, RuntimeError> {
        let available = self.rows;
        let form = self.form(launch, tokens)?;
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

    fn form(&mut self, launch: Launch, tokens: usize) -> Result<&mut Form, RuntimeError> {
        let place = Place::from(launch);
        let place = shared_place(self.bundle.manifest(), place);
        let prepared = self.ready.get_mut(&place).ok_or(RuntimeError::LoaderGone)?;
        let fits = |form: &&mut Form| form.shape.admits(tokens, 0);
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
        tokens: usize,
        mut inputs: Vec<(Role, Tensor)>,
        outputs: Vec<Tensor>,
    ) -> Result<(), RuntimeError> {
        let place = Place::from(launch);
        let bundle = Arc::clone(&self.bundle);
        let used = place_use(bundle.manifest(), place)?;
        let kernel = &bundle.manifest().kernels[used.kernel.0 as usize];
        let doing = || format!("run kernel `{}`", kernel.name);
        let form = self.form(launch, tokens)?;
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
        form.request.infer().map_err(|e| openvino(doing())(e))?;
        self.give_back(place)
    }

    /// Gives back the pages of weights that the plugin has packed by now.
    fn give_back(&mut self, place: Place) -> Result<(), RuntimeError> {
        let place = shared_place(self.bundle.manifest(), place);
        let Some(prepared) = self.ready.get_mut(&place) else {
            return Ok(());
        };
        for id in std::mem::take(&mut prepared.packed) {
            let range = self
                .bundle
                .section_range(id)
                .map_err(RuntimeError::Section)?;
            self.bundle
                .mapping()
                .give_back(range)
                .map_err(RuntimeError::Section)?;
        }
        Ok(())
    }
}

/// The attention's context grows by this many tokens at a time. Chosen: at most 31 masked rows, which cost
/// less than planning for a new shape each token (1.2 ms of 54 ms a token, 1B model, two cores).
pub(crate) const CONTEXT_STEP: usize = 32;

/// Rows that a batch fills.
fn rows_of(spans: &[Span]) -> usize {
    spans.iter().map(|span| span.tokens).sum()
}
