//! A registry of this machine, where there is one, and `heg` with a store of its own.

use std::path::Path;
use std::process::Command;

use heg_tests::skipped;

use crate::docker_registry::DockerRegistry;

/// Starts Debian's registry with its files in a folder; `None`, after saying so, where it is not installed.
pub(crate) fn registry_or_skip(test: &str, folder: &Path) -> Option<DockerRegistry> {
    match DockerRegistry::start(folder) {
        Ok(docker) => Some(docker),
        Err(error) => {
            let required = std::env::var_os("HEG_REQUIRE_REGISTRY").is_some();
            assert!(!required, "{test}: docker-registry: {error}");
            skipped(&format!("{test}: no docker-registry (Debian has it)"));
            None
        }
    }
}

/// `heg` with its store and its notes in a folder.
pub(crate) fn heg_with_store(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heg"));
    command
        .current_dir(folder)
        .env("HEG_STORE", folder.join("store"))
        .env("HEG_CACHE_DIR", folder.join("cache"));
    command
}
