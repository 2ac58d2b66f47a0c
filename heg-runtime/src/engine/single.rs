//! An engine for one request at a time, as a command has it that answers one prompt or one person.

use heg_sched::one_request_policy;

use super::{Engine, EngineOptions, Lanes, Speculation};
use crate::error::RuntimeError;
use crate::exec::{ExecutorOptions, Loader};

impl Engine {
    /// Starts an engine for one request at a time: a single lane runs every kernel on the best device for it, prompts
    /// go through it in chunks of [`ExecutorOptions::chunk_tokens`], and there is no memory for batches. Requests that
    /// come meanwhile wait.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_single(
        loader: Loader,
        exec: ExecutorOptions,
        speculation: Speculation,
    ) -> Result<Self, RuntimeError> {
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
