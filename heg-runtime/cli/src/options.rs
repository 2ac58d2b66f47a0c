//! Options that several commands share: where to run, and how to choose tokens.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use heg_artifacts::plain::escape;
use heg_runtime::engine::{Engine, EngineOptions, Speculation};
use heg_runtime::exec::{Executor, ExecutorOptions, Loader};
use heg_runtime::{Descent, Loaded, RuntimeError, read_policy, read_soc, summary, verified};
use heg_spec::{Isa, Soc};
use heg_text::SamplingParams;

/// Where to run.
#[derive(Args)]
pub(crate) struct Machine {
    /// The bundle
    #[arg(value_name = "BUNDLE")]
    pub(crate) bundle: PathBuf,
    /// Devices to run on: a shipped SoC (`host-cpu`, `host-cpu-f32`, `host-cpu-openvino`, `host-roles`, `host-roles-openvino`, `host-pair`, `core-ultra-5-125h`, `core-ultra-7-258v`, `core-ultra-x7-358h`) or a .ron file
    #[arg(long, value_name = "SOC", default_value = "host-cpu")]
    soc: String,
    /// Instructions that CPU programs use: `avx512-vnni`, `avx-vnni`, `avx2` or `portable` [default: the best here]
    #[arg(long, value_name = "ISA")]
    isa: Option<Isa>,
    /// Largest number of prompt tokens per prefill chunk
    #[arg(long, value_name = "TOKENS", default_value_t = ExecutorOptions::default().chunk_tokens)]
    chunk: usize,
    /// Read the bundle at once and keep it in memory, whatever else needs memory
    #[arg(long)]
    lock_weights: bool,
}

impl Machine {
    /// Opens the bundle, whose sections are hashed on first use unless this file was verified before.
    pub(crate) fn open(&self) -> Result<Loaded, RuntimeError> {
        let loaded = Loaded::open(&self.bundle)?;
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

    /// A loader on the devices asked for, with the user's cache.
    pub(crate) fn loader(&self, loaded: &Loaded) -> Result<Loader, RuntimeError> {
        let loader = loaded.loader(&self.soc()?)?;
        Ok(match verified::cache_folder()? {
            Some(cache) => loader.with_cache(cache),
            None => loader,
        })
    }

    /// The devices, with the instructions that were asked for.
    fn soc(&self) -> Result<Soc, RuntimeError> {
        let mut soc = read_soc(&self.soc)?;
        let devices = soc.devices.iter_mut();
        for programs in devices.filter_map(|device| device.programs.as_mut()) {
            programs.isa = self.isa.or(programs.isa);
        }
        Ok(soc)
    }

    /// An executor for up to `batch` sequences.
    pub(crate) fn executor(&self, loaded: &Loaded, batch: usize) -> Result<Executor, RuntimeError> {
        let options = ExecutorOptions {
            batch,
            ..self.executor_options()
        };
        Executor::new(self.loader(loaded)?, options)
    }

    /// An executor for one sequence, of which many rows go through the head at a time.
    pub(crate) fn executor_of_rows(&self, loaded: &Loaded) -> Result<Executor, RuntimeError> {
        Executor::new(self.loader(loaded)?, self.executor_options())
    }

    /// Another bundle on devices of its own, otherwise the same.
    pub(crate) fn beside(&self, bundle: &Path, soc: &str) -> Self {
        Self {
            bundle: bundle.to_owned(),
            soc: soc.to_owned(),
            isa: self.isa,
            chunk: self.chunk,
            lock_weights: self.lock_weights,
        }
    }

    /// An engine for one request at a time.
    pub(crate) fn engine(
        &self,
        loader: Loader,
        speculate: Speculate,
    ) -> Result<Engine, RuntimeError> {
        Engine::start_single(loader, self.executor_options(), speculate.into())
    }

    /// An engine by a policy, if one is given; else one for one request at a time.
    pub(crate) fn engine_by(
        &self,
        policy: Option<&str>,
        loader: Loader,
        speculate: Speculate,
    ) -> Result<Engine, RuntimeError> {
        let Some(policy) = policy else {
            return self.engine(loader, speculate);
        };
        let options = EngineOptions {
            exec: self.executor_options(),
            speculation: speculate.into(),
            ..EngineOptions::default()
        };
        Engine::start(loader, read_policy(policy)?, options)
    }

    /// Executor options from the command line, with defaults for the rest.
    pub(crate) fn executor_options(&self) -> ExecutorOptions {
        ExecutorOptions {
            chunk_tokens: self.chunk,
            ..ExecutorOptions::default()
        }
    }
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

/// How to choose tokens.
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
    /// The parameters, checked.
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

/// Peak resident memory of this process so far; 0 where the system does not say.
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
