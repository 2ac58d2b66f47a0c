//! The executor: runs the launches of a lane over the runtime's own memory, each on the back end of its form.
//!
//! An executor serves one lane and is synchronous: a launch returns when its kernel is done. The scheduler decides
//! which launch comes next; `launch` runs it, `kernels` prepares the kernels, and `answers` checks their outputs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use heg_artifacts::Bundle;
use heg_artifacts::manifest::Manifest;

use crate::answers;
use crate::backend::{MovedCaches, Session, SessionRoom, Tailor};
use crate::batch::Batch;
use crate::descents::Descents;
use crate::duty::Duty;
use crate::embedding::{EmbeddingTable, TokenRun};
use crate::error::ExecError;
use crate::executor_options::ExecutorOptions;
use crate::kernels::{KernelNeeds, Kernels};
use crate::ladder::{Calls, Descent, Ladder};
use crate::loader::Loader;
use crate::mem::{
    ActivationRows, KvCache, KvRoom, KvShape, MemoryHome, Scratch, Widths, cache_width,
    tensor_element,
};
use crate::padding::{CONTEXT_STEP, ROW_STEP, padded, switched_rows};
use crate::place::Place;
use crate::prepared::Prepared;
use crate::recheck::Recheck;
use crate::stage_orders::StageOrders;
use crate::table::FormTable;
use crate::unchanged::check_unchanged;
use crate::verdicts::{Verdicts, file_name};
use heg_sched::{Class, Launch, Logits, Span, WorkStage, launches};

/// A sequence with its KV cache.
pub struct Sequence {
    cache: KvCache,
}

impl Sequence {
    /// Number of tokens in the cache.
    pub fn tokens(&self) -> usize {
        self.cache.tokens()
    }

    /// Drops all tokens from position `tokens` on.
    pub fn truncate(&mut self, tokens: usize) {
        self.cache.truncate(tokens);
    }

    /// Its KV cache.
    pub(crate) fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Makes room for `tokens` tokens, and for as many again where the cache has to move.
    fn make_room(&mut self, room: &KvRoom, tokens: usize) -> Result<(), ExecError> {
        if !room.holds(&self.cache, tokens) {
            self.cache = room.moved(&self.cache, self.tokens(), tokens.saturating_mul(2))?;
        }
        Ok(())
    }
}

/// Runs kernels of one bundle.
pub struct Executor {
    pub(crate) bundle: Arc<Bundle>,
    pub(crate) orders: StageOrders,
    pub(crate) needs: Arc<KernelNeeds>,
    pub(crate) verdicts: Verdicts,
    pub(crate) kernels: Kernels,
    /// The forms of every place; empty until every kernel is ready.
    pub(crate) forms: FormTable,
    /// The sessions, one for each back end of the loader.
    pub(crate) sessions: Vec<Box<dyn Session>>,
    pub(crate) descents: Descents,
    pub(crate) recheck: Recheck,
    pub(crate) embedding: EmbeddingTable,
    /// Rows of batches; a prompt that may be preempted has rows of its own.
    pub(crate) activations: Arc<ActivationRows>,
    pub(crate) scratch: Scratch,
    pub(crate) widths: Widths,
    /// The home of rows.
    pub(crate) home: MemoryHome,
    pub(crate) kv: KvRoom,
    /// Most rows of a call, including padding.
    pub(crate) rows: usize,
    /// Rows that a form may write beyond the rows of its chunk.
    pub(crate) padding_rows: usize,
    pub(crate) options: ExecutorOptions,
    pub(crate) logits: Vec<f32>,
    /// Class of the work that is running, for devices with priorities; `None` if unknown.
    pub(crate) class: Option<Class>,
    /// Flag that cancels the running kernel.
    pub(crate) cancel: Option<Arc<AtomicBool>>,
}

impl Executor {
    /// Sets up the executor and begins to prepare kernels; returns before they are ready.
    pub fn new(loader: Loader, options: ExecutorOptions) -> Result<Self, ExecError> {
        Self::with_duty(Arc::new(loader), Duty::All, options)
    }

    /// Sets up an executor like [`new`](Self::new), for only those of the model's calls that `duty` names.
    pub fn with_duty(
        loader: Arc<Loader>,
        duty: Duty,
        options: ExecutorOptions,
    ) -> Result<Self, ExecError> {
        let bundle = Arc::clone(loader.bundle());
        let manifest = bundle.manifest();
        loader.ladder().check_sight(manifest)?;
        let ladder = loader.ladder().only(duty.roles());
        let ladder = ladder.without(|device| loader.why_lost(device));
        let most = ladder.largest_calls(manifest);
        let options = options.within(most);
        let calls = Calls {
            tokens: options.chunk_tokens.max(options.batch),
            rows: options.batch,
            context: most.context,
        };
        let padding = ladder.padding(manifest, calls);
        let chunk = padding.tokens.max(switched_rows(options.switching));
        let rows = padded(calls.tokens).max(chunk);
        let padding_rows = chunk.max(ROW_STEP);
        let (kv, widths) = shapes(manifest, &ladder, calls, padding)?;
        let embedding = EmbeddingTable::new(&bundle);
        // The last sequence of a batch may be padded to a whole chunk.
        let all_rows = rows + padding_rows;
        let home = loader.home();
        let head_rows = padded(options.batch).max(padding.rows);
        let activations = Arc::new(ActivationRows::new(all_rows, widths, &home)?);
        let scratch = Scratch::new(all_rows, head_rows, widths, &home)?;
        let verdicts = known_verdicts(&loader);
        let room = SessionRoom {
            rows,
            batch: options.batch,
            switching: options.switching,
        };
        let sessions = loader.backends().iter().map(|it| it.session(room));
        let sessions = sessions.collect::<Result<Vec<_>, ExecError>>()?;
        let needs = Arc::new(KernelNeeds {
            quarantined: answers::quarantined(&verdicts),
            loader,
            duty,
            ladder,
            calls,
        });
        Ok(Self {
            kernels: Kernels::load(Arc::clone(&needs), options.loader_threads),
            orders: StageOrders::of(bundle.manifest())?,
            needs,
            verdicts,
            forms: FormTable::default(),
            sessions,
            descents: Descents::default(),
            recheck: Recheck::default(),
            embedding,
            activations,
            scratch,
            widths,
            kv: KvRoom::new(bundle.manifest(), kv, home.clone()),
            home,
            rows,
            padding_rows,
            options,
            logits: Vec::new(),
            class: None,
            cancel: None,
            bundle,
        })
    }

    /// The manifest of the bundle.
    pub fn manifest(&self) -> &Manifest {
        self.bundle.manifest()
    }

    /// The options in effect: those asked for, within the limits of the bundle.
    pub fn options(&self) -> ExecutorOptions {
        self.options
    }

    /// Returns a new, empty sequence.
    pub fn sequence(&self) -> Result<Sequence, ExecError> {
        Ok(Sequence {
            cache: self.kv.reserve(self.options.chunk_tokens)?,
        })
    }

    /// Returns the descents, which are known when every kernel is ready.
    pub fn descents(&self) -> Descents {
        self.descents.clone()
    }

    /// Waits until every kernel is ready; the first pass does so by itself. When a bundle first starts on these
    /// devices, every kernel runs its known-answer test, and kernels that fail it are replaced.
    pub fn wait_ready(&mut self) -> Result<(), ExecError> {
        if !self.forms.is_empty() {
            return Ok(());
        }
        let before = self.verdicts.clone();
        let mut ready = self.examined()?;
        while let Some(needs) = self.needs.without_lost()? {
            // What was made on a device before it was lost cannot run either.
            drop(ready);
            self.needs = Arc::new(needs);
            self.kernels = Kernels::load(Arc::clone(&self.needs), self.options.loader_threads);
            ready = self.examined()?;
        }
        for (place, prepared) in &mut ready {
            prepared.leave_lost_devices(&self.needs, *place)?;
        }
        let loader = &self.needs.loader;
        if let Some(cache) = loader.cache()
            && before != self.verdicts
        {
            // Other executors of the same bundle, each with a part of its kernels, add theirs. Losing some only
            // makes a later start slower.
            let name = verdicts_name(loader);
            let mut all = Verdicts::recall(cache, &name);
            for (place, rung, verdict) in self.verdicts.iter() {
                all.insert(place, rung, verdict);
            }
            let _ = all.remember(cache, &name);
        }
        // Places of one kernel mostly descend in the same way.
        let mut descents: Vec<Descent> = Vec::new();
        for descent in ready.values().flat_map(|prepared| &prepared.descents) {
            if !descents.contains(descent) {
                descents.push(descent.clone());
            }
        }
        self.descents.settle(descents);
        self.forms = FormTable::new(self.bundle.manifest(), ready, self.needs.loader.pair())?;
        let loader = Arc::clone(&self.needs.loader);
        let layers = self.manifest().layers.len() as u32;
        self.recheck = Recheck::new(&loader, layers, &self.forms);
        let tailor: Tailor =
            Arc::new(move |place, rung, rows| answers::tested(&loader, place, rung, rows));
        for session in &mut self.sessions {
            session.begin(&tailor, &mut self.forms);
        }
        Ok(())
    }

    /// Waits for the kernels that are being prepared, and tests them.
    fn examined(&mut self) -> Result<BTreeMap<Place, Prepared>, ExecError> {
        let mut ready = self.kernels.join()?;
        for (place, prepared) in &mut ready {
            answers::examine(&self.needs, *place, prepared, &mut self.verdicts)?;
        }
        Ok(ready)
    }

    /// Runs new tokens of one sequence through the model. Returns one row of V logits for the last token if `logits`
    /// asks for it.
    pub fn prefill(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        logits: Logits,
    ) -> Result<&mut [f32], ExecError> {
        let mut sequences = [sequence];
        self.pass(WorkStage::Prefill, &mut sequences, &[tokens], logits)
    }

    /// Runs one new token of each sequence. Returns a row of V logits per sequence, in order.
    pub fn decode(
        &mut self,
        sequences: &mut [&mut Sequence],
        tokens: &[u32],
    ) -> Result<&mut [f32], ExecError> {
        let tokens: Vec<&[u32]> = tokens.iter().map(std::slice::from_ref).collect();
        self.pass(WorkStage::Decode, sequences, &tokens, Logits::LastRows)
    }

    fn pass(
        &mut self,
        stage: WorkStage,
        sequences: &mut [&mut Sequence],
        tokens: &[&[u32]],
        logits: Logits,
    ) -> Result<&mut [f32], ExecError> {
        let spans = self.spans(sequences, tokens)?;
        self.wait_ready()?;
        for (sequence, span) in sequences.iter_mut().zip(&spans) {
            sequence.make_room(&self.kv, span.position + span.tokens)?;
        }
        let rows = Arc::clone(&self.activations);
        for (span, tokens) in spans.iter().zip(tokens) {
            self.embed(TokenRun::new(tokens, span.position), &rows, span.row)?;
        }
        let caches: Vec<&KvCache> = sequences.iter().map(|sequence| &sequence.cache).collect();
        let batch = Batch {
            rows: &rows,
            caches: &caches,
            spans: &spans,
            trees: &[],
        };
        let order = self.orders.at(stage);
        let launches: Vec<Launch> = launches(order, 0..self.layers(), logits).collect();
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
    pub fn pass_rows(&self) -> Arc<ActivationRows> {
        Arc::clone(&self.activations)
    }

    /// Widths of rows.
    pub fn widths(&self) -> Widths {
        self.widths
    }

    /// Fewest rows that a call must have room for, however few tokens it runs.
    pub fn padding_rows(&self) -> usize {
        self.padding_rows
    }

    /// Shape of KV caches for the longest context.
    pub fn kv_shape(&self) -> KvShape {
        self.kv.shape()
    }

    /// The room of KV caches.
    pub fn kv_room(&self) -> KvRoom {
        self.kv.clone()
    }

    /// Keys and values that its devices copied so far (see [`Loader::moved_caches`]).
    pub fn moved_caches(&self) -> Option<MovedCaches> {
        self.needs.loader.moved_caches()
    }

    /// The home of rows of activations.
    pub fn home(&self) -> MemoryHome {
        self.home.clone()
    }

    /// Cancels kernels from now on when `cancel` is set. A machine that has only its CPU ignores the flag: its kernels
    /// do not hang, and they start faster if they need not be cancellable.
    pub fn cancel_on(&mut self, cancel: Arc<AtomicBool>) {
        self.cancel = self.needs.loader.may_hang().then_some(cancel);
    }

    /// Sets the class of the launches that follow.
    pub fn begin(&mut self, class: Class) {
        self.class = Some(class);
    }

    /// Writes the embeddings of tokens to the residual stream that the first layer reads.
    pub fn embed(
        &mut self,
        tokens: TokenRun<'_>,
        rows: &ActivationRows,
        first: usize,
    ) -> Result<(), ExecError> {
        check_unchanged(&self.bundle)?;
        self.embedding.gather(tokens, &rows.hidden[0], first)
    }

    /// The logits of the head's last run, as `rows` rows of V; of a model that gives vectors, rows of D, and of one that gives scores, of 1.
    pub fn logits(&mut self, rows: usize) -> Result<&mut [f32], ExecError> {
        check_unchanged(&self.bundle)?;
        self.logits.resize(rows * self.widths.head, 0.0);
        self.scratch.logits.read_f32(&mut self.logits)?;
        Ok(&mut self.logits)
    }

    /// Assigns rows to the new tokens of all sequences. Refuses tokens that do not fit before any kernel runs.
    fn spans(
        &self,
        sequences: &[&mut Sequence],
        tokens: &[&[u32]],
    ) -> Result<Vec<Span>, ExecError> {
        let mut spans = Vec::with_capacity(tokens.len());
        let mut row = 0;
        for (sequence, tokens) in sequences.iter().zip(tokens) {
            if tokens.is_empty() {
                return Err(ExecError::EmptyPrompt);
            }
            let position = sequence.tokens();
            let asked = position + tokens.len();
            let context = self.kv_shape().context_tokens;
            if asked > context {
                return Err(ExecError::Context { asked, context });
            }
            spans.push(Span {
                row,
                tokens: tokens.len(),
                position,
            });
            row += tokens.len();
        }
        if spans.is_empty() {
            return Err(ExecError::EmptyPrompt);
        }
        let limit = self.options.chunk_tokens.max(self.options.batch);
        if row > limit || spans.len() > self.options.batch {
            return Err(ExecError::Batch {
                asked: row,
                rows: limit,
            });
        }
        Ok(spans)
    }
}

/// The verdicts that earlier processes left; none without a cache.
fn known_verdicts(loader: &Loader) -> Verdicts {
    match loader.cache() {
        Some(cache) => Verdicts::recall(cache, &verdicts_name(loader)),
        None => Verdicts::default(),
    }
}

/// Name of the file in which verdicts on these devices are remembered.
pub(crate) fn verdicts_name(loader: &Loader) -> String {
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

/// The shape of keys and values, and the widths of rows, for calls that are padded to static forms.
fn shapes(
    manifest: &Manifest,
    ladder: &Ladder,
    calls: Calls,
    padding: Calls,
) -> Result<(KvShape, Widths), ExecError> {
    let model = &manifest.model;
    let elements = ladder.elements();
    let kv = KvShape {
        layers: manifest.layers.len(),
        width: cache_width(model, elements.kv),
        context_tokens: calls.context,
        padding_rows: CONTEXT_STEP
            .max(padding.tokens)
            .max(padding.context.saturating_sub(calls.context)),
        element: tensor_element(elements.kv),
    };
    kv.check()?;
    let widths = Widths {
        hidden: model.hidden as usize,
        query: model.heads as usize * model.head_dim as usize,
        key: kv.width,
        head: match manifest.vectors {
            Some(vectors) => vectors.width(model.hidden) as usize,
            None => model.vocab as usize,
        },
        element: tensor_element(elements.activations),
        kv: kv.element,
    };
    Ok((kv, widths))
}
