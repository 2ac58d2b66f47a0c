//! The Windows step of `cargo xtask ci`: builds `heg.exe`, and runs it and tests of the CPU's programs under wine, which is
//! native except for system calls. Without wine or a linker it type-checks what needs neither.

use anyhow::Result;
use std::process::Command;
use xtask::setup;
use xtask::wine::Wine;
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
    let wine = Wine::start(&built)?;
    let mut kernels = cargo_for(target, "test");
    kernels
        .args(["--package", TESTED, "--test", "it"])
        // Weights of 4 bits take as long as all others, and differ in no call of the system.
        .args(["--", "--skip", "nibbles"])
        .env(runner_variable(target), "wine");
    workspace::run(wine.configure(&mut kernels), "tests of programs under wine")?;
    let mut programs = workspace::cargo(&["test", "--quiet", "--package", "heg"]);
    programs
        .args(["--test", "it", "wine::"])
        .env("HEG_WINDOWS", built.join("heg.exe"));
    workspace::run(wine.configure(&mut programs), "`heg.exe` under wine")
}

/// The variable that names the runner with which cargo starts programs for `target`.
fn runner_variable(target: &str) -> String {
    let name = target.to_ascii_uppercase().replace('-', "_");
    format!("CARGO_TARGET_{name}_RUNNER")
}

/// The packages that have to build for Windows, the system of most laptops with an NPU: the program with all that is in
/// it, and the simulator.
pub(crate) const PACKAGES: [&str; 4] = ["--package", "heg", "--package", "heg-sim"];

/// The package whose tests run under wine: that of the CPU's kernels, which take half a minute to compile. Its dependencies
/// have the same features as those of the program, or it would be compiled twice: `cargo xtask tidy` compares them.
pub(crate) const TESTED: &str = "heg-cpu";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_has_a_variable_for_each_targets_runner() {
        let variable = runner_variable("x86_64-pc-windows-gnu");
        assert_eq!(variable, "CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER");
    }
}
