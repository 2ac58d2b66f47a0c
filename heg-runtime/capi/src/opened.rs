//! A bundle with its engine and its text side, as `heg_open` makes it.

use std::collections::BTreeMap;
use std::num::{NonZero, NonZeroU32};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::available_parallelism;

use heg_runtime::engine::{Engine, EngineOptions, ScopeId, Speculation, executor_options};
use heg_runtime::text::{ChatTemplate, Grammars, Tokenizer};
use heg_runtime::{Loaded, RuntimeError, read_policy, read_soc, verified};
use heg_sched::FlowId;
use heg_state::{KeptLimits, StateFolder};
use serde::Deserialize;

use crate::failure::InterfaceError;

/// The `options` of `heg_open`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OpenOptions {
    /// Devices: a shipped SoC or a file.
    soc: Option<String>,
    /// Threads of each device that runs programs.
    threads: Option<NonZeroU32>,
    /// A shipped policy or a file.
    policy: Option<String>,
    /// Memory for keys and values, in MiB.
    kv_mib: Option<u32>,
    /// Whether answers are drafted where a request does not say.
    speculate: Option<Drafting>,
    /// The folder of kept state.
    state_dir: Option<PathBuf>,
    /// Most disk that kept state may take, in MiB.
    state_mib: Option<u32>,
    /// Whether all of the bundle stays in memory.
    lock_weights: bool,
    /// Whether every byte is hashed before the first use.
    verify: bool,
}

/// How answers are drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Drafting {
    /// One token after the other.
    Off,
    /// A chain of tokens at a time.
    Chain,
    /// A tree of tokens at a time.
    Tree,
}

/// An open bundle whose engine runs.
pub(crate) struct OpenedBundle {
    pub(crate) loaded: Loaded,
    pub(crate) engine: Engine,
    tokenizer: Result<Arc<Tokenizer>, RuntimeError>,
    template: Result<ChatTemplate, RuntimeError>,
    grammars: OnceLock<Grammars>,
    clients: Mutex<BTreeMap<String, ScopeId>>,
    /// Whether there is a folder of kept state.
    pub(crate) keeps_state: bool,
}

impl OpenedBundle {
    /// Opens a bundle and starts its engine; kernels are still being prepared when this returns.
    pub(crate) fn open(path: &Path, options: OpenOptions) -> Result<Self, InterfaceError> {
        let loaded = Loaded::open(path)?;
        if options.lock_weights {
            loaded.lock_weights()?;
        }
        let cache = verified::cache_folder()?;
        if options.verify {
            loaded.verify(available_parallelism().unwrap_or(NonZero::<usize>::MIN))?;
        } else if let Some(cache) = &cache {
            verified::trust_if_verified(loaded.bundle(), cache);
        }
        let mut soc = read_soc(options.soc.as_deref().unwrap_or(DEVICES))?;
        let devices = soc.devices.iter_mut();
        for programs in devices.filter_map(|device| device.programs.as_mut()) {
            programs.threads = options.threads.or(programs.threads);
        }
        let loader = loaded.loader(&soc)?;
        let loader = match &cache {
            Some(cache) => loader.with_cache(cache.clone()),
            None => loader,
        };
        let named = options.policy.as_deref();
        let mut policy = read_policy(named.unwrap_or_else(|| loader.lanes().policy()))?;
        policy.limits.kv_mib = options.kv_mib.unwrap_or(policy.limits.kv_mib);
        let state = options.state()?;
        let keeps_state = state.is_some();
        let engine_options = EngineOptions {
            exec: executor_options(&loader),
            state,
            speculation: options.speculate.unwrap_or(Drafting::Chain).into(),
            ..EngineOptions::default()
        };
        let engine = Engine::start(loader, policy, engine_options)?;
        // Kernels are prepared meanwhile.
        let (tokenizer, template) = (loaded.tokenizer().map(Arc::new), loaded.chat_template());
        Ok(Self {
            tokenizer: present(tokenizer)?,
            template: present(template)?,
            loaded,
            engine,
            grammars: OnceLock::new(),
            clients: Mutex::default(),
            keeps_state,
        })
    }

    /// Waits until kernels are ready, and remembers that the bundle was right.
    pub(crate) fn wait_ready(&self) -> Result<(), InterfaceError> {
        self.engine.wait_ready()?;
        if let Some(cache) = verified::cache_folder()? {
            verified::remember(self.loaded.bundle(), &cache)?;
        }
        Ok(())
    }

    /// The tokenizer, or that the bundle has none.
    pub(crate) fn tokenizer(&self) -> Result<&Arc<Tokenizer>, InterfaceError> {
        lacking(&self.tokenizer, "tokenizer: ask with `prompt_ids`")
    }

    /// The chat template, or that the bundle has none.
    pub(crate) fn template(&self) -> Result<&ChatTemplate, InterfaceError> {
        lacking(&self.template, "chat template: ask with `prompt`")
    }

    /// The grammars over the bundle's vocabulary, made at first use.
    pub(crate) fn grammars(&self) -> Result<&Grammars, InterfaceError> {
        if let Some(made) = self.grammars.get() {
            return Ok(made);
        }
        let eos_ids = &self.loaded.bundle().manifest().text.eos_ids;
        let made = Grammars::new(self.tokenizer()?, eos_ids)?;
        Ok(self.grammars.get_or_init(|| made))
    }

    /// The number of a new flow: the engine's, counted from 1.
    pub(crate) fn new_flow(&self) -> u64 {
        self.engine.new_flow().0 + 1
    }

    /// Ends a flow. One that was never made is unknown to the engine too.
    pub(crate) fn end_flow(&self, flow: u64) {
        if let Some(flow) = flow.checked_sub(1) {
            self.engine.end_flow(FlowId(flow));
        }
    }

    /// The scope of a client of the embedding program. Requests without one share the first scope.
    pub(crate) fn scope(&self, client: Option<&str>) -> ScopeId {
        let Some(client) = client else {
            return ScopeId::default();
        };
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let next = ScopeId(clients.len() as u64 + 1);
        *clients.entry(client.to_owned()).or_insert(next)
    }
}

/// Keeps that a part of the text side is absent for the requests that need it; other errors are errors now.
fn present<T>(part: Result<T, RuntimeError>) -> Result<Result<T, RuntimeError>, RuntimeError> {
    match part {
        Err(error) if !matches!(error, RuntimeError::NoText { .. }) => Err(error),
        part => Ok(part),
    }
}

fn lacking<'a, T>(
    part: &'a Result<T, RuntimeError>,
    what: &'static str,
) -> Result<&'a T, InterfaceError> {
    let absent = |_: &RuntimeError| InterfaceError::Asked(format!("the bundle has no {what}"));
    part.as_ref().map_err(absent)
}

impl OpenOptions {
    /// Opens the folder of kept state.
    fn state(&self) -> Result<Option<Arc<StateFolder>>, InterfaceError> {
        let Some(path) = &self.state_dir else {
            return match self.state_mib {
                None => Ok(None),
                Some(_) => Err(InterfaceError::Asked(
                    "`state_mib` is given without `state_dir`, expected both".to_owned(),
                )),
            };
        };
        let limits = KeptLimits::of_mib(self.state_mib.unwrap_or(STATE_MIB));
        Ok(Some(Arc::new(StateFolder::open(path, limits)?)))
    }
}

impl From<Drafting> for Speculation {
    fn from(drafting: Drafting) -> Self {
        match drafting {
            Drafting::Off => Self::Off,
            Drafting::Chain => Self::Chain,
            Drafting::Tree => Self::Tree,
        }
    }
}

/// The devices where nobody named any: no library of a driver is loaded into the embedding program.
const DEVICES: &str = "host-cpu";

/// Disk for kept state where only a folder was named, in MiB, as for `heg serve`.
const STATE_MIB: u32 = 2048;
