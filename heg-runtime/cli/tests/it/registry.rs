//! A registry of this machine, where there is one, and `heg` with a store of its own.

use std::path::Path;
use std::process::{Command, Output};

use heg_tests::skipped;

use crate::docker_registry::DockerRegistry;

/// Starts Debian's registry with its files in a folder; `None`, after saying so, where it is not installed.
pub(crate) fn registry_or_skip(test: &str, folder: &Path) -> Option<DockerRegistry> {
    or_skip(test, "docker-registry", DockerRegistry::start(folder))
}

/// The program that was started; `None`, after saying so, where it is not installed and need not be.
pub(crate) fn or_skip<T>(test: &str, program: &str, started: std::io::Result<T>) -> Option<T> {
    match started {
        Ok(started) => Some(started),
        Err(error) => {
            let required = std::env::var_os("HEG_REQUIRE_REGISTRY").is_some();
            assert!(!required, "{test}: {program}: {error}");
            skipped(&format!("{test}: no {program} (Debian has it)"));
            None
        }
    }
}

/// Runs a script of the shell as root of a namespace of its own, where a user may mount. `$0` is `heg`, and `command` gives
/// its environment. Where the script ends with status 99, or there are no namespaces, the caller has to do without.
#[cfg(target_os = "linux")]
pub(crate) fn with_mounts(command: &Command, script: &str) -> std::io::Result<Output> {
    let mut shell = Command::new("unshare");
    let variables = command.get_envs();
    shell
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .arg(command.get_program())
        .envs(variables.filter_map(|(name, value)| Some((name, value?))));
    shell.output()
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
