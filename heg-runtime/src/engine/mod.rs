//! The engine: a scheduler on real devices, serving many requests at once.
//!
//! One thread, the *conductor*, owns the scheduler, the clock and all memory: it turns what happens into
//! [`Event`]s and carries out [`Action`]s. Each lane is a thread of its own with an executor; it runs one launch at
//! a time and reports back. Requests come in through [`Engine`], which any number of threads may hold, and hear
//! of their tokens through the listener that they brought.
//!
//! Nothing here decides what runs next: that is [`sched`](heg_sched)'s.

mod cache;
mod conductor;
#[cfg(feature = "faults")]
mod faults;
mod flash;
mod health;
mod held;
mod lane;
mod live;
mod machine;
mod memory;
mod pace;
mod reclaim;
mod served;
mod serving;
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
use std::time::{Duration, Instant};

use heg_artifacts::Bundle;
use heg_artifacts::manifest::Manifest;
use heg_spec::Policy;

use crate::error::RuntimeError;
use crate::exec::{ExecutorOptions, Loader};
use crate::generate::FinishReason;
use conductor::{Arrival, Conductor, Message, turn_away};
use health::{Pulse, panic_text};
use heg_sched::{Class, Finish, FlowId, Observer, RequestId};
use heg_text::{Restriction, SamplingParams};
use machine::{Host, Machine};

#[cfg(feature = "faults")]
pub use faults::{Fault, FaultPlan, Rule, Victim};
pub use health::{Health, LostLane};
pub use status::{LaneStatus, Phases, Status};
pub use waits::{Entry, WaitStatus};

/// How an engine is set up.
#[derive(Default)]
pub struct EngineOptions {
    /// Of each lane's executor. Batches are as large as the policy says.
    pub exec: ExecutorOptions,
    /// Folder for KV caches that idle flows make room with, as far as the policy grants flash.
    pub flash: Option<PathBuf>,
    /// Told of every step.
    pub observers: Vec<Box<dyn Observer>>,
}

/// Whose a request is. What one scope left in KV caches is never found by requests of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(pub u64);

/// A request.
pub struct Ask {
    /// Whose it is.
    pub scope: ScopeId,
    /// How urgent it is.
    pub class: Class,
    /// The whole prompt, what a flow has in its cache included.
    pub prompt: Vec<u32>,
    /// Most tokens of the answer.
    pub tokens_max: u32,
    /// Tokens that end the answer; empty to ignore them.
    pub eos_ids: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// The form that the answer is held to; it ends where that is complete.
    pub restriction: Option<Box<dyn Restriction>>,
    /// The flow that it goes on with: calls of one flow run one after the other, and each finds what the last one
    /// left in the KV cache.
    pub flow: Option<FlowId>,
    /// When the answer is worth nothing any more, from the moment at which it is handed in.
    pub deadline: Option<Duration>,
}

/// What a listener hears, in this order: `Accepted`, tokens, `Finished`. A request that is refused hears only the
/// last.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// The scheduler has the request.
    Accepted {
        /// When the first token should be there, from now.
        predicted_ttft: Duration,
    },
    /// The next token of the answer; the one that ended it included.
    Token(u32),
    /// The request is over.
    Finished(Ending),
}

/// How a request ended, and how long it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Ending {
    /// How.
    pub finish: Finish,
    /// For [`Finish::Complete`]: at an end token, or for want of room.
    pub reason: FinishReason,
    /// What went wrong, where something did.
    pub error: Option<String>,
    /// Tokens of the prompt that were in the KV cache already.
    pub reused_tokens: u32,
    /// From submission to its first kernel.
    pub queued: Duration,
    /// From submission to the first token.
    pub ttft: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Tokens of the answer.
    pub generated: u32,
}

type Listener = Box<dyn FnMut(Update) + Send>;

/// A handle of a running engine. The last one that is dropped shuts it down.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    inbox: Sender<Message>,
    requests: AtomicU64,
    flows: AtomicU64,
    bundle: Arc<Bundle>,
    kv_tokens: u32,
    pulse: Pulse,
    conductor: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts an engine on the lanes that the loader's devices make; returns before kernels are ready.
    ///
    /// # Errors
    ///
    /// Where there is no memory for activations. What goes wrong with kernels is
    /// [`wait_ready`](Self::wait_ready)'s to say.
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
        let bundle = Arc::clone(loader.bundle());
        let (inbox, messages) = channel();
        let pulse = Pulse::default();
        let conductor = Conductor::new(loader, policy, options, machine, pulse.clone(), &inbox)?;
        let kv_tokens = conductor.kv_tokens();
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
            pulse,
            conductor: Mutex::new(Some(thread)),
        })))
    }

    /// Waits until every kernel is ready.
    ///
    /// # Errors
    ///
    /// Why the engine cannot run; no request is served then.
    pub fn wait_ready(&self) -> Result<(), RuntimeError> {
        self.ask(Message::WaitReady)?
    }

    /// Hands in a request. `listener` hears what becomes of it, on the engine's thread, which waits for it.
    pub fn submit(&self, ask: Ask, listener: impl FnMut(Update) + Send + 'static) -> RequestId {
        let id = RequestId(self.0.requests.fetch_add(1, Ordering::Relaxed));
        self.send(Message::Submit(Arrival {
            at: Instant::now(),
            id,
            ask,
            listener: Box::new(listener),
        }));
        id
    }

    /// Nobody waits for a request any more.
    pub fn cancel(&self, id: RequestId) {
        self.send(Message::Cancel(id));
    }

    /// A flow of its own, which no request goes on with yet.
    pub fn new_flow(&self) -> FlowId {
        FlowId(self.0.flows.fetch_add(1, Ordering::Relaxed))
    }

    /// A flow has no further calls.
    pub fn end_flow(&self, flow: FlowId) {
        self.send(Message::EndFlow(flow));
    }

    /// Whether it can serve; told at once, whatever the engine is doing.
    pub fn health(&self) -> Health {
        self.0.pulse.health()
    }

    /// How things stand.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::LoaderGone`] where the engine has ended.
    pub fn status(&self) -> Result<Status, RuntimeError> {
        self.ask(Message::Status)
    }

    /// Tokens that KV caches have room for: a request of more never runs.
    pub fn kv_tokens(&self) -> u32 {
        self.0.kv_tokens
    }

    /// What the engine runs.
    pub fn manifest(&self) -> &Manifest {
        self.0.bundle.manifest()
    }

    /// The bundle that it is in.
    pub fn bundle(&self) -> &Bundle {
        &self.0.bundle
    }

    fn ask<T>(&self, question: impl FnOnce(Sender<T>) -> Message) -> Result<T, RuntimeError> {
        let (sender, answer) = channel();
        self.send(question(sender));
        answer.recv().map_err(|_| RuntimeError::LoaderGone)
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
