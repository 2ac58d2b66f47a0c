//! The server: OpenAI's and Anthropic's APIs over HTTP, on loopback and on a Unix socket or named pipe, in front of the
//! engine.
//!
//! One tokio thread holds all connections; the engine has threads of its own. A request passes through `listen`
//! (sockets), `connection` (one client), `route`, `auth` (its identity), `account` (its memory budget), `body` (bytes
//! within limits), `request` (checked fields), `admission` (a permit), `served` (tokens) and `answering` (the engine's
//! updates as text); the response is written whole or as events, in the `document` of its API. The `dashboard` shows it
//! all. Whatever a client does, it can take only a bounded amount of memory, and a permit for a bounded time; clients
//! see nothing of each other.

mod account;
mod admission;
mod answer;
mod answering;
mod auth;
mod body;
mod body_bytes;
mod bounded_json;
mod choices;
mod client_stream;
mod closing;
mod complete;
mod connection;
mod dashboard;
mod dialect;
mod document;
mod drafting;
mod echo;
mod embeddings;
mod engine_metrics;
mod error;
mod error_form;
mod fields;
mod flows;
mod forms;
mod framing;
mod head;
mod held;
mod kept_metrics;
mod kept_responses;
mod listen;
mod log_probs;
mod mechanism_metrics;
mod message;
mod metrics;
mod metrics_text;
mod models;
mod pace;
mod pair_metrics;
mod platform;
mod pool;
mod preparation;
mod prepare;
mod recent;
mod request;
mod rerank;
mod route;
mod sending;
mod served;
mod server_error;
mod share;
mod stream;
mod supersede;
mod text_metrics;
mod text_vectors;
mod texts;
mod timeline;
mod token_file;
mod tools;
mod whole;

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use heg_files::OwnFolder;
use tokio::runtime::{Builder, Runtime};

use account::{Accounts, Scope};
use admission::Admission;
use answer::{Envelope, Label};
use body::BodyReader;
use closing::Closing;
use connection::Connections;
use dialect::Dialect;
use document::{AnswerDocument, MessageDocument, ResponseDocument};
use heg_runtime::energy::EnergyMeter;
use heg_runtime::engine::{EngineError, ScopeId};
use heg_runtime::{RuntimeError, verified};
use heg_state::StateOwner;
use kept_responses::KeptResponses;
use listen::Listeners;
use metrics::Metrics;
use metrics_text::MetricsText;
use pace::Pace;
use preparation::Preparation;
use supersede::Superseding;

pub use account::Budgets;
pub use auth::{Token, Tokens};
pub use body::BodyPace;
pub use error::ApiError;
pub use error_form::ErrorForm;
pub use listen::Address;
pub use models::Models;
pub use request::{
    Bound, ChatRequest, CompletionParams, CompletionRequest, Delivery, EchoPrompt, EndToken,
    FIELD_HEADERS, MessagesPurpose, PromptBounds, PromptText, RerankRequest, ResponsesRequest,
    Storing, Thoughts, TokenIds, Usage, flow_to_end,
};
pub use served::{ServedModel, text_worker};
pub use server_error::ServerError;
pub use timeline::Timeline;
pub use tools::{AnswerFormat, Tooling};

/// The options of a server.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Port on 127.0.0.1; 0 takes a free one.
    pub port: Option<u16>,
    /// Path of a Unix socket that only this user may connect to.
    pub socket: Option<PathBuf>,
    /// The tokens that clients must present on either transport; if empty, none is required.
    pub tokens: Tokens,
    /// The clients that share cached prompt prefixes.
    pub prefixes: Prefixes,
    /// Limits on what clients may use.
    pub limits: ServerLimits,
    /// The cache folder, which records that the bundle is intact as soon as kernels are ready.
    pub cache: Option<OwnFolder>,
}

/// The clients whose KV caches a prompt without a flow may reuse. Timing and `cached_tokens` reveal something of the
/// prompts behind those caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Prefixes {
    /// Only the same client's.
    #[default]
    Own,
    /// All clients', for clients that may know each other's prompts.
    Shared,
}

/// Limits on what clients may use. All of them are chosen.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// Maximum number of requests of each class that wait or run; more are refused with 429, except from clients that
    /// have few.
    pub requests: usize,
    /// Maximum number of open connections on each transport; more wait until one ends or an idle one is closed for
    /// them.
    pub connections: usize,
    /// Maximum size of a request's body in bytes; if unset, enough for the longest prompt.
    pub body_bytes: Option<usize>,
    /// Limits on the memory that requests make the server keep.
    pub budgets: Budgets,
    /// Maximum number of answer tokens if the request sets no limit.
    pub answer_tokens: u32,
    /// Maximum time for a request's head, and between two requests on a connection.
    pub head_time: Duration,
    /// The pace at which a request's body has to arrive.
    pub body_pace: BodyPace,
    /// Maximum time without progress while a response is sent.
    pub stall_time: Duration,
    /// Time that running answers get when the server shuts down.
    pub grace: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            requests: 256,
            connections: 4096,
            body_bytes: None,
            budgets: Budgets::default(),
            answer_tokens: 1024,
            head_time: Duration::from_secs(15),
            body_pace: BodyPace::default(),
            stall_time: Duration::from_secs(30),
            grace: Duration::from_secs(10),
        }
    }
}

/// A server that is bound to its addresses and answers no requests yet.
#[derive(Debug)]
pub struct Server {
    runtime: Runtime,
    listeners: Listeners,
    options: ServerOptions,
}

/// The state shared by all connections.
struct State {
    models: Models,
    tokens: Tokens,
    limits: ServerLimits,
    accounts: Accounts,
    /// The clients that share cached prompt prefixes.
    prefixes: Prefixes,
    body_reader: BodyReader,
    preparation: Preparation,
    admission: Arc<Admission>,
    superseding: Arc<Superseding>,
    /// Conversations that later requests may continue.
    responses: KeptResponses,
    metrics: Metrics,
    metrics_text: MetricsText,
    /// The pace of answers that do not involve the engine.
    pace: Pace,
    /// The end of the grace period.
    closing: Closing,
    /// Start time of the server, in seconds since 1970.
    created: u64,
    /// Random generator of answer ids.
    ids: RandomState,
    answers: AtomicU64,
}

impl Server {
    /// Binds the addresses of the options. An occupied port is reported before a model is loaded.
    ///
    /// # Errors
    /// `Listen`, `System`.
    pub fn bind(options: ServerOptions) -> Result<Self, ServerError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            // Each thread competes with the engine for a core, so there are only as many as preparation has places.
            .max_blocking_threads(preparation::THREADS_MAX)
            .build()
            .map_err(|source| ServerError::System {
                doing: "start an event loop",
                source,
            })?;
        let listeners = Listeners::open(options.port, options.socket.as_deref());
        let listeners = runtime.block_on(listeners)?;
        Ok(Self {
            runtime,
            listeners,
            options,
        })
    }

    /// Returns the addresses on which the server listens.
    pub fn addresses(&self) -> Vec<Address> {
        self.listeners.addresses()
    }

    /// Serves requests until `stop` completes; then accepts no more and gives running ones the grace period.
    ///
    /// # Errors
    /// The error that keeps all engines from running, or that of `stop`.
    pub fn run(
        self,
        models: impl Into<Models>,
        stop: impl Future<Output = Result<(), ServerError>>,
    ) -> Result<(), ServerError> {
        self.run_until(models, stop, std::future::pending())
    }

    /// Serves as [`run`](Self::run) does, but cuts the grace period short when `now` completes. `now` is waited for
    /// from the end of `stop` on.
    ///
    /// # Errors
    /// As [`run`](Self::run), or the error of `now`.
    pub fn run_until(
        self,
        models: impl Into<Models>,
        stop: impl Future<Output = Result<(), ServerError>>,
        now: impl Future<Output = Result<(), ServerError>>,
    ) -> Result<(), ServerError> {
        self.serve(models.into(), Box::pin(stop), Box::pin(now))
    }

    /// Serves. Nothing here depends on the caller's types: the futures of connections are compiled with this crate, and
    /// not again with each program that serves.
    fn serve(self, models: Models, stop: Signal<'_>, now: Signal<'_>) -> Result<(), ServerError> {
        let cache = self.options.cache.clone();
        let state = Arc::new(State::new(models, self.options));
        let outcome = self.runtime.block_on(async {
            let warm = Arc::clone(&state);
            let (failed, failure) = tokio::sync::oneshot::channel();
            // On a thread of its own, because the runtime's threads tokenize.
            std::thread::spawn(move || {
                if let Err(error) = warm.prepare_models(cache.as_ref()) {
                    drop(failed.send(error));
                }
            });
            let connections = Connections::new(Arc::clone(&state));
            let failed = async {
                match failure.await {
                    Ok(error) => error,
                    Err(_) => std::future::pending().await,
                }
            };
            tokio::select! {
                ended = connections.serve(self.listeners, stop, now) => ended,
                error = failed => Err(error.into()),
            }
        });
        self.runtime.shutdown_background();
        // Threads that are left may hold handles of the engine until the process ends: too late for its observers.
        for served in state.models.iter() {
            served.engine.shut_down();
        }
        outcome
    }
}

impl State {
    fn new(models: Models, options: ServerOptions) -> Self {
        let limits = options.limits;
        let body_bytes = limits.body_bytes;
        let body_bytes = body_bytes.unwrap_or_else(|| models.bounds().body_bytes_max());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            models,
            tokens: options.tokens,
            accounts: Accounts::new(limits.budgets),
            prefixes: options.prefixes,
            body_reader: BodyReader::new(body_bytes, limits.body_pace),
            preparation: Preparation::default(),
            admission: Arc::new(Admission::new(limits.requests)),
            limits,
            superseding: Arc::default(),
            responses: KeptResponses::default(),
            metrics: Metrics::default().with_energy(EnergyMeter::of_machine()),
            metrics_text: MetricsText::default(),
            pace: Pace::default(),
            closing: Closing::default(),
            created: now.map_or(0, |time| time.as_secs()),
            ids: RandomState::new(),
            answers: AtomicU64::new(0),
        }
    }

    /// Waits until the kernels of all models are ready. A model whose kernels cannot be prepared is reported on standard
    /// error, and the others serve.
    ///
    /// # Errors
    /// The reason why the last model cannot run, if none can.
    fn prepare_models(&self, cache: Option<&OwnFolder>) -> Result<(), RuntimeError> {
        let (mut ready, mut last) = (0, None);
        for served in self.models.iter() {
            match served.wait_ready() {
                Ok(()) => ready += 1,
                // The server ends while models get ready: nobody waits for them.
                Err(RuntimeError::Engine(EngineError::EngineStopped)) => continue,
                Err(error) => {
                    if let Some(before) = last.replace((served, error)) {
                        report(before);
                    }
                    continue;
                }
            }
            if let Some(cache) = cache {
                // If part of the bundle is damaged, the first request that needs that part reports it.
                let _ = verified::remember(served.engine.bundle(), cache);
            }
        }
        match (last, ready) {
            (Some((_, error)), 0) => return Err(error),
            (Some(failed), _) => report(failed),
            (None, _) => {}
        }
        Ok(())
    }

    /// Returns the scope within which a client shares prompt prefixes.
    fn prefix_scope(&self, scope: Scope) -> ScopeId {
        match self.prefixes {
            Prefixes::Own => scope.id(),
            Prefixes::Shared => Scope::Loopback.id(),
        }
    }

    /// Returns the owner under whom a client's prompts are kept and found in later processes.
    fn state_owner(&self, scope: Scope) -> StateOwner {
        match self.prefixes {
            Prefixes::Own => auth::state_owner(&self.tokens, scope),
            Prefixes::Shared => StateOwner::new("all clients", b""),
        }
    }

    /// Returns the name of a new answer, behind a prefix.
    fn new_id(&self, prefix: &str) -> String {
        let number = self.answers.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{:016x}", self.ids.hash_one(number))
    }

    /// Returns the label of a new answer.
    fn label(&self, served: &ServedModel, dialect: Dialect) -> Label {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Label {
            id: self.new_id(dialect.id_prefix()),
            created: now.map_or(0, |time| time.as_secs()),
            model: served.name.clone(),
        }
    }

    /// Returns the document of a new answer that repeats nothing of its request.
    fn document(&self, served: &ServedModel, dialect: Dialect) -> AnswerDocument {
        let label = self.label(served, dialect);
        match dialect {
            Dialect::Choices(api) => AnswerDocument::Choices(Envelope {
                api,
                label,
                fingerprint: served.engine.fingerprint().to_owned(),
                tokenizer: served.tokenizer.clone(),
            }),
            Dialect::Messages(_) => AnswerDocument::Message(MessageDocument {
                label,
                context_tokens: served.bounds().tokens,
            }),
            Dialect::Responses => AnswerDocument::Response(Box::new(ResponseDocument {
                label,
                asked: serde_json::Map::new(),
                keeping: None,
            })),
        }
    }
}

/// Ends a server.
type Signal<'a> = Pin<Box<dyn Future<Output = Result<(), ServerError>> + 'a>>;

/// Says on standard error that a model is not served.
fn report((served, error): (&Arc<ServedModel>, RuntimeError)) {
    let why = error.chain();
    // A missing reader is no error.
    let _ = writeln!(
        std::io::stderr(),
        "heg: model {} is not served: {why}",
        served.name()
    );
}

/// Waits until the process is told to end: by SIGTERM or SIGINT or, on Windows, by Ctrl-C or the end of its console.
///
/// # Errors
/// `System`, if signals cannot be waited for. Must run in a tokio runtime.
pub async fn shutdown_signal() -> Result<(), ServerError> {
    let told = platform::told_to_end().await;
    told.map_err(|source| ServerError::System {
        doing: "wait for signals",
        source,
    })
}
