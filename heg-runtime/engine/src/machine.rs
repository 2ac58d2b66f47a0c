//! The engine's interface to its machine: executors for its lanes, memory for caches, files for caches of idle flows.
//!
//! The executor over OpenVINO is one implementation of [`LaneExecutor`]. The interface is independent of OpenVINO,
//! so that our own kernels can stand beside it; test doubles wrap it to make it fail.

use std::fs::File;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::pace::Pace;
use heg_draft::{Draft, Likely};
use heg_exec::ExecError;
use heg_exec::mem::{ActivationRows, KvCache, KvRoom};
use heg_exec::{Batch, Coming, Executor, GoesOn, TokenRun, WarmForms};
use heg_sched::{
    Class, Lane, Launch, LayerOrder, RequestId, Scheduler, WarmKernel, WorkStage, scheduler,
};
use heg_spec::Policy;

/// The kernels of a lane: they read and write rows of activations and KV caches, one order of launches at a time.
pub(super) trait LaneExecutor: Send {
    /// Waits until every kernel is ready.
    fn wait_ready(&mut self) -> Result<(), ExecError>;

    /// Cancels the running kernel from now on when `cancel` is set, if kernels can be cancelled.
    fn cancel_on(&mut self, cancel: Arc<AtomicBool>);

    /// Announces the class of the launches that follow, and their requests.
    fn begin(&mut self, class: Class, requests: &[RequestId]);

    /// Announces the work that the following launches belong to. Executors that ignore it keep the default.
    fn expect(&mut self, _: Coming) {}

    /// Uses idle time; returns whether it has more to do. Executors that have nothing to do keep the default.
    fn rest(&mut self) -> Result<bool, ExecError> {
        Ok(false)
    }

    /// Takes in a kernel that was compiled meanwhile. Executors that ask for none keep the default.
    fn adopt(&mut self, _: WarmForms) {}

    /// Drops a kernel that was taken in.
    fn unload(&mut self, _: WarmKernel) {}

    /// Writes the embeddings of tokens, with the position of the first, to the residual stream that the first layer
    /// reads.
    fn embed(
        &mut self,
        tokens: TokenRun<'_>,
        rows: &ActivationRows,
        first: usize,
    ) -> Result<(), ExecError>;

    /// Runs launches over the same rows one after the other, and returns the number of those that ran. Before each
    /// but the first, `goes_on` is asked, on any thread, whether to run it.
    fn launch_all(
        &mut self,
        launches: &[Launch],
        batch: &Batch<'_>,
        goes_on: &GoesOn<'_>,
    ) -> Result<usize, ExecError>;

    /// Whether a sequence may have `tokens` new tokens that are a tree, if it has `context` with them.
    fn takes_trees(&self, tokens: usize, context: usize) -> bool;

    /// Whether a launch waits for no load of a graph. Executors that load none keep the default.
    fn is_at_hand(&mut self, _: Launch) -> bool {
        true
    }

    /// Returns the logits of the head's last run, as `rows` rows of V.
    fn logits(&mut self, rows: usize) -> Result<&mut [f32], ExecError>;

    /// Activations of batches, which are never preempted.
    fn pass_rows(&self) -> Arc<ActivationRows>;

    /// Number of layers of the model.
    fn layers(&self) -> u32;

    /// The order of a layer's kernels in a stage.
    fn order(&self, stage: WorkStage) -> LayerOrder;

    /// Most rows that the head takes at a time.
    fn head_rows(&self) -> usize;
}

impl LaneExecutor for Executor {
    fn wait_ready(&mut self) -> Result<(), ExecError> {
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

    fn rest(&mut self) -> Result<bool, ExecError> {
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
        tokens: TokenRun<'_>,
        rows: &ActivationRows,
        first: usize,
    ) -> Result<(), ExecError> {
        self.embed(tokens, rows, first)
    }

    fn launch_all(
        &mut self,
        launches: &[Launch],
        batch: &Batch<'_>,
        goes_on: &GoesOn<'_>,
    ) -> Result<usize, ExecError> {
        self.launch_all(launches, batch, goes_on)
    }

    fn takes_trees(&self, tokens: usize, context: usize) -> bool {
        self.takes_trees(tokens, context)
    }

    fn is_at_hand(&mut self, launch: Launch) -> bool {
        self.is_at_hand(launch)
    }

    fn logits(&mut self, rows: usize) -> Result<&mut [f32], ExecError> {
        self.logits(rows)
    }

    fn pass_rows(&self) -> Arc<ActivationRows> {
        self.pass_rows()
    }

    fn layers(&self) -> u32 {
        self.layers()
    }

    fn order(&self, stage: WorkStage) -> LayerOrder {
        self.orders().at(stage)
    }

    fn head_rows(&self) -> usize {
        self.options().batch
    }
}

/// The sources of executors, memory and files.
pub(super) trait Machine: Send + Sync {
    /// Returns the executor of a lane, made from the one on OpenVINO.
    fn executor(&self, _: Lane, executor: Executor) -> Box<dyn LaneExecutor> {
        Box::new(executor)
    }

    /// Whether kernels may hang on a machine that has only its CPU.
    fn hangs_on_cpu(&self) -> bool {
        false
    }

    /// The scheduler of a policy, which decides by the costs that are known.
    fn scheduler(&self, policy: Policy, known: Rc<Pace>) -> Box<dyn Scheduler> {
        scheduler(policy, known)
    }

    /// Time that a lane has to answer when it is reset or told to end.
    fn patience(&self) -> Duration {
        PATIENCE
    }

    /// Makes a request's cache, for a number of tokens.
    fn reserve(&self, _: RequestId, room: &KvRoom, tokens: usize) -> Result<KvCache, ExecError> {
        room.reserve(tokens)
    }

    /// A draft to verify in place of the request's own, after its prompt and answer so far.
    fn draft(&self, _: RequestId, _: &[u32]) -> Option<Draft> {
        None
    }

    /// Takes notice of the tokens that a lane found likely in a request's prompt, from a position on.
    fn calibrated(&self, _: RequestId, _: u32, _: &[Likely]) {}

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
