//! OpenAI's and LangChain's Python clients, and a browser's remote control, which tests ask the server with.

use crate::venv;
use crate::workspace::target_dir;
use anyhow::Result;
use std::path::PathBuf;

/// The environment's folder of programs, made if need be.
pub(super) fn provide() -> Result<PathBuf> {
    venv::ensure(&folder(), venv::CLIENTS, "280 MB on disk, once")
}

pub(super) fn folder() -> PathBuf {
    target_dir().join("clients")
}
