//! The engine: a scheduler on real devices, serving many requests at once.
//!
//! One thread, the *conductor*, owns the scheduler, the clock and all memory: it turns what happens into the
//! scheduler's events and carries out its actions. Each lane is a thread of its own with an executor; it runs one
//! launch at a time and reports back, with the tokens that it chose. Requests come in through [`Engine`], which any
//! number of threads may hold, and each hears of its tokens through the listener that came with it.
//!
//! Nothing here decides what runs next: [`heg_sched`] does.

mod beliefs;
mod cache;
mod calibration;
mod conductor;
mod correction;
mod drafts;
#[cfg(feature = "faults")]
mod faults;
mod flash;
mod generation;
mod health;
mod held;
mod lane;
mod live;
mod machine;
mod memory;
mod pace;
mod reclaim;
mod request;
mod scores;
mod served;
mod serving;
mod single;
mod speeds;
mod status;
mod stopwatch;
mod thread;
mod waits;
mod warming;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use heg_artifacts::manifest::Manifest;
use heg_artifacts::{Bundle, SectionId};
use heg_spec::Policy;
use heg_spec::policy::{DraftPolicy, SchedulerKind};

use crate::error::RuntimeError;
use crate::exec::{Descents, ExecutorOptions, Loader, PairLanes};
use crate::history::PastAnswers;
use crate::ladder::Descent;
use conductor::{Arrival, Conductor, Message, turn_away};
use drafts::{RequestDrafts, history_of};
use health::{Pulse, panic_text};
use heg_sched::{Finish, FlowId, Observer, RequestId};
use live::refuse;
use machine::{Host, Machine};
use request::Listener;

pub use drafts::{DraftCounts, Speculation};
#[cfg(feature = "faults")]
pub use faults::{Fault, FaultPlan, Rule, Victim};
pub use generation::Generation;
pub use health::{Health, LostLane};
pub use request::{EndTokens, Ending, FinishReason, Request, ScopeId, Update};
pub use status::{IterationStatus, LaneStatus, PairStatus, Phases, Status};
pub use waits::{Entry, WaitStatus};

/// How an engine is set up.
#[derive(Default)]
pub struct EngineOptions {
    /// Options of each lane's executor. Its batch size is the policy's.
    pub exec: ExecutorOptions,
    /// How kernels are spread over lanes.
    pub lanes: Lanes,
    /// Folder for KV caches that idle flows make room with, as far as the policy grants flash.
    pub flash: Option<PathBuf>,
    /// Whether answers are drafted, so that several tokens of one are verified in a pass.
    pub speculation: Speculation,
    /// Observers of every step of the scheduler.
    pub observers: Vec<Box<dyn Observer>>,
}

/// How kernels are spread over lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lanes {
    /// The NPU's static kernels have a lane beside the one with dynamic kernels.
    #[default]
    PerDevice,
    /// One lane runs every kernel on the best device for it.
    Single,
}

/// A handle of a running engine. The last one that is dropped shuts it down.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    inbox: Sender<Message>,
    requests: AtomicU64,
    flows: AtomicU64,
    bundle: Arc<Bundle>,
    kv_tokens: u32,
    speculation: Speculation,
    drafts: DraftPolicy,
    fingerprint: String,
    pulse: Pulse,
    /// One entry for each lane.
    descents: Vec<Descents>,
    conductor: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts an engine with a lane for each device that the loader found; returns before kernels are ready.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::PolicyDevice`] where the machine has no lane for the policy, [`RuntimeError::Pair`] where it has not
    /// the two devices that the policy takes as one; [`RuntimeError::OpenVino`] where
    /// there is no memory for activations. What goes wrong with kernels is told by [`wait_ready`](Self::wait_ready).
    pub fn start(
        loader: Loader,
        policy: Policy,
        options: EngineOptions,
    ) -> Result<Self, RuntimeError> {
        Self::start_on(loader, policy, options, Arc::new(Host))
    }

    fn start_on(
        loader: Loader,
        policy: Policy,
        options: EngineOptions,
        machine: Arc<dyn Machine>,
    ) -> Result<Self, RuntimeError> {
        let loader = match policy.pair {
            Some(pairing) => loader.paired(pairing, lanes_of(policy.scheduler))?,
            None => loader,
        };
        let bundle = Arc::clone(loader.bundle());
        let fingerprint = fingerprint(&loader, &policy);
        let (inbox, messages) = channel();
        let pulse = Pulse::default();
        let (speculation, drafts) = (options.speculation, policy.drafts);
        let conductor = Conductor::new(loader, policy, options, machine, pulse.clone(), &inbox)?;
        let kv_tokens = conductor.kv_tokens();
        let descents = conductor.descents();
        let told = pulse.clone();
        let thread = std::thread::spawn(move || {
            let ran = catch_unwind(AssertUnwindSafe(|| conductor.run(&messages)));
            if let Err(panic) = ran {
                told.failed(format!("the conductor {}", panic_text(&*panic)));
            }
            // Whoever asks from now on is turned away by the closed channel; whoever did is, here.
            while let Ok(message) = messages.try_recv() {
                turn_away(message);
            }
        });
        Ok(Self(Arc::new(Shared {
            inbox,
            requests: AtomicU64::new(0),
            flows: AtomicU64::new(0),
            bundle,
            kv_tokens,
            speculation,
            drafts,
            fingerprint,
            pulse,
            descents,
            conductor: Mutex::new(Some(thread)),
        })))
    }

    /// Waits until every kernel is ready.
    ///
    /// # Errors
    ///
    /// The reason why kernels could not be prepared, to the first caller; [`RuntimeError::EngineStopped`] to others. No
    /// request is served then.
    pub fn wait_ready(&self) -> Result<(), RuntimeError> {
        self.ask(Message::WaitReady)?
    }

    /// Hands in a request, before kernels are ready too. `listener` hears what becomes of it, on the engine's thread,
    /// which waits for it; see [`generate`](Self::generate) for an iterator instead. A request that can never run is
    /// refused at once, on the caller's thread.
    pub fn submit(
        &self,
        request: Request,
        listener: impl FnMut(Update) + Send + 'static,
    ) -> RequestId {
        let id = RequestId(self.0.requests.fetch_add(1, Ordering::Relaxed));
        if let Err(error) = self.check(&request.prompt) {
            refuse(Box::new(listener), Finish::Failed, Some(Arc::new(error)));
            return id;
        }
        // An engine that drafts nothing has no rows to verify drafts in. On the caller's thread: a long prompt takes a
        // millisecond.
        let speculation = request.speculation.unwrap_or(self.0.speculation);
        let shape = self.0.speculation.shape().and(speculation.shape());
        let drafts = shape.map(|shape| RequestDrafts::new(&request, shape, self.0.drafts));
        self.send(Message::Submit(Arrival {
            at: Instant::now(),
            id,
            drafts: drafts.map(Box::new),
            request,
            listener: Box::new(listener),
        }));
        id
    }

    /// Drafts answers of a scope from these earlier ones, too. Takes some milliseconds, on the caller's thread. Nothing happens
    /// where answers of the scope have ended already, or where the engine drafts none.
    pub fn recall(&self, scope: ScopeId, answers: &PastAnswers) {
        if self.0.speculation != Speculation::Off {
            self.send(Message::Recall(scope, history_of(answers)));
        }
    }

    /// Checks whether a prompt can run at all. [`submit`](Self::submit) does so too.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::EmptyPrompt`], [`RuntimeError::Context`] or [`RuntimeError::Token`].
    pub fn check(&self, prompt: &[u32]) -> Result<(), RuntimeError> {
        let model = &self.manifest().model;
        let context = model.context_tokens as usize;
        if prompt.is_empty() {
            return Err(RuntimeError::EmptyPrompt);
        }
        if prompt.len() > context {
            let asked = prompt.len();
            return Err(RuntimeError::Context { asked, context });
        }
        match prompt.iter().find(|token| **token >= model.vocab) {
            Some(&found) => Err(RuntimeError::Token {
                found,
                vocab: model.vocab,
            }),
            None => Ok(()),
        }
    }

    /// Cancels a request, which then ends with [`Finish::Cancelled`] unless it has ended already.
    pub fn cancel(&self, id: RequestId) {
        self.send(Message::Cancel(id));
    }

    /// A new flow, for requests that continue each other's KV cache.
    pub fn new_flow(&self) -> FlowId {
        FlowId(self.0.flows.fetch_add(1, Ordering::Relaxed))
    }

    /// Ends a flow: what it keeps in memory or on flash is freed once its last call has ended.
    pub fn end_flow(&self, flow: FlowId) {
        self.send(Message::EndFlow(flow));
    }

    /// Whether the engine can serve. Answers at once, whatever the engine is doing.
    pub fn health(&self) -> Health {
        self.0.pulse.health()
    }

    /// Kernels that run elsewhere than on their best device, and why; known when every kernel is ready.
    pub fn descents(&self) -> Vec<Descent> {
        let mut all: Vec<Descent> = Vec::new();
        for descent in self.0.descents.iter().flat_map(Descents::get) {
            if !all.contains(descent) {
                all.push(descent.clone());
            }
        }
        all
    }

    /// Counts and times since the start, and what is running now.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::EngineGone`] where the engine has ended.
    pub fn status(&self) -> Result<Status, RuntimeError> {
        self.ask(Message::Status)
    }

    /// Tokens that fit the policy's memory for KV caches; a request for more never runs.
    pub fn kv_tokens(&self) -> u32 {
        self.0.kv_tokens
    }

    /// A text that changes where answers to equal requests may: with the bundle, the devices and their drivers, OpenVINO,
    /// the policy, and the version of this library.
    pub fn fingerprint(&self) -> &str {
        &self.0.fingerprint
    }

    /// The manifest of the bundle.
    pub fn manifest(&self) -> &Manifest {
        self.0.bundle.manifest()
    }

    /// The bundle that the engine runs.
    pub fn bundle(&self) -> &Bundle {
        &self.0.bundle
    }

    fn ask<T>(&self, question: impl FnOnce(Sender<T>) -> Message) -> Result<T, RuntimeError> {
        let (sender, answer) = channel();
        self.send(question(sender));
        answer.recv().map_err(|_| RuntimeError::EngineGone)
    }

    fn send(&self, message: Message) {
        // The conductor lives as long as there is a handle, unless it panicked.
        if let Err(unheard) = self.0.inbox.send(message) {
            turn_away(unheard.0);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.inbox.send(Message::Shutdown);
        let thread = self
            .conductor
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // A listener may hold the last handle: the conductor does not wait for itself.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// The lanes of a pair: schedulers that know of two keep two.
fn lanes_of(scheduler: SchedulerKind) -> PairLanes {
    match scheduler {
        SchedulerKind::AgentXpu | SchedulerKind::Serial => PairLanes::Two,
        SchedulerKind::ContinuousBatching
        | SchedulerKind::PreemptRecompute
        | SchedulerKind::TimeSharing => PairLanes::One,
    }
}

/// See [`Engine::fingerprint`].
fn fingerprint(loader: &Loader, policy: &Policy) -> String {
    let parts = format!(
        "{} {} {:?} {:?} {policy:?}",
        env!("CARGO_PKG_VERSION"),
        loader.bundle().manifest_id(),
        loader.devices(),
        loader.plugin_version(),
    );
    format!("heg-{}", SectionId::of(parts.as_bytes()).short())
}
