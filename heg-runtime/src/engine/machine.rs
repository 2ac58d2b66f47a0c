//! What an engine has to run on: executors for its lanes, memory for caches, files for those that make room.
//!
//! The executor over OpenVINO is one implementation of [`LaneExecutor`]; others can stand beside it, and doubles that
//! fail stand in front of it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::error::RuntimeError;
use crate::exec::{Batch, Executor, WarmForms};
use crate::mem::{Activations, KvCache, KvShape};
use heg_sched::{Class, Lane, Launch, RequestId, WarmKernel};

/// What a lane asks of the kernels that it runs.
pub(super) trait LaneExecutor: Send {
    /// Waits until every kernel is ready.
    fn wait_ready(&mut self) -> Result<(), RuntimeError>;

    /// From now on a running kernel is cancelled when `cancel` is set, where that can be done.
    fn heed(&mut self, cancel: Arc<AtomicBool>);

    /// What is launched from now on is of this class, and for these requests.
    fn serve(&mut self, class: Class, requests: &[RequestId]);

    /// Takes in a kernel that was compiled meanwhile.
    fn adopt(&mut self, forms: WarmForms);

    /// Gives one up.
    fn unload(&mut self, kernel: WarmKernel);

    /// Writes the embeddings of tokens to the residual stream that the first layer reads.
    fn embed(
        &mut self,
        tokens: &[u32],
        rows: &Activations,
        first: usize,
    ) -> Result<(), RuntimeError>;

    /// Carries out one launch.
    fn launch(&mut self, launch: Launch, batch: &Batch<'_>) -> Result<(), RuntimeError>;

    /// What the head gave last, as `rows` rows of V.
    fn logits(&mut self, rows: usize) -> Result<&mut [f32], RuntimeError>;

    /// Rows of batches, which are never preempted.
    fn pass_rows(&self) -> Arc<Activations>;

    /// Layers of the model.
    fn layers(&self) -> u32;

    /// Most rows that the head takes at a time.
    fn head_rows(&self) -> usize;
}

impl LaneExecutor for Executor {
    fn wait_ready(&mut self) -> Result<(), RuntimeError> {
        self.wait_ready()
    }

    fn heed(&mut self, cancel: Arc<AtomicBool>) {
        self.heed(cancel);
    }

    fn serve(&mut self, class: Class, _: &[RequestId]) {
        self.serve(class);
    }

    fn adopt(&mut self, forms: WarmForms) {
        self.adopt(forms);
    }

    fn unload(&mut self, kernel: WarmKernel) {
        self.unload(kernel);
    }

    fn embed(
        &mut self,
        tokens: &[u32],
        rows: &Activations,
        first: usize,
    ) -> Result<(), RuntimeError> {
        self.embed(tokens, rows, first)
    }

    fn launch(&mut self, launch: Launch, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        self.launch(launch, batch)
    }

    fn logits(&mut self, rows: usize) -> Result<&mut [f32], RuntimeError> {
        self.logits(rows)
    }

    fn pass_rows(&self) -> Arc<Activations> {
        self.pass_rows()
    }

    fn layers(&self) -> u32 {
        self.manifest().layers.len() as u32
    }

    fn head_rows(&self) -> usize {
        self.options().batch
    }
}

/// Where an engine gets from what it cannot do without.
pub(super) trait Machine: Send + Sync {
    /// What a lane runs kernels with.
    fn executor(&self, _: Lane, executor: Executor) -> Box<dyn LaneExecutor> {
        Box::new(executor)
    }

    /// Whether a kernel may hang on a machine that has nothing but its CPU.
    fn hangs_on_cpu(&self) -> bool {
        false
    }

    /// How long a lane may take to answer when it is reset or told to end.
    fn patience(&self) -> Duration {
        PATIENCE
    }

    /// Address space for a request's cache.
    fn reserve(&self, _: RequestId, shape: KvShape) -> Result<KvCache, RuntimeError> {
        KvCache::reserve(shape)
    }

    /// A file without a name, for a cache.
    fn file(&self, folder: &Path) -> io::Result<File> {
        tempfile::tempfile_in(folder)
    }
}

/// The machine as it is.
pub(super) struct Host;

impl Machine for Host {}

/// Chosen: a kernel is asked every 100 ms whether it still runs, and drivers reset a device in seconds.
const PATIENCE: Duration = Duration::from_secs(10);
