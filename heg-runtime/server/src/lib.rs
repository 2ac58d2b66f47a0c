//! The server: OpenAI's interface over HTTP, on loopback and on a Unix socket, in front of the engine.
//!
//! One thread of tokio holds all connections; the engine has threads of its own. A request goes through `listen`
//! (the doors), `connection` (one client), `route`, `auth` (who it is), `account` (what it may make the server keep),
//! `body` (bytes under limits), `request` (fields, checked), `admission` (a place in the queue), `served` (tokens),
//! `answering` (the engine's updates as text) and out through `answer`, whole, or `stream`, as events. People look at the
//! `dashboard`. Nothing a client does, or leaves undone, holds more than a bounded amount of memory, or a place for longer
//! than a bounded time; and clients see nothing of each other.

mod account;
mod admission;
mod answer;
mod answering;
mod auth;
mod body;
mod body_bytes;
mod bounded_json;
mod client_stream;
mod complete;
mod connection;
mod dashboard;
mod error;
mod fields;
mod flows;
mod listen;
mod message;
mod metrics;
mod pool;
mod preparation;
mod request;
mod route;
mod sending;
mod served;
mod server_error;
mod share;
mod socket;
mod stream;
mod supersede;
mod timeline;
mod token_file;
mod tools;

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use heg_files::OwnFolder;
use tokio::runtime::{Builder, Runtime};

use account::{Accounts, Scope};
use admission::Admission;
use answer::{Head, Voice};
use body::Intake;
use connection::Connections;
use dashboard::Standing;
use flows::Flows;
use heg_runtime::engine::ScopeId;
use heg_runtime::verified;
use listen::Doors;
use metrics::Metrics;
use preparation::Preparation;
use supersede::Superseding;

pub use account::Budgets;
pub use auth::{Token, Tokens};
pub use body::BodyPace;
pub use error::ApiError;
pub use listen::Address;
pub use request::{
    Bound, ChatRequest, CompletionRequest, Delivery, EndToken, FIELD_HEADERS, PromptBounds,
    PromptText, TokenIds, Usage, Wishes, flow_to_end,
};
pub use served::Served;
pub use server_error::ServerError;
pub use timeline::Timeline;
pub use tools::{AnswerFormat, Tooling};

/// How a server is set up.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Port on 127.0.0.1; 0 takes one that is free.
    pub port: Option<u16>,
    /// Path of a Unix socket, which only this user may connect to.
    pub socket: Option<PathBuf>,
    /// What clients have to show, on both ways; where there are none, nothing.
    pub tokens: Tokens,
    /// Whose prompts may go on where whose prompts ended.
    pub prefixes: Prefixes,
    /// What clients may use up.
    pub limits: ServerLimits,
    /// The cache folder, in which it is remembered that the bundle is right as soon as kernels are ready.
    pub cache: Option<OwnFolder>,
}

/// Whose KV caches a prompt without a flow may go on with. Times, and `cached_tokens`, tell a client which prompts those
/// caches are of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Prefixes {
    /// The client's own.
    #[default]
    Own,
    /// Everybody's: for clients that may know each other's prompts.
    Shared,
}

/// What clients may use up. All of it is chosen.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// Requests of each class that wait or run; more are refused with 429, except from clients that have few.
    pub requests: usize,
    /// Open connections at each door; more wait until one ends, or until one that asks nothing has gone for them.
    pub connections: usize,
    /// Bytes of a request's body; without a limit, what the longest prompt may be written in.
    pub body_bytes: Option<usize>,
    /// Bytes that requests make the server keep.
    pub budgets: Budgets,
    /// Tokens of an answer whose request sets no limit.
    pub answer_tokens: u32,
    /// Time for a request's head, and between two requests of a connection.
    pub head_time: Duration,
    /// How fast a request's body has to come.
    pub body_pace: BodyPace,
    /// Time for which a client may take nothing of what is sent to it.
    pub stall_time: Duration,
    /// Time for answers under way when the server is told to end.
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

/// A server that listens, and answers nobody yet.
#[derive(Debug)]
pub struct Server {
    runtime: Runtime,
    doors: Doors,
    options: ServerOptions,
}

/// What all connections share.
struct State {
    served: Arc<Served>,
    tokens: Tokens,
    limits: ServerLimits,
    accounts: Accounts,
    /// Whose prompts may go on where whose prompts ended.
    prefixes: Prefixes,
    intake: Intake,
    preparation: Preparation,
    admission: Arc<Admission>,
    superseding: Arc<Superseding>,
    flows: Flows,
    metrics: Arc<Metrics>,
    standing: Standing,
    /// Whether all kernels are ready.
    ready: AtomicBool,
    /// When the server started, in seconds since 1970.
    created: u64,
    /// Makes the ids of answers.
    ids: RandomState,
    answers: AtomicU64,
}

impl Server {
    /// Listens where the options say. A port that is taken is found out before a model is loaded.
    ///
    /// # Errors
    /// `Listen`, `System`.
    pub fn bind(options: ServerOptions) -> Result<Self, ServerError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            // In the way of the engine: no more than there are places.
            .max_blocking_threads(preparation::THREADS_MAX)
            .build()
            .map_err(|source| ServerError::System {
                doing: "start an event loop",
                source,
            })?;
        let doors = Doors::open(options.port, options.socket.as_deref());
        let doors = runtime.block_on(doors)?;
        Ok(Self {
            runtime,
            doors,
            options,
        })
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<Address> {
        self.doors.addresses()
    }

    /// Answers until `stop`; then takes no more requests, and gives those under way the time of grace.
    ///
    /// # Errors
    /// Why the engine cannot run; whatever `stop` gives.
    pub fn run(
        self,
        served: Served,
        stop: impl Future<Output = Result<(), ServerError>>,
    ) -> Result<(), ServerError> {
        let cache = self.options.cache.clone();
        let state = Arc::new(State::new(served, self.options));
        let engine = state.served.engine.clone();
        let outcome = self.runtime.block_on(async {
            let warm = Arc::clone(&state);
            let (failed, failure) = tokio::sync::oneshot::channel();
            // Not one of the runtime's threads, which tokenise.
            std::thread::spawn(move || match engine.wait_ready() {
                Ok(()) => {
                    warm.ready.store(true, Ordering::Release);
                    if let Some(cache) = cache {
                        // Damage in what no request has needed yet is told to the one that does.
                        let _ = verified::remember(engine.bundle(), &cache);
                    }
                }
                Err(error) => drop(failed.send(error)),
            });
            let connections = Connections::new(Arc::clone(&state));
            let failed = async {
                match failure.await {
                    Ok(error) => error,
                    Err(_) => std::future::pending().await,
                }
            };
            tokio::select! {
                ended = connections.serve(self.doors, stop) => ended,
                error = failed => Err(error.into()),
            }
        });
        self.runtime.shutdown_background();
        outcome
    }
}

impl State {
    fn new(served: Served, options: ServerOptions) -> Self {
        let limits = options.limits;
        let body_bytes = limits.body_bytes;
        let body_bytes = body_bytes.unwrap_or_else(|| served.bounds().body_bytes_max());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            served: Arc::new(served),
            tokens: options.tokens,
            accounts: Accounts::new(limits.budgets),
            prefixes: options.prefixes,
            intake: Intake::new(body_bytes, limits.body_pace),
            preparation: Preparation::default(),
            admission: Arc::new(Admission::new(limits.requests)),
            limits,
            superseding: Arc::default(),
            flows: Flows::default(),
            metrics: Arc::default(),
            standing: Standing::default(),
            ready: AtomicBool::new(false),
            created: now.map_or(0, |time| time.as_secs()),
            ids: RandomState::new(),
            answers: AtomicU64::new(0),
        }
    }

    /// With whom a client shares prefixes of prompts.
    fn prefix_scope(&self, scope: Scope) -> ScopeId {
        match self.prefixes {
            Prefixes::Own => scope.id(),
            Prefixes::Shared => Scope::Loopback.id(),
        }
    }

    /// The head of a new answer.
    fn head(&self, voice: Voice) -> Head {
        let number = self.answers.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Head {
            voice,
            id: format!("{}-{:016x}", voice.id_prefix(), self.ids.hash_one(number)),
            created: now.map_or(0, |time| time.as_secs()),
            model: self.served.name.clone(),
        }
    }
}

/// Waits until the process is told to end: SIGTERM or SIGINT.
///
/// # Errors
/// `System`, where signals cannot be waited for. In a runtime of tokio.
pub async fn told_to_end() -> Result<(), ServerError> {
    use tokio::signal::unix::{SignalKind, signal};
    let wait = |kind| {
        signal(kind).map_err(|source| ServerError::System {
            doing: "wait for signals",
            source,
        })
    };
    let mut terminate = wait(SignalKind::terminate())?;
    let mut interrupt = wait(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
