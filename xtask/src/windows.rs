//! The Windows step of `cargo xtask ci`: builds `heg.exe`, and runs it and tests of the CPU's programs under wine, which is
//! native except for system calls. Without wine or a linker it type-checks what needs neither.

use anyhow::{Context, Result};
use heg_compiler::npu::wine_environment;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use xtask::setup;
use xtask::workspace::{self, note, target_dir};

/// Returns whether there was a Rust target to check with.
pub(crate) fn run() -> Result<bool> {
    let Some(target) = setup::windows_target()? else {
        note("no Rust target for Windows (run: cargo xtask setup --npu): step skipped");
        return Ok(false);
    };
    let missing = setup::missing_for_windows();
    if missing.is_empty() {
        build(target)?;
        test(target)?;
        return Ok(true);
    }
    // Without its registries, `heg` needs no compiler for C.
    let mut command = workspace::cargo(&["check", "--quiet", "--target", target]);
    command.args(PACKAGES).arg("--no-default-features");
    workspace::run(&mut command, "cargo check for Windows")?;
    let missing = missing.join(" ");
    note(format!(
        "tests under wine skipped: not installed: {missing}"
    ));
    Ok(true)
}

/// A cargo command for Windows. What it builds runs for a moment and is compared by its bits, so all but the kernels is
/// compiled quickly.
fn cargo_for(target: &str, command: &str) -> Command {
    let mut cargo = workspace::cargo(&[command, "--quiet", "--target", target]);
    cargo.args(["--config", "profile.dev.opt-level=0"]);
    cargo
}

fn build(target: &str) -> Result<()> {
    let mut command = cargo_for(target, "build");
    workspace::run(command.args(PACKAGES), "cargo build for Windows")
}

/// Runs the tests of the CPU's programs on all instruction sets, and compares `heg.exe` with the `heg` of this system.
fn test(target: &str) -> Result<()> {
    let built = target_dir().join(target).join("debug");
    // Programs find it beside them, and tests by wine's own variable.
    build_random_numbers(&built)?;
    let folder = target_dir().join("wine");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
    let keeper = keep_server(&folder)?;
    let mut kernels = cargo_for(target, "test");
    kernels
        .args(["--package", "heg-cpu", "--test", "it"])
        // Weights of 4 bits take as long as all others, and differ in no call of the system.
        .args(["--", "--skip", "nibbles"])
        .env(runner_variable(target), "wine")
        .env("WINEPATH", &built);
    let mut programs = workspace::cargo(&["test", "--quiet", "--package", "heg"]);
    programs
        .args(["--test", "it", "wine::"])
        .env("HEG_WINDOWS", built.join("heg.exe"));
    let kernels = in_prefix(&mut kernels, &folder);
    let outcome = workspace::run(kernels, "tests of programs under wine").and_then(|()| {
        let programs = in_prefix(&mut programs, &folder);
        workspace::run(programs, "`heg.exe` under wine")
    });
    keeper.end()?;
    outcome
}

/// Wine's server ends when it has no programs, and a program that starts at that moment loses it. This process keeps it
/// alive until its input ends.
struct Keeper(Child);

fn keep_server(folder: &Path) -> Result<Keeper> {
    let mut wine = Command::new("wine");
    wine.args(["cmd", "/q"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let wine = in_prefix(&mut wine, folder).spawn();
    Ok(Keeper(wine.context("cannot start `wine`")?))
}

impl Keeper {
    fn end(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        self.0.wait().context("cannot wait for `wine`").map(drop)
    }
}

/// Configures a command whose wine keeps its files in `folder`, and shows no windows.
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

/// The variable that names the runner with which cargo starts programs for `target`.
fn runner_variable(target: &str) -> String {
    let name = target.to_ascii_uppercase().replace('-', "_");
    format!("CARGO_TARGET_{name}_RUNNER")
}

/// The packages that have to build for Windows, the system of most laptops with an NPU: the program with all that is in
/// it, and the simulator.
const PACKAGES: [&str; 4] = ["--package", "heg", "--package", "heg-sim"];

const RANDOM: &str = "bcryptprimitives";

const RANDOM_SOURCE: &str = "\
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T bytes) {
    return SystemFunction036(data, (ULONG)bytes);
}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_has_a_variable_for_each_targets_runner() {
        let variable = runner_variable("x86_64-pc-windows-gnu");
        assert_eq!(variable, "CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER");
    }
}
