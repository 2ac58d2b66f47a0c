//! The handle of a running engine, for embedders.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use heg_artifacts::manifest::Manifest;
use heg_artifacts::{Bundle, SectionId};
use heg_spec::Policy;
use heg_spec::policy::{DraftPolicy, SchedulerKind};

use crate::baked::BakedStates;
use crate::conductor::Conductor;
use crate::descents::AllDescents;
use crate::drafts::{DraftTexts, RequestDrafts, Speculation, history_of};
use crate::error::EngineError;
use crate::health::{Health, Pulse, panic_text};
use crate::history::PastAnswers;
use crate::kept::KeptState;
use crate::machine::{Host, Machine};
use crate::message::{Arrival, Message, turn_away};
use crate::options::EngineOptions;
use crate::prefix::{KeptPrompt, PrefixRows};
use crate::request::{AnswerKind, Request, ScopeId, Update, refuse};
use crate::resident::Place;
use crate::status::Status;
use heg_draft::Shape;
use heg_exec::{Descent, ExecError, Loader, PairLanes};
use heg_sched::{Finish, FlowId, RequestId};
use heg_state::StateOwner;

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
    descents: AllDescents,
    kept: Result<Option<KeptState>, String>,
    baked: Option<BakedStates>,
    place: Place,
    conductor: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts an engine with a lane for each device that the loader found; returns before kernels are ready.
    ///
    /// # Errors
    ///
    /// [`EngineError::PolicyDevice`] if the machine has no lane for the policy, [`ExecError::Pair`] if it lacks one
    /// of the two devices that the policy pairs, [`ExecError::OpenVino`] if there is no memory for activations.
    /// Errors of kernels are returned by [`wait_ready`](Self::wait_ready).
    pub fn start(
        loader: Loader,
        policy: Policy,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        Self::start_on(loader, policy, options, Arc::new(Host))
    }

    pub(crate) fn start_on(
        loader: Loader,
        policy: Policy,
        options: EngineOptions,
        machine: Arc<dyn Machine>,
    ) -> Result<Self, EngineError> {
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
        let (kept, baked) = (conductor.kept.clone(), conductor.baked.clone());
        let place = conductor.residence.place();
        let told = pulse.clone();
        let thread = std::thread::spawn(move || {
            let ran = catch_unwind(AssertUnwindSafe(|| conductor.run(&messages)));
            if let Err(panic) = ran {
                told.failed(format!("the conductor {}", panic_text(&*panic)));
            }
            // Callers from now on are turned away by the closed channel; earlier ones are turned away here.
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
            kept,
            baked,
            place,
            conductor: Mutex::new(Some(thread)),
        })))
    }

    /// Waits until every kernel is ready.
    ///
    /// # Errors
    ///
    /// The reason why kernels could not be prepared, for the first caller; [`EngineError::EngineStopped`] for others.
    /// No request is served then.
    pub fn wait_ready(&self) -> Result<(), EngineError> {
        self.ask(Message::WaitReady)?
    }

    /// Shuts the engine down though other handles may be left: requests under way end, later ones are turned away. Returns
    /// when its observers have been dropped, so that a trace is whole.
    pub fn shut_down(&self) {
        self.0.shut_down();
    }

    /// Submits a request, even before kernels are ready. `listener` receives its updates on the engine's thread,
    /// which waits for it; see [`generate`](Self::generate) for an iterator instead. A request that can never run is
    /// refused at once, on the caller's thread. The texts that its answer is drafted from are also made there, unless
    /// [`draft_texts`](Self::draft_texts) has made them, and its prefix is looked for in [kept
    /// state](EngineOptions::state).
    pub fn submit(
        &self,
        mut request: Request,
        listener: impl FnMut(Update) + Send + 'static,
    ) -> RequestId {
        let id = RequestId(self.0.requests.fetch_add(1, Ordering::Relaxed));
        let checked = self.check(&request.prompt);
        if let Err(error) = checked.and_then(|()| self.check_kind(request.kind)) {
            refuse(Box::new(listener), Finish::Failed, Some(Arc::new(error)));
            return id;
        }
        let drafts = self.shape(request.speculation).map(|shape| {
            let made = request.draft_texts.take();
            let texts =
                made.unwrap_or_else(|| DraftTexts::new(&request.prompt, &request.prediction));
            RequestDrafts::new(texts, shape, self.0.drafts)
        });
        let at = Instant::now();
        let kept = request.kept.take();
        let kept = kept.unwrap_or_else(|| self.find_kept(request.state, &request.prompt));
        self.send(Message::Submit(Box::new(Arrival {
            at,
            id,
            drafts: drafts.map(Box::new),
            request,
            listener: Box::new(listener),
            kept: kept.0,
        })));
        id
    }

    /// Looks for the longest prefix of a prompt in its owner's [kept state](EngineOptions::state) and in the [states of
    /// the bundle](EngineOptions::baked), for [`Request::kept`]. It opens a file for each 64 tokens that are there, so a caller that must not wait should do it
    /// on another thread; otherwise [`submit`](Self::submit) does it. The answers to one prompt share what is found.
    pub fn find_kept(&self, owner: Option<StateOwner>, prompt: &[u32]) -> KeptPrompt {
        let kept = self.0.kept.as_ref().ok().and_then(Option::as_ref);
        let state = kept.zip(owner);
        let kept = state.and_then(|(kept, owner)| kept.find(owner, prompt));
        let baked = self.0.baked.as_ref();
        let baked = baked.and_then(|baked| baked.find(prompt));
        KeptPrompt(PrefixRows::longest(kept, baked))
    }

    /// Makes the texts that the answers to a prompt are drafted from, for [`Request::draft_texts`]; `None` if they
    /// are not drafted. It takes a millisecond for ten thousand tokens, so a caller that must not wait should do it
    /// on another thread; otherwise [`submit`](Self::submit) does it. The `answers` to one prompt share the texts.
    pub fn draft_texts(
        &self,
        prompt: &[u32],
        prediction: &[u32],
        speculation: Option<Speculation>,
        answers: u32,
    ) -> Option<DraftTexts> {
        self.shape(speculation)?;
        let texts = DraftTexts::new(prompt, prediction);
        Some(match answers {
            0 | 1 => texts,
            _ => texts.shared(),
        })
    }

    /// Returns the shape of a request's drafts; `None` if the engine drafts nothing, and so has no rows to verify
    /// drafts in.
    fn shape(&self, speculation: Option<Speculation>) -> Option<Shape> {
        let speculation = speculation.unwrap_or(self.0.speculation);
        self.0.speculation.shape().and(speculation.shape())
    }

    /// Drafts answers of a scope from these earlier ones, too. Takes some milliseconds, on the caller's thread. Does
    /// nothing if answers of the scope have ended already, or if the engine does not draft.
    pub fn recall(&self, scope: ScopeId, answers: &PastAnswers) {
        if self.0.speculation != Speculation::Off {
            self.send(Message::Recall(scope, history_of(answers)));
        }
    }

    /// Checks whether a prompt can run at all, as [`submit`](Self::submit) also does.
    ///
    /// # Errors
    ///
    /// [`ExecError::EmptyPrompt`], [`ExecError::Context`] or [`ExecError::Token`].
    pub fn check(&self, prompt: &[u32]) -> Result<(), EngineError> {
        let model = &self.manifest().model;
        let context = model.context_tokens as usize;
        if prompt.is_empty() {
            return Err(ExecError::EmptyPrompt.into());
        }
        if prompt.len() > context {
            let asked = prompt.len();
            return Err(ExecError::Context { asked, context }.into());
        }
        match prompt.iter().find(|token| **token >= model.vocab) {
            Some(&found) => Err(ExecError::Token {
                found,
                vocab: model.vocab,
            }
            .into()),
            None => Ok(()),
        }
    }

    /// The kind of answers that the model gives.
    pub fn gives(&self) -> AnswerKind {
        match self.manifest().vectors {
            Some(vectors) if vectors.scores.is_some() => AnswerKind::Score,
            Some(_) => AnswerKind::Vector,
            None => AnswerKind::Tokens,
        }
    }

    /// Checks that the model gives a kind of answer, as [`submit`](Self::submit) also does.
    ///
    /// # Errors
    ///
    /// [`EngineError::Output`].
    pub fn check_kind(&self, asked: AnswerKind) -> Result<(), EngineError> {
        let gives = self.gives();
        match asked == gives {
            true => Ok(()),
            false => Err(EngineError::Output { asked, gives }),
        }
    }

    /// The states of the bundle that are passed over, with the reasons.
    pub fn passed_states(&self) -> &[Descent] {
        self.0.baked.as_ref().map_or(&[], BakedStates::descents)
    }

    /// Why nothing is kept in [`EngineOptions::state`]; `None` if it is, or no folder was given.
    pub fn not_kept(&self) -> Option<&str> {
        self.0.kept.as_ref().err().map(String::as_str)
    }

    /// Cancels a request, which then ends with [`Finish::Cancelled`] unless it has ended already.
    pub fn cancel(&self, id: RequestId) {
        self.send(Message::Cancel(id));
    }

    /// Returns a new flow, for requests that continue each other's KV cache.
    pub fn new_flow(&self) -> FlowId {
        FlowId(self.0.flows.fetch_add(1, Ordering::Relaxed))
    }

    /// Ends a flow: its cache in memory or on flash is freed once its last call has ended.
    pub fn end_flow(&self, flow: FlowId) {
        self.send(Message::EndFlow(flow));
    }

    /// Returns whether the engine can serve. Answers at once, even while the engine is busy.
    pub fn health(&self) -> Health {
        self.0.pulse.health()
    }

    /// Returns the kernels that run elsewhere than on their best device, with the reasons; known when every kernel is
    /// ready.
    pub fn descents(&self) -> Vec<Descent> {
        self.0.descents.get()
    }

    /// Returns counts and times since the start, and the work in progress.
    ///
    /// # Errors
    ///
    /// [`EngineError::EngineGone`] if the engine has ended.
    pub fn status(&self) -> Result<Status, EngineError> {
        self.ask(Message::Status)
    }

    /// Tokens that fit the policy's memory for KV caches; a request for more never runs.
    pub fn kv_tokens(&self) -> u32 {
        self.0.kv_tokens
    }

    /// A text that changes whenever answers to equal requests may change: with the bundle, the devices and their
    /// drivers, OpenVINO, the policy, and the version of this library.
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

    /// Whether the bundle is in memory, by the [budget](EngineOptions::resident) that it shares with others; `None` without one.
    pub fn is_resident(&self) -> Option<bool> {
        self.0.place.is_resident()
    }

    fn ask<T>(&self, question: impl FnOnce(Sender<T>) -> Message) -> Result<T, EngineError> {
        let (sender, answer) = channel();
        self.send(question(sender));
        answer.recv().map_err(|_| EngineError::EngineGone)
    }

    fn send(&self, message: Message) {
        // The conductor lives as long as there is a handle, unless it panicked.
        if let Err(unheard) = self.0.inbox.send(message) {
            turn_away(unheard.0);
        }
    }
}

impl Shared {
    fn shut_down(&self) {
        let _ = self.inbox.send(Message::Shutdown);
        let mut conductor = self
            .conductor
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A listener may hold the last handle: the conductor does not wait for itself.
        let is_other = |it: &JoinHandle<()>| it.thread().id() != std::thread::current().id();
        if conductor.as_ref().is_some_and(is_other)
            && let Some(thread) = conductor.take()
        {
            let _ = thread.join();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Returns the lanes of a pair: schedulers that know two lanes keep two.
fn lanes_of(scheduler: SchedulerKind) -> PairLanes {
    match scheduler {
        SchedulerKind::AgentXpu => PairLanes::Two,
        SchedulerKind::ContinuousBatching | SchedulerKind::PriorityBatching => PairLanes::One,
    }
}

/// Computes [`Engine::fingerprint`].
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
