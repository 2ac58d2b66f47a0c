//! OpenAI's, Anthropic's and LangChain's Python clients, and a browser's remote control, for tests of the server; moto, which
//! plays Amazon's storage, for those of the store that machines share.

use crate::venv;
use crate::workspace::target_dir;
use anyhow::Result;
use std::path::PathBuf;

/// Returns the environment's folder of programs, created if necessary.
pub(super) fn provide() -> Result<PathBuf> {
    venv::ensure(&folder(), venv::CLIENTS, "450 MB on disk, once")
}

pub(super) fn folder() -> PathBuf {
    target_dir().join("clients")
}
