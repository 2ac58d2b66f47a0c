//! What an engine needs of its machine: executors for its lanes, memory for caches, files for caches of idle flows.
//!
//! The executor over OpenVINO is one implementation of [`LaneExecutor`]. The interface says nothing of OpenVINO, so
//! that kernels of our own can stand beside it; test doubles wrap it to make it fail.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::beliefs::Beliefs;
use crate::error::RuntimeError;
use crate::exec::{Batch, Coming, Executor, GoesOn, WarmForms};
use crate::mem::{Activations, KvCache, KvShape};
use heg_draft::Draft;
use heg_sched::{Class, Lane, Launch, RequestId, WarmKernel};

/// The kernels of a lane: they read and write rows of activations and KV caches, one order of launches at a time.
pub(super) trait LaneExecutor: Send {
    /// Waits until every kernel is ready.
    fn wait_ready(&mut self) -> Result<(), RuntimeError>;

    /// Cancels the running kernel from now on when `cancel` is set, if kernels can be cancelled.
    fn cancel_on(&mut self, cancel: Arc<AtomicBool>);

    /// Announces the class of the launches that follow, and their requests.
    fn begin(&mut self, class: Class, requests: &[RequestId]);

    /// Announces what the launches that follow are for. Executors that it makes no difference to keep the default.
    fn expect(&mut self, _: Coming) {}

    /// Uses a time without launches; says whether it has more to do. Executors that have not keep the default.
    fn rest(&mut self) -> bool {
        false
    }

    /// Takes in a kernel that was compiled meanwhile. Executors that ask for none keep the default.
    fn adopt(&mut self, _: WarmForms) {}

    /// Drops a kernel that was taken in.
    fn unload(&mut self, _: WarmKernel) {}

    /// Writes the embeddings of tokens to the residual stream that the first layer reads.
    fn embed(
        &mut self,
        tokens: &[u32],
        rows: &Activations,
        first: usize,
    ) -> Result<(), RuntimeError>;

    /// Runs launches over the same rows one after the other, and returns the number of those that ran: before each but
    /// the first, `goes_on` is asked, on any thread, whether to run it.
    fn launch_all(
        &mut self,
        launches: &[Launch],
        batch: &Batch<'_>,
        goes_on: &GoesOn<'_>,
    ) -> Result<usize, RuntimeError>;

    /// Whether a batch of so many rows and so long a context may have tokens that are a tree.
    fn takes_trees(&self, rows: usize, context: usize) -> bool;

    /// The logits of the head's last run, as `rows` rows of V.
    fn logits(&mut self, rows: usize) -> Result<&mut [f32], RuntimeError>;

    /// Activations of batches, which are never preempted.
    fn pass_rows(&self) -> Arc<Activations>;

    /// Number of layers of the model.
    fn layers(&self) -> u32;

    /// Most rows that the head takes at a time.
    fn head_rows(&self) -> usize;
}

impl LaneExecutor for Executor {
    fn wait_ready(&mut self) -> Result<(), RuntimeError> {
        self.wait_ready()
    }

    fn cancel_on(&mut self, cancel: Arc<AtomicBool>) {
        self.cancel_on(cancel);
    }

    fn begin(&mut self, class: Class, _: &[RequestId]) {
        self.begin(class);
    }

    fn expect(&mut self, coming: Coming) {
        self.expect(coming);
    }

    fn rest(&mut self) -> bool {
        self.rest()
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

    fn launch_all(
        &mut self,
        launches: &[Launch],
        batch: &Batch<'_>,
        goes_on: &GoesOn<'_>,
    ) -> Result<usize, RuntimeError> {
        self.launch_all(launches, batch, goes_on)
    }

    fn takes_trees(&self, rows: usize, context: usize) -> bool {
        self.takes_trees(rows, context)
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

/// The sources of executors, memory and files.
pub(super) trait Machine: Send + Sync {
    /// The executor that a lane runs, over the one on OpenVINO.
    fn executor(&self, _: Lane, executor: Executor) -> Box<dyn LaneExecutor> {
        Box::new(executor)
    }

    /// Whether kernels may hang on a machine that has only its CPU.
    fn hangs_on_cpu(&self) -> bool {
        false
    }

    /// What the scheduler is to believe of its speed. Tests try what it makes of beliefs that are wrong.
    fn beliefs(&self) -> Beliefs {
        [1.0; Lane::ALL.len()]
    }

    /// Time that a lane has to answer when it is reset or told to end.
    fn patience(&self) -> Duration {
        PATIENCE
    }

    /// Reserves address space for a request's cache.
    fn reserve(&self, _: RequestId, shape: KvShape) -> Result<KvCache, RuntimeError> {
        KvCache::reserve(shape)
    }

    /// A draft to verify in place of the one that the text of a request suggests, after its prompt and answer so far.
    fn draft(&self, _: RequestId, _: &[u32]) -> Option<Draft> {
        None
    }

    /// Opens a file without a name, for a cache.
    fn file(&self, folder: &Path) -> io::Result<File> {
        tempfile::tempfile_in(folder)
    }
}

/// The machine that this process runs on.
pub(super) struct Host;

impl Machine for Host {}

/// Time that a lane has to answer. Chosen: the cancel flag is read every 100 ms, and drivers reset a device in seconds.
const PATIENCE: Duration = Duration::from_secs(10);
