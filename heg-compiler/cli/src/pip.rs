//! pip, which gets Python packages from the index that this machine is configured for: our source names no index.

use crate::fail::Fail;
use crate::terminal::last_lines;
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The Python interpreter that runs pip.
pub const PYTHON: &str = "python3";

/// Fails without Python and pip, which fetch `what`. `otherwise` is the alternative to installing them.
pub fn check(what: &str, otherwise: &str) -> Result<()> {
    let hint = format!("install them (Debian: `apt-get install python3 python3-pip`){otherwise}");
    let output = Command::new(PYTHON)
        .args(["-m", "pip", "--version"])
        .output();
    let said = match output {
        Err(error) => {
            let missing = Fail::environment(format!("`{PYTHON}` is needed to get {what}"));
            return Err(anyhow::Error::new(error).context(missing.hint(hint)));
        }
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => last_lines(&String::from_utf8_lossy(&output.stderr)),
    };
    let missing = Fail::environment(format!("`{PYTHON}` has no pip, which gets {what}"));
    Err(anyhow::anyhow!(said).context(missing.hint(hint)))
}

/// Runs `pip download` with extra `arguments` for one wheel of `requirement` and returns the wheel's path in `folder`.
/// `otherwise` is the user's alternative to repairing the network.
pub fn download(
    mut pip: Command,
    requirement: &str,
    arguments: &[&str],
    folder: &Path,
    otherwise: &str,
) -> Result<PathBuf> {
    let spinner = ProgressBar::new_spinner().with_message("pip download");
    spinner.enable_steady_tick(Duration::from_millis(120));
    let output = pip
        .args(["-m", "pip", "download", "--disable-pip-version-check"])
        .args(["--no-input", "--quiet", "--no-deps", "--only-binary=:all:"])
        .args(arguments)
        .args([requirement, "-d"])
        .arg(folder)
        .output();
    spinner.finish_and_clear();
    let output = output.context(Fail::environment(format!("cannot start `{PYTHON}`")))?;
    if output.status.success() {
        return downloaded_wheel(folder);
    }
    let said = last_lines(&String::from_utf8_lossy(&output.stderr));
    let message = format!("pip could not download {requirement}");
    let hint = format!("{CHECK_NETWORK}{otherwise}");
    Err(anyhow::anyhow!(said).context(Fail::environment(message).hint(hint)))
}

fn downloaded_wheel(folder: &Path) -> Result<PathBuf> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list `{}`", folder.display()))?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .ok_or_else(|| {
            Fail::environment("pip said it downloaded a wheel, but there is none").into()
        })
}

/// The first advice if a package cannot be downloaded.
const CHECK_NETWORK: &str = "check the network and pip's index (`python3 -m pip config list`)";
