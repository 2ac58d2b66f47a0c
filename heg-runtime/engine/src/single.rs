//! An engine for one request at a time, for a command that answers one prompt or one person.

use heg_sched::one_request_policy;

use super::{Engine, EngineOptions, Lanes, Speculation};
use crate::error::EngineError;
use heg_exec::{ExecutorOptions, Loader};

impl Engine {
    /// Starts an engine for one request at a time: a single lane runs every kernel on the best device for it, prompts
    /// go through it in chunks of [`ExecutorOptions::chunk_tokens`], and there is no memory for batches. Requests
    /// that arrive meanwhile wait.
    ///
    /// # Errors
    ///
    /// The errors of [`start`](Self::start).
    pub fn start_single(
        loader: Loader,
        exec: ExecutorOptions,
        speculation: Speculation,
    ) -> Result<Self, EngineError> {
        let options = EngineOptions {
            exec,
            speculation,
            ..EngineOptions::default()
        };
        Self::start_single_with(loader, options)
    }

    /// Starts such an engine with more options than these; there is one lane whatever they say.
    ///
    /// # Errors
    ///
    /// The errors of [`start`](Self::start).
    pub fn start_single_with(loader: Loader, options: EngineOptions) -> Result<Self, EngineError> {
        let policy = one_request_policy(loader.lanes(), options.exec.chunk_tokens)?;
        let options = EngineOptions {
            lanes: Lanes::Single,
            ..options
        };
        Self::start(loader, policy, options)
    }
}
