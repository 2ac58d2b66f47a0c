//! Options that several commands share: the machine to run on, and the choice of tokens.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use heg_artifacts::plain::escape;
use heg_files::OwnFolder;
use heg_runtime::auto::{self, ChosenDevices};
use heg_runtime::engine::{Engine, EngineOptions, Speculation, StateChoice, executor_options};
use heg_runtime::exec::{Executor, ExecutorOptions, Loader};
use heg_runtime::{Descent, Loaded, RuntimeError, read_policy, read_soc, summary, verified};
use heg_spec::{Isa, Soc};
use heg_text::SamplingParams;

use crate::GPU_EXAMINER;

/// The devices that the machine has.
const AUTO: &str = "auto";

/// The devices to run on.
#[derive(Args)]
pub(crate) struct Machine {
    /// The bundle: a file, or a name that `heg list` shows
    #[arg(value_name = "BUNDLE")]
    pub(crate) bundle: PathBuf,
    /// Devices to run on: `auto`, a shipped SoC (`host-cpu`, `host-cpu-f32`, `host-cpu-openvino`, `host-gpu`, `host-cpu-gpu`, `host-roles`, `host-roles-openvino`, `host-pair`, `host-pair-gpu`, `host-pair-npu`, `core-ultra-5-125h`, `core-ultra-7-258v`, `core-ultra-x7-358h`) or a .ron file. `auto` is `host-cpu`, or `host-cpu-gpu` where `heg doctor --gpu` has found a GPU, not emulated, that computes what CPU programs compute; it says on standard error what it chose and why
    #[arg(long, value_name = "SOC", default_value = AUTO)]
    soc: String,
    /// Instructions that CPU programs use: `avx512-amx`, `avx512-vnni`, `avx-vnni`, `avx2` or `portable` [default: the best here]
    #[arg(long, value_name = "ISA")]
    isa: Option<Isa>,
    /// Largest number of prompt tokens per prefill chunk [default: what `heg profile` or the bundle found best on the devices, or 256]
    #[arg(long, value_name = "TOKENS")]
    chunk: Option<usize>,
    /// Read the bundle at once and keep it in memory, whatever else needs memory
    #[arg(long)]
    lock_weights: bool,
}

impl Machine {
    /// Opens the bundle. Its sections are hashed on first use, unless this file was verified before.
    pub(crate) fn open(&self) -> anyhow::Result<Loaded> {
        let loaded = Loaded::open(&located(&self.bundle)?)?;
        if self.lock_weights {
            loaded.lock_weights()?;
        }
        if let Some(cache) = verified::cache_folder()? {
            verified::trust_if_verified(loaded.bundle(), &cache);
        }
        Ok(loaded)
    }

    /// Remembers, after a run, that the bundle was verified.
    pub(crate) fn remember(&self, loaded: &Loaded) -> Result<(), RuntimeError> {
        match verified::cache_folder()? {
            Some(cache) => verified::remember(loaded.bundle(), &cache),
            None => Ok(()),
        }
    }

    /// Returns a loader on the requested devices, with the user's cache. A GPU is examined first by another process of this
    /// program.
    pub(crate) fn loader(&self, loaded: &Loaded) -> Result<Loader, RuntimeError> {
        let cache = verified::cache_folder()?;
        let soc = self.soc(cache.as_ref())?;
        match (cache, std::env::current_exe()) {
            (Some(cache), Ok(this)) => {
                loaded.examined_loader(&soc, cache, this, vec![GPU_EXAMINER.into()])
            }
            (Some(cache), Err(_)) => Ok(loaded.loader(&soc)?.with_cache(cache)),
            (None, _) => loaded.loader(&soc),
        }
    }

    /// Returns the devices, with the requested instructions. Says which they are where nobody named them.
    fn soc(&self, cache: Option<&OwnFolder>) -> Result<Soc, RuntimeError> {
        let mut soc = match self.soc.as_str() {
            AUTO => {
                let ChosenDevices { soc, reason } = auto::choose(cache)?;
                eprintln!("note: runs on {}: {}", soc.name, escape(&reason));
                soc
            }
            named => read_soc(named)?,
        };
        let devices = soc.devices.iter_mut();
        for programs in devices.filter_map(|device| device.programs.as_mut()) {
            programs.isa = self.isa.or(programs.isa);
        }
        Ok(soc)
    }

    /// Returns an executor for up to `batch` sequences.
    pub(crate) fn executor(&self, loaded: &Loaded, batch: usize) -> Result<Executor, RuntimeError> {
        let loader = self.loader(loaded)?;
        let options = ExecutorOptions {
            batch,
            ..self.executor_options(&loader)
        };
        Ok(Executor::new(loader, options)?)
    }

    /// Returns an executor for one sequence that runs many rows through the head at a time.
    pub(crate) fn executor_of_rows(&self, loaded: &Loaded) -> Result<Executor, RuntimeError> {
        let loader = self.loader(loaded)?;
        let options = self.executor_options(&loader);
        Ok(Executor::new(loader, options)?)
    }

    /// Returns the same options for a bundle.
    pub(crate) fn of(&self, bundle: &Path) -> Self {
        self.beside(bundle, &self.soc)
    }

    /// Returns the same options for another bundle on its own devices.
    pub(crate) fn beside(&self, bundle: &Path, soc: &str) -> Self {
        Self {
            bundle: bundle.to_owned(),
            soc: soc.to_owned(),
            isa: self.isa,
            chunk: self.chunk,
            lock_weights: self.lock_weights,
        }
    }

    /// Starts an engine for one request at a time.
    pub(crate) fn engine(
        &self,
        loader: Loader,
        speculate: Speculate,
        baked: StateChoice,
    ) -> Result<Engine, RuntimeError> {
        let options = self.engine_options(&loader, speculate, baked);
        Ok(Engine::start_single_with(loader, options)?)
    }

    /// Starts an engine with a policy, if one is given; else one for one request at a time.
    pub(crate) fn engine_by(
        &self,
        policy: Option<&str>,
        loader: Loader,
        speculate: Speculate,
        baked: StateChoice,
    ) -> Result<Engine, RuntimeError> {
        let Some(policy) = policy else {
            return self.engine(loader, speculate, baked);
        };
        let options = self.engine_options(&loader, speculate, baked);
        Ok(Engine::start(loader, read_policy(policy)?, options)?)
    }

    fn engine_options(
        &self,
        loader: &Loader,
        speculate: Speculate,
        baked: StateChoice,
    ) -> EngineOptions {
        EngineOptions {
            exec: self.executor_options(loader),
            speculation: speculate.into(),
            baked,
            ..EngineOptions::default()
        }
    }

    /// Returns the executor options from the command line, with those that suit the loader's devices for the rest.
    pub(crate) fn executor_options(&self, loader: &Loader) -> ExecutorOptions {
        match self.chunk {
            Some(chunk_tokens) => ExecutorOptions {
                chunk_tokens,
                ..ExecutorOptions::default()
            },
            None => executor_options(loader),
        }
    }
}

/// Returns the file of a bundle that was asked for by its path or, where there is a store, by a name of it. A name is
/// looked for on this machine alone.
pub(crate) fn located(bundle: &Path) -> anyhow::Result<PathBuf> {
    #[cfg(feature = "ship")]
    return crate::ship::located(bundle);
    #[cfg(not(feature = "ship"))]
    return Ok(bundle.to_owned());
}

/// Prints the descents to standard error. Call it once, before the first output.
pub(crate) fn print_descents(descents: &[Descent]) {
    for line in summary(descents) {
        eprintln!("note: {}", escape(&line));
    }
}

/// Whether to draft answers. A closed set of names on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Speculate {
    /// One token after the other.
    Off,
    /// Verify several tokens at once where the prompt or earlier answers suggest them; the answer stays the same.
    Chain,
    /// The same with several ways to go on at once.
    Tree,
}

impl From<Speculate> for Speculation {
    fn from(speculate: Speculate) -> Self {
        match speculate {
            Speculate::Off => Self::Off,
            Speculate::Chain => Self::Chain,
            Speculate::Tree => Self::Tree,
        }
    }
}

/// The rules by which tokens are chosen.
#[derive(Args)]
pub(crate) struct Sampling {
    /// 0 takes the most likely token
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Choose among this many most likely tokens
    #[arg(long)]
    top_k: Option<u32>,
    /// Choose among the most likely tokens that together reach this probability
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Choose among tokens at least this likely, relative to the most likely one
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// Divide the score of tokens that occurred before
    #[arg(long, default_value_t = 1.0)]
    repetition_penalty: f32,
    /// Subtract from the score of tokens that the answer has already
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Subtract from the score of tokens for each time that the answer has them already
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Same seed, same answer
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Sampling {
    /// Returns the checked parameters.
    pub(crate) fn params(&self) -> Result<SamplingParams, RuntimeError> {
        let params = SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
        };
        params.check()?;
        Ok(params)
    }
}

/// Returns the peak resident memory of this process so far, in bytes; 0 if the system does not say.
pub(crate) fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| {
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()
    });
    kibibytes.map_or(0, |kibibytes| kibibytes * 1024)
}
