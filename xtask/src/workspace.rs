//! Where things are (workspace root, target folder) and how we start other programs in them:
//! one place, so that every command says the same when a program is missing or ends badly.

use crate::fail::Fail;
use anyhow::{Context, Result};
use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// The workspace's root folder.
pub fn root() -> PathBuf {
    let own = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    // The crate may lie at any depth; the lock file lies in the root only.
    let mut folders = own.ancestors();
    let root = folders.find(|folder| folder.join("Cargo.lock").is_file());
    root.unwrap_or(&own).to_path_buf()
}

/// Where cargo writes, and so do we: `CARGO_TARGET_DIR`, else `target` in the root.
pub fn target_dir() -> PathBuf {
    let chosen = env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty());
    let dir = chosen.map_or_else(|| root().join("target"), PathBuf::from);
    std::path::absolute(&dir).unwrap_or(dir)
}

/// A cargo command in the workspace root, with our own cargo and the same target folder.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    if env::var_os("CARGO_TARGET_DIR").is_some() {
        command.env("CARGO_TARGET_DIR", target_dir());
    }
    // `cargo run` describes xtask in these; crates that read them would be built twice.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a program that shares our terminal, and returns how it ended.
pub fn status(command: &mut Command) -> Result<ExitStatus> {
    command.status().map_err(|e| not_started(command, e))
}

/// Runs a program that shares our terminal. `what` names it in messages.
pub fn run(command: &mut Command, what: &str) -> Result<()> {
    let status = status(command)?;
    if status.success() {
        return Ok(());
    }
    Err(Fail::child(status.code(), format!("{what} failed: {status}")).into())
}

/// Runs a program and returns what it printed; on failure the error holds its last words.
pub fn capture(command: &mut Command, what: &str) -> Result<String> {
    let output = command.output().map_err(|e| not_started(command, e))?;
    if !output.status.success() {
        let said = last_lines(&String::from_utf8_lossy(&output.stderr));
        let failed = Fail::child(
            output.status.code(),
            format!("{what} failed: {}", output.status),
        );
        return Err(anyhow::anyhow!(said).context(failed));
    }
    String::from_utf8(output.stdout).with_context(|| format!("{what} printed no valid UTF-8"))
}

/// Build profile of `heg`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// Like this program, whose dependencies it shares: quick to build, and good enough to try.
    Dev,
    /// The shipped release build, which is the one to measure.
    Release,
}

impl Build {
    /// The profile, and with it the folder below the target folder.
    fn folder(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }
}

/// The `heg` binary, built if need be; says so first, because that can take minutes.
pub fn build_heg(build: Build) -> Result<PathBuf> {
    note(match build {
        Build::Dev => "building heg",
        Build::Release => "building heg (release)",
    });
    built("heg", build)
}

/// The laboratory's binary.
pub fn build_lab(build: Build) -> Result<PathBuf> {
    if let Build::Release = build {
        note("building heg-lab (release)");
    }
    built("heg-lab", build)
}

fn built(package: &str, build: Build) -> Result<PathBuf> {
    let mut command = cargo(&["build", "--quiet", "-p", package]);
    if let Build::Release = build {
        command.arg("--release");
    }
    run(&mut command, &format!("building {package}"))?;
    Ok(target_dir().join(build.folder()).join(package))
}

/// A command of `heg` whose notes about this machine stay in the target folder.
pub fn heg(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    command.env("HEG_CACHE_DIR", target_dir().join("heg-cache"));
    command
}

/// Locks a file, which is made if need be. Of two runs at once the second waits, then finds the work done.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot create `{}`", path.display()))?;
    if file.try_lock().is_err() {
        note("waiting for another run to finish");
        file.lock()
            .with_context(|| format!("cannot lock `{}`", path.display()))?;
    }
    Ok(file)
}

/// One line about what happens now. On standard error: standard output is for results.
pub fn note(text: impl AsRef<str>) {
    eprintln!("xtask: {}", text.as_ref());
}

/// The last lines of a program's complaint: enough to understand it, not a screen of it.
pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    match lines.len().checked_sub(8) {
        _ if lines.is_empty() => "it said nothing".to_string(),
        Some(skip) => lines[skip..].join("\n  "),
        None => lines.join("\n  "),
    }
}

fn not_started(command: &Command, error: std::io::Error) -> anyhow::Error {
    let program = command.get_program().to_string_lossy().into_owned();
    let hint = format!("install `{program}`, or put it on PATH");
    anyhow::Error::new(error)
        .context(Fail::environment(format!("cannot start `{program}`")).hint(hint))
}
