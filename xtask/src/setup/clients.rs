//! OpenAI's and LangChain's Python clients, and a browser's remote control, which tests ask the server with.

use crate::bench_peers::venv;
use crate::workspace::target_dir;
use anyhow::Result;
use std::path::PathBuf;

/// The environment's folder of programs, made if need be.
pub(super) fn provide() -> Result<PathBuf> {
    venv::ensure(&folder(), &PACKAGES, "280 MB on disk, once")
}

pub(super) fn folder() -> PathBuf {
    target_dir().join("clients")
}

/// Pinned, so that a test that fails says something of us.
const PACKAGES: [&str; 3] = [
    "openai==3.52.0",
    "langchain-openai==1.7.3",
    "playwright==1.65.2",
];
