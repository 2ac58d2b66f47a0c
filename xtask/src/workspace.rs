//! Paths (workspace root, target folder) and starting other programs in them: in one place, so that every command
//! reports a missing or failing program in the same way.

use crate::fail::Fail;
use anyhow::{Context, Result};
use hegc::output::OutputFolder;
pub use hegc::terminal::{last_lines, note};
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// The workspace's root folder.
pub fn root() -> PathBuf {
    let own = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    // The crate may be at any depth.
    let mut folders = own.ancestors();
    let root = folders.find(|folder| folder.join("xtask").join("Cargo.toml").is_file());
    root.unwrap_or(&own).to_path_buf()
}

/// The output folder of cargo and of our commands: `CARGO_TARGET_DIR`, or else `target` in the root.
pub fn target_dir() -> PathBuf {
    let chosen = env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty());
    let dir = chosen.map_or_else(|| root().join("target"), PathBuf::from);
    std::path::absolute(&dir).unwrap_or(dir)
}

/// The folder of bundles, the build cache and fetched models.
pub fn output() -> OutputFolder {
    OutputFolder::below(&root())
}

/// A cargo command in the workspace root, with the running cargo and the same target folder.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    if env::var_os("CARGO_TARGET_DIR").is_some() {
        command.env("CARGO_TARGET_DIR", target_dir());
    }
    // `cargo run` describes xtask in these; crates that read them would be rebuilt.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a program that shares our terminal, and returns its exit status.
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

/// Runs a program and returns its output; on failure the error has its last lines.
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

/// Whether a program is in a folder of `PATH`.
pub fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Whether the installed Rust can build for `target`.
pub fn has_rust_target(target: &str) -> Result<bool> {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--print", "target-libdir", "--target", target]);
    let libraries = capture(&mut rustc, "rustc")?;
    Ok(Path::new(libraries.trim()).is_dir())
}

/// Build profile of `heg`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// A build like that of this program, with shared dependencies: quick to build, and good enough for a trial.
    Dev,
    /// The shipped release build, for measurements.
    Release,
}

impl Build {
    /// The profile's folder below the target folder.
    fn folder(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }
}

/// Builds the `heg` binary if necessary; prints a notice first, because that can take minutes.
pub fn build_heg(build: Build) -> Result<PathBuf> {
    note(match build {
        Build::Dev => "building heg",
        Build::Release => "building heg (release)",
    });
    built("heg", build)
}

/// Builds the laboratory's binary.
pub fn build_lab(build: Build) -> Result<PathBuf> {
    if let Build::Release = build {
        note("building heg-lab (release)");
    }
    built("heg-lab", build)
}

/// Builds this front door's binary, for a command that has to run in a separate process.
pub fn build_front_door() -> Result<PathBuf> {
    built("xtask", Build::Dev)
}

fn built(package: &str, build: Build) -> Result<PathBuf> {
    let mut command = cargo(&["build", "--quiet", "-p", package]);
    if let Build::Release = build {
        command.arg("--release");
    }
    run(&mut command, &format!("building {package}"))?;
    Ok(target_dir().join(build.folder()).join(package))
}

/// A command of `heg` that keeps its notes about this machine in the target folder.
pub fn heg(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    command.envs(heg_environment());
    command
}

/// The variables with which `heg` keeps its cache in the target folder.
pub fn heg_environment() -> [(&'static str, PathBuf); 1] {
    [("HEG_CACHE_DIR", target_dir().join("heg-cache"))]
}

fn not_started(command: &Command, error: std::io::Error) -> anyhow::Error {
    let program = command.get_program().to_string_lossy().into_owned();
    let hint = format!("install `{program}`, or put it on PATH");
    anyhow::Error::new(error)
        .context(Fail::environment(format!("cannot start `{program}`")).hint(hint))
}
