//! Python environments of ours, with pinned packages, made once.

use crate::fail::Fail;
use crate::workspace::{self, note};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of programs of the environment `venv`, which has `packages`. `about` says what making it takes.
/// A stamp, written last, says that it is complete.
pub(crate) fn ensure(venv: &Path, packages: &[&str], about: &str) -> Result<PathBuf> {
    let bin = venv.join("bin");
    let stamp = venv.join("packages.txt");
    let wanted = packages.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(bin);
    }
    note(format!("making a Python environment: {about}"));
    if venv.exists() {
        fs::remove_dir_all(venv).with_context(|| format!("cannot remove `{}`", venv.display()))?;
    }
    let made = make(venv, &bin, packages);
    if made.is_err() {
        // Half an environment helps nobody; the next run starts afresh.
        let _ = fs::remove_dir_all(venv);
    }
    made?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write `{}`", stamp.display()))?;
    Ok(bin)
}

fn make(venv: &Path, bin: &Path, packages: &[&str]) -> Result<()> {
    let mut create = Command::new("python3");
    workspace::capture(create.args(["-m", "venv"]).arg(venv), "python3 -m venv").context(
        Fail::environment("cannot make a Python environment")
            .hint("install python3-venv (Debian: `apt-get install python3-venv`)"),
    )?;
    let mut install = Command::new(bin.join("python"));
    install
        .args(["-m", "pip", "install", "--disable-pip-version-check"])
        .args(["--no-input", "--only-binary=:all:"])
        .args(packages);
    workspace::run(&mut install, "pip install").context(Fail::environment(format!(
        "cannot install {}",
        packages.join(", ")
    )))
}
