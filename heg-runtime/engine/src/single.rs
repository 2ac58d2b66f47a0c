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
        let policy = one_request_policy(loader.lanes(), exec.chunk_tokens)?;
        let options = EngineOptions {
            exec,
            lanes: Lanes::Single,
            speculation,
            ..EngineOptions::default()
        };
        Self::start(loader, policy, options)
    }
}
