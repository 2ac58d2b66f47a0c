//! The executor: runs launches as CPU programs or on OpenVINO, over views of the runtime's own memory.
//!
//! An executor serves one lane and is synchronous: a launch returns when its kernel is done. The scheduler decides
//! which launch comes next; `launch` runs it, `kernels` prepares the kernels, and `answers` checks what they compute.

mod answers;
mod band;
mod compiled;
mod devices;
mod doctor;
mod duty;
mod embedding;
mod every_row;
mod form;
mod ir;
mod kernels;
mod launch;
mod loader;
mod lone;
mod order;
mod pair;
mod partition;
mod place;
mod plugin;
mod processors;
mod programs;
mod role_device;
mod rotary;
mod sections;
mod streams;
mod switching;
mod table;
mod warm;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use heg_artifacts::Bundle;
use heg_artifacts::manifest::Manifest;
use heg_spec::Group;

use crate::error::RuntimeError;
use crate::ladder::{Calls, Descent, Rung};
use crate::mem::{Activations, KvCache, KvShape, Scratch, Widths};
use crate::verdicts::{Verdicts, file_name};
pub(crate) use duty::Duty;
use embedding::EmbeddingTable;
use form::ROW_STEP;
pub(crate) use form::padded;
use heg_sched::{Class, Launch, Logits, Span, Switching, launches};
use kernels::{Kernels, Order};
pub(crate) use launch::{Batch, CONTEXT_STEP, GoesOn};
#[cfg(test)]
use loader::core_or_skip;
use loader::tensor_element;
use rotary::RotaryRows;
use sections::check_unchanged;
use streams::Streams;
use switching::GraphSwitch;
use table::FormTable;

pub use doctor::{Diagnosis, Examined, TestOutcome, clear_quarantine, diagnose};
pub use loader::Loader;
pub use lone::LoneKernel;
pub use pair::{HandOvers, PairLanes, PairedRoles, Partition, Uncut};
pub use partition::{ByOperator, ByShare, BySolver};
pub use place::Place;
pub(crate) use switching::{Coming, rows_step};
pub(crate) use warm::{WarmForms, Warmer};

/// Options of an executor.
#[derive(Debug, Clone, Copy)]
pub struct ExecutorOptions {
    /// Largest number of tokens in a prefill chunk.
    pub chunk_tokens: usize,
    /// Largest number of sequences in a decode batch.
    pub batch: usize,
    /// Threads that prepare kernels.
    pub loader_threads: usize,
    /// How kernels that have their weights inside are switched between prompts and verification.
    pub switching: Switching,
}

impl Default for ExecutorOptions {
    /// 256 tokens is the chunk of the papers; 32 is the largest decode batch of Agent.xpu §4.5.
    fn default() -> Self {
        Self {
            chunk_tokens: 256,
            batch: 32,
            loader_threads: 2,
            switching: Switching::Resident,
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

    /// Drops all tokens from position `tokens` on.
    pub fn truncate(&mut self, tokens: usize) {
        self.cache.truncate(tokens);
    }
}

/// Runs kernels of one bundle.
pub struct Executor {
    bundle: Arc<Bundle>,
    order: Arc<Order>,
    verdicts: Verdicts,
    kernels: Kernels,
    /// Empty before every kernel is ready.
    forms: FormTable,
    switching: GraphSwitch,
    /// Streams for attention of batches, made on first use; none where the device runs one sequence after the other.
    streams: BTreeMap<(Place, Rung), Option<Streams>>,
    descents: Descents,
    embedding: EmbeddingTable,
    rotary: RotaryRows,
    /// Rows of batches; a prompt that may be preempted has rows of its own.
    activations: Arc<Activations>,
    scratch: Scratch,
    widths: Widths,
    kv: KvShape,
    /// Most rows of a call, including padding.
    rows: usize,
    /// Rows that a form may write beyond the rows of its chunk.
    padding_rows: usize,
    options: ExecutorOptions,
    logits: Vec<f32>,
    row: Vec<u8>,
    /// Class of the work that is running, for devices with priorities; none if unknown.
    class: Option<Class>,
    /// Flag that cancels the running kernel.
    cancel: Option<Arc<AtomicBool>>,
}

/// Steps down the ladder that were taken while loading; known when every kernel is ready.
#[derive(Debug, Clone, Default)]
pub struct Descents(Arc<OnceLock<Vec<Descent>>>);

impl Descents {
    /// The steps taken; empty until every kernel is ready.
    pub fn get(&self) -> &[Descent] {
        self.0.get().map_or(&[], Vec::as_slice)
    }
}

impl Executor {
    /// Sets up the executor and begins to prepare kernels; returns before they are ready.
    pub fn new(loader: Loader, options: ExecutorOptions) -> Result<Self, RuntimeError> {
        Self::with_duty(Arc::new(loader), Duty::All, options)
    }

    /// As [`new`](Self::new), for only those of the model's calls that `duty` names.
    pub(crate) fn with_duty(
        loader: Arc<Loader>,
        duty: Duty,
        options: ExecutorOptions,
    ) -> Result<Self, RuntimeError> {
        let bundle = Arc::clone(loader.bundle());
        let manifest = bundle.manifest();
        let model = &manifest.model;
        let ladder = loader.ladder().only(duty.roles());
        let most = ladder.largest_calls(manifest);
        let options = ExecutorOptions {
            chunk_tokens: options.chunk_tokens.clamp(1, most.tokens),
            batch: options.batch.clamp(1, most.tokens.min(most.rows)),
            ..options
        };
        let calls = Calls {
            tokens: options.chunk_tokens.max(options.batch),
            rows: options.batch,
            context: most.context,
        };
        let padding = ladder.padding(manifest, calls);
        let chunk = padding.tokens.max(switching::chunk(options.switching));
        let rows = padded(calls.tokens).max(chunk);
        let padding_rows = chunk.max(ROW_STEP);
        let elements = ladder.elements();
        let (heads, head_dim) = (model.heads as usize, model.head_dim as usize);
        let kv = KvShape {
            layers: manifest.layers.len(),
            width: model.kv_heads as usize * head_dim,
            context_tokens: calls.context,
            padding_rows: CONTEXT_STEP
                .max(padding.tokens)
                .max(padding.context.saturating_sub(calls.context)),
            element: tensor_element(elements.kv),
        };
        let widths = Widths {
            hidden: model.hidden as usize,
            query: heads * head_dim,
            key: kv.width,
            vocab: model.vocab as usize,
            element: tensor_element(elements.activations),
            kv: kv.element,
        };
        let table = &manifest.weights[manifest.embedding.table.0 as usize];
        let embedding = EmbeddingTable::new(&bundle, table, manifest.embedding.scale);
        // The last sequence of a batch may be padded to a whole chunk.
        let all_rows = rows + padding_rows;
        let activations = Arc::new(Activations::new(all_rows, widths)?);
        let scratch = Scratch::new(all_rows, padded(options.batch).max(padding.rows), widths)?;
        let verdicts = match loader.cache() {
            Some(cache) => Verdicts::recall(cache, &verdicts_name(&loader)),
            None => Verdicts::default(),
        };
        let order = Arc::new(Order {
            quarantined: answers::quarantined(&verdicts),
            loader,
            duty,
            ladder,
            calls,
        });
        Ok(Self {
            rotary: RotaryRows::new(&bundle, rows)?,
            kernels: Kernels::load(Arc::clone(&order), options.loader_threads),
            order,
            verdicts,
            forms: FormTable::default(),
            switching: GraphSwitch::new(options.switching),
            streams: BTreeMap::new(),
            descents: Descents::default(),
            embedding,
            activations,
            scratch,
            widths,
            kv,
            rows,
            padding_rows,
            options,
            logits: Vec::new(),
            row: Vec::new(),
            class: None,
            cancel: None,
            bundle,
        })
    }

    /// The manifest of the bundle.
    pub fn manifest(&self) -> &Manifest {
        self.bundle.manifest()
    }

    /// The options in effect: those asked for, as far as the bundle allows.
    pub fn options(&self) -> ExecutorOptions {
        self.options
    }

    /// A new, empty sequence.
    pub fn sequence(&self) -> Result<Sequence, RuntimeError> {
        Ok(Sequence {
            cache: KvCache::reserve(self.kv)?,
        })
    }

    /// Steps down the ladder, known when every kernel is ready.
    pub fn descents(&self) -> Descents {
        self.descents.clone()
    }

    /// Waits until every kernel is ready; the first pass does so by itself. When a bundle first starts on these
    /// devices, every kernel runs its known-answer test, and kernels that fail it are replaced.
    pub fn wait_ready(&mut self) -> Result<(), RuntimeError> {
        if !self.forms.is_empty() {
            return Ok(());
        }
        let mut ready = self.kernels.join()?;
        let before = self.verdicts.clone();
        let loader = &self.order.loader;
        for (place, prepared) in &mut ready {
            if answers::examine(&self.order, *place, prepared, &mut self.verdicts)? {
                prepared.give_back(&self.bundle)?;
            }
        }
        if let Some(cache) = loader.cache()
            && before != self.verdicts
        {
            // Other executors of the same bundle, each with a part of its kernels, add theirs. Losing some costs a
            // later start some time, nothing else.
            let name = verdicts_name(loader);
            let mut all = Verdicts::recall(cache, &name);
            for (place, rung, verdict) in self.verdicts.iter() {
                all.insert(place, rung, verdict);
            }
            let _ = all.remember(cache, &name);
        }
        // Places of one kernel mostly go the same way down.
        let mut descents: Vec<Descent> = Vec::new();
        for descent in ready.values().flat_map(|prepared| &prepared.descents) {
            if !descents.contains(descent) {
                descents.push(descent.clone());
            }
        }
        let _ = self.descents.0.set(descents);
        self.forms = FormTable::new(self.bundle.manifest(), ready)?;
        self.switching.begin(&self.order, &mut self.forms);
        self.pack_head()
    }

    /// Runs the head on one row, so that the plugin packs its weights. The head is the largest kernel, and its pages of
    /// the bundle stay resident while it is packed: doing so after the layers have allocated memory for a chunk would
    /// set the peak (2.33 GB instead of 2.17 GB, 1B model, chunks of 256 tokens).
    fn pack_head(&mut self) -> Result<(), RuntimeError> {
        let launch = Launch {
            layer: None,
            group: Group::Head,
        };
        let head = self.forms.target(launch)?;
        if self.forms.prepared(head)?.packed.is_empty() {
            return Ok(());
        }
        let span = Span {
            row: 0,
            tokens: 1,
            position: 0,
        };
        let rows = self.pass_rows();
        let batch = Batch {
            rows: &rows,
            caches: &[],
            spans: &[span],
            trees: &[],
        };
        self.launch(launch, &batch)
    }

    /// Runs new tokens of one sequence through the model. Returns one row of V logits for the last token if `logits`
    /// asks for it.
    pub fn prefill(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        logits: Logits,
    ) -> Result<&mut [f32], RuntimeError> {
        let mut sequences = [sequence];
        self.pass(&mut sequences, &[tokens], logits)
    }

    /// Runs one new token of each sequence. Returns a row of V logits per sequence, in order.
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
        let rows = Arc::clone(&self.activations);
        for (span, tokens) in spans.iter().zip(tokens) {
            self.embed(tokens, &rows, span.row)?;
        }
        let caches: Vec<&KvCache> = sequences.iter().map(|sequence| &sequence.cache).collect();
        let batch = Batch {
            rows: &rows,
            caches: &caches,
            spans: &spans,
            trees: &[],
        };
        let layers = self.manifest().layers.len() as u32;
        let launches: Vec<Launch> = launches(layers, logits).collect();
        self.launch_all(&launches, &batch, &|_| true)?;
        for (sequence, span) in sequences.iter_mut().zip(&spans) {
            sequence.cache.advance(span.tokens);
        }
        match logits {
            Logits::LastRows => self.logits(spans.len()),
            Logits::None => Ok(&mut []),
        }
    }

    /// Activations of batches, which are never preempted.
    pub(crate) fn pass_rows(&self) -> Arc<Activations> {
        Arc::clone(&self.activations)
    }

    /// Widths of rows.
    pub(crate) fn widths(&self) -> Widths {
        self.widths
    }

    /// Fewest rows that a call has to have room for, however few tokens it runs.
    pub(crate) fn padding_rows(&self) -> usize {
        self.padding_rows
    }

    /// Shape of KV caches.
    pub(crate) fn kv_shape(&self) -> KvShape {
        self.kv
    }

    /// Cancels kernels from now on when `cancel` is set. A machine that has only its CPU ignores the flag: its kernels
    /// do not hang, and they start faster if they need not be cancellable.
    pub(crate) fn cancel_on(&mut self, cancel: Arc<AtomicBool>) {
        self.cancel = (!self.order.loader.has_only_cpu()).then_some(cancel);
    }

    /// Sets the class of the launches that follow.
    pub(crate) fn begin(&mut self, class: Class) {
        self.class = Some(class);
        if let Some(pair) = self.order.loader.pair() {
            pair.begin(class);
        }
    }

    /// Writes the embeddings of tokens to the residual stream that the first layer reads.
    pub(crate) fn embed(
        &mut self,
        tokens: &[u32],
        rows: &Activations,
        first: usize,
    ) -> Result<(), RuntimeError> {
        check_unchanged(&self.bundle)?;
        self.embedding.gather(tokens, &rows.hidden[0], first)
    }

    /// The logits of the head's last run, as `rows` rows of V.
    pub(crate) fn logits(&mut self, rows: usize) -> Result<&mut [f32], RuntimeError> {
        check_unchanged(&self.bundle)?;
        self.logits.resize(rows * self.widths.vocab, 0.0);
        self.scratch.logits.read_f32(&mut self.logits)?;
        Ok(&mut self.logits)
    }

    /// Assigns rows to the new tokens of all sequences. Refuses what does not fit before anything runs.
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
}

/// Name of the file in which verdicts on these devices are remembered.
fn verdicts_name(loader: &Loader) -> String {
    let devices = loader.soc().devices.iter();
    let properties = devices.map(|device| (&device.properties, &device.mha_properties));
    let devices = format!(
        "{} {:?} {:?}",
        loader.plugin_version().unwrap_or("without OpenVINO"),
        loader.devices(),
        properties.collect::<Vec<_>>()
    );
    file_name(loader.bundle().manifest_id(), &devices)
}
