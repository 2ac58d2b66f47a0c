//! Builds for release in a target folder of its own, without a path of this machine in what comes out.

use crate::workspace::{self, note};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the commands and the library; returns the folder where they are.
pub(super) fn build() -> Result<PathBuf> {
    note("building heg, hegc and libheg for release, which takes a while");
    let programs = ["build", "--release", "--locked", "-p", "heg", "-p", "hegc"];
    workspace::run(&mut cargo(&programs)?, "building the commands")?;
    let library = ["rustc", "--release", "--locked", "-p", "heg-capi", "--lib"];
    let mut command = cargo(&library)?;
    // Without the library for Rust, with which no link-time optimisation is possible.
    workspace::run(
        command.args(["--crate-type", "staticlib"]),
        "building libheg",
    )?;
    let folder = target().join("release");
    share(&folder)?;
    Ok(folder)
}

/// Links the shared library of the static one. Rust's own link would also export the C functions of dependencies, and keep
/// their code for that.
fn share(folder: &Path) -> Result<()> {
    let exports = folder.join("exports.map");
    std::fs::write(&exports, "{ global: heg_*; local: *; };\n")
        .with_context(|| format!("cannot write `{}`", exports.display()))?;
    let mut link = Command::new("cc");
    link.args(["-shared", "-s", "-o"])
        .arg(folder.join("libheg.so"));
    link.arg(format!("-Wl,-soname,{}", super::package::SONAME));
    link.arg(format!("-Wl,--version-script={}", exports.display()));
    link.args([
        "-Wl,--gc-sections",
        "-Wl,-z,relro,-z,now",
        "-Wl,--whole-archive",
    ]);
    link.arg(folder.join("libheg.a"));
    link.args(["-Wl,--no-whole-archive", "-Wl,--as-needed"]);
    link.args(super::package::SYSTEM_LIBRARIES.split(' '));
    workspace::run(&mut link, "linking libheg")
}

fn target() -> PathBuf {
    workspace::target_dir().join("dist")
}

/// A cargo command whose output has no path of this machine: those of the checkout, of dependencies and of the standard
/// library are written as fixed names.
fn cargo(args: &[&str]) -> Result<Command> {
    let mut rustc = Command::new("rustc");
    let sysroot = workspace::capture(rustc.args(["--print", "sysroot"]), "rustc")?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let mut names = vec![(workspace::root(), "/heg")];
    names.extend(home.map(|home| (home, "/cargo")));
    names.push((PathBuf::from(sysroot.trim()), "/rust"));
    // The target folder may be outside of the checkout. Of several names that fit, the last counts.
    names.push((target(), "/heg/target/dist"));
    let flags = |option: &str, separator: &str| {
        let each = names
            .iter()
            .map(|(path, name)| format!("{option}={}={name}", path.display()));
        each.collect::<Vec<_>>().join(separator)
    };
    let mut command = workspace::cargo(args);
    command
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            flags("--remap-path-prefix", "\u{1f}"),
        )
        .env("CFLAGS", flags("-ffile-prefix-map", " "))
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_TARGET_DIR", target());
    Ok(command)
}
