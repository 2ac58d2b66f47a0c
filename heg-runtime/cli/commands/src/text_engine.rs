//! An engine for many short texts, which run together: what `heg embed` and `heg rerank` ask.

use heg_runtime::engine::{Engine, EngineOptions, Speculation};
use heg_runtime::{Loaded, NoVector, RuntimeError, read_policy};
use heg_text::Tokenizer;

use crate::failure::unfinished;
use crate::options::{Machine, print_descents};
use crate::text_guard::guarded;

/// A started engine, with the model's tokenizer.
pub(crate) struct TextEngine {
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Tokenizer,
    loaded: Loaded,
}

impl TextEngine {
    /// Starts an engine on a machine, and prints what it could not do as asked.
    pub(crate) fn start(machine: &Machine) -> anyhow::Result<Self> {
        let loaded = machine.open()?;
        let loader = machine.loader(&loaded)?;
        let options = EngineOptions {
            exec: machine.executor_options(&loader),
            speculation: Speculation::Off,
            ..EngineOptions::default()
        };
        let policy = read_policy(loader.lanes().policy_of_texts())?;
        let engine = Engine::start(loader, policy, options)?;
        let tokenizer = guarded(|| loaded.tokenizer())?;
        engine.wait_ready()?;
        print_descents(&engine.descents());
        Ok(Self {
            engine,
            tokenizer,
            loaded,
        })
    }

    /// Keeps what was learnt of the machine, at the command's end.
    pub(crate) fn remember(&self, machine: &Machine) -> anyhow::Result<()> {
        Ok(machine.remember(&self.loaded)?)
    }
}

/// The error of a text without a vector, or of a pair without a score.
pub(crate) fn no_vector(why: NoVector) -> anyhow::Error {
    match why {
        NoVector::Refused(error) => RuntimeError::from(error).into(),
        NoVector::Ended(ending) => unfinished(*ending),
    }
}
