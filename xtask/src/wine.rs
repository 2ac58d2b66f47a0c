//! Runs programs for Windows on this system: by wine, with files of its own in the target folder.

use crate::setup;
use crate::workspace;
use anyhow::{Context, Result};
use heg_compiler::npu::wine_environment;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Wine, ready for programs until this is dropped.
#[derive(Debug)]
pub struct Wine {
    folder: PathBuf,
    libraries: PathBuf,
    /// Wine's server ends when it has no programs, and a program that starts at that moment loses it. This process keeps
    /// it alive until its input ends.
    keeper: Child,
}

impl Wine {
    /// Starts wine; a library that its programs need is built into the folder `libraries`.
    pub fn start(libraries: &Path) -> Result<Self> {
        build_random_numbers(libraries)?;
        let folder = workspace::target_dir().join("wine");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create `{}`", folder.display()))?;
        let mut keeper = Command::new(PROGRAM);
        keeper
            .args(["cmd", "/q"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let keeper = in_prefix(&mut keeper, &folder).spawn();
        let mut wine = Self {
            keeper: keeper.context("cannot start `wine`")?,
            libraries: libraries.to_path_buf(),
            folder,
        };
        wine.wait_until_ready().context("`wine` does not start")?;
        Ok(wine)
    }

    /// Waits for an answer. The first program has services started, which keep its output open when it has ended: whoever
    /// reads the output to its end would wait for them.
    fn wait_until_ready(&mut self) -> Result<()> {
        let (stdin, stdout) = (self.keeper.stdin.as_mut(), self.keeper.stdout.take());
        let (stdin, stdout) = stdin.zip(stdout).context("it has no pipes")?;
        stdin.write_all(b"echo ready\r\n")?;
        for line in BufReader::new(stdout).lines() {
            if line?.contains("ready") {
                return Ok(());
            }
        }
        anyhow::bail!("it ended")
    }

    /// Configures a command that is wine, or starts it: programs find their library, and show no windows.
    pub fn configure<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        in_prefix(command, &self.folder).env("WINEPATH", &self.libraries)
    }

    /// A command that runs a program for Windows.
    pub fn command(&self, program: &Path) -> Command {
        let mut wine = Command::new(PROGRAM);
        self.configure(wine.arg(program));
        wine
    }
}

impl Drop for Wine {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Whether wine is installed.
pub fn is_here() -> bool {
    workspace::on_path(PROGRAM)
}

fn in_prefix<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    command
        .envs(wine_environment(folder))
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY")
}

/// Builds a library for random numbers: Rust's standard library uses one that wine before 9.0 does not have.
fn build_random_numbers(folder: &Path) -> Result<()> {
    let [source, library] = ["c", "dll"].map(|ending| folder.join(RANDOM).with_extension(ending));
    let is_there = fs::read_to_string(&source).is_ok_and(|text| text == RANDOM_SOURCE);
    if is_there && library.is_file() {
        return Ok(());
    }
    let write = |path: &PathBuf| format!("cannot write `{}`", path.display());
    fs::write(&source, RANDOM_SOURCE).with_context(|| write(&source))?;
    let mut compiler = Command::new(setup::WINDOWS_LINKER);
    let arguments = ["-shared", "-O1", "-o"].map(OsStr::new);
    compiler
        .args(arguments)
        .args([&library, &source])
        .arg("-ladvapi32");
    workspace::capture(&mut compiler, setup::WINDOWS_LINKER).map(drop)
}

const PROGRAM: &str = "wine";

const RANDOM: &str = "bcryptprimitives";

const RANDOM_SOURCE: &str = "\
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T bytes) {
    return SystemFunction036(data, (ULONG)bytes);
}
";
