//! OpenAI's, Anthropic's and LangChain's clients for Python and JavaScript, and a browser's remote control, for tests of the
//! server; moto, which plays Amazon's storage, for those of the store that machines share.

use crate::workspace::{note, target_dir};
use crate::{npm, venv};
use anyhow::Result;
use std::path::PathBuf;

/// Returns the environment's folder of programs, created if necessary.
pub(super) fn provide() -> Result<PathBuf> {
    match npm::is_there() {
        true => npm::ensure(&target_dir().join("clients-javascript"))?,
        false => note("no Node.js with npm: JavaScript clients are left out"),
    }
    venv::ensure(&folder(), venv::CLIENTS, "450 MB on disk, once")
}

pub(super) fn folder() -> PathBuf {
    target_dir().join("clients")
}
