//! Python environments below the target folder, made once with the packages they are for.

use crate::fail::Fail;
use crate::workspace;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment's folder of programs, if it is there with exactly these packages.
pub(crate) fn existing(venv: &Path, packages: &[&str]) -> Option<PathBuf> {
    // The stamp, written last, says that it is complete.
    let stamp = fs::read_to_string(venv.join(STAMP)).ok()?;
    (stamp == packages.join("\n")).then(|| venv.join("bin"))
}

/// Makes an environment with these packages, and gives its folder of programs.
pub(crate) fn make(venv: &Path, packages: &[&str]) -> Result<PathBuf> {
    if venv.exists() {
        fs::remove_dir_all(venv).with_context(|| format!("cannot remove `{}`", venv.display()))?;
    }
    let made = install(venv, packages);
    if made.is_err() {
        // Half an environment helps nobody; the next run starts afresh.
        let _ = fs::remove_dir_all(venv);
    }
    made?;
    let stamp = venv.join(STAMP);
    fs::write(&stamp, packages.join("\n"))
        .with_context(|| format!("cannot write `{}`", stamp.display()))?;
    Ok(venv.join("bin"))
}

fn install(venv: &Path, packages: &[&str]) -> Result<()> {
    let mut create = Command::new("python3");
    workspace::capture(create.args(["-m", "venv"]).arg(venv), "python3 -m venv").context(
        Fail::environment("cannot make a Python environment")
            .hint("install python3-venv (Debian: `apt-get install python3-venv`)"),
    )?;
    let mut install = Command::new(venv.join("bin").join("python"));
    install
        .args(["-m", "pip", "install", "--disable-pip-version-check"])
        .args(["--no-input", "--only-binary=:all:"])
        .args(packages);
    workspace::run(&mut install, "pip install").context(Fail::environment(format!(
        "cannot install {} into `{}`",
        packages.join(", "),
        venv.display()
    )))
}

const STAMP: &str = "packages.txt";
