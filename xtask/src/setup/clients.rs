//! OpenAI's and LangChain's Python clients, which tests ask the server with.

use crate::python_env;
use crate::workspace::{note, target_dir};
use anyhow::Result;
use std::path::PathBuf;

/// The environment's folder of programs, made if need be.
pub(super) fn provide() -> Result<PathBuf> {
    if let Some(bin) = existing() {
        return Ok(bin);
    }
    note("making a Python environment for the clients, once");
    python_env::make(&folder(), &PACKAGES)
}

/// The same, if it is there.
pub(super) fn existing() -> Option<PathBuf> {
    python_env::existing(&folder(), &PACKAGES)
}

fn folder() -> PathBuf {
    target_dir().join("clients")
}

/// Pinned, so that a test that fails says something of us.
const PACKAGES: [&str; 2] = ["openai==3.52.0", "langchain-openai==1.7.3"];
