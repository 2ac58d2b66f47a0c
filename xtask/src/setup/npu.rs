//! `cargo xtask setup --npu`: installs a compiler for NPU kernels on a machine that need not have an NPU. If the
//! OpenVINO in use has Intel's compiler, only a worker is built for it. Otherwise the compiler is that of the Windows
//! wheel, and this installs everything needed to run it: packages, a Rust target, the wheel's libraries, a worker built
//! for Windows, a wine prefix. Each step checks whether it is done already, so an interrupted run resumes where it
//! ended. Only packages and the Rust target are installed outside of the target folder.

use super::{fetch, wheel};
use crate::fail::Fail;
use crate::workspace::{self, has_rust_target, note, on_path, target_dir};
use anyhow::{Context, Result};
use heg_compiler::npu::{NpuToolchain, Provider, wine_environment};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Installs the toolchain; quiet and quick when there is nothing to do.
pub(super) fn provide(local: Option<&Path>) -> Result<NpuToolchain> {
    let folder = NpuToolchain::folder(&target_dir());
    fs::create_dir_all(&folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
    let _lock = hegc::lock::lock(&folder.join("setup.lock"))?;
    let native = Provider::native().map_err(|error| {
        let hint = "see who may write there, or set OPENVINO_DIR to another installation";
        anyhow::Error::new(error).context(Fail::environment("OpenVINO cannot be used").hint(hint))
    })?;
    let provider = native.unwrap_or(Provider::Wine);
    let renewed = match &provider {
        Provider::Native { .. } => build_worker(&folder, &provider, None)?,
        Provider::Wine => provide_wine(&folder, local)?,
    };
    match NpuToolchain::recorded(&folder, provider.clone()) {
        Ok(toolchain) if !renewed => Ok(toolchain),
        _ => verify(&folder, provider),
    }
}

/// Sets up the toolchain under wine; returns whether the worker is new.
fn provide_wine(folder: &Path, local: Option<&Path>) -> Result<bool> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        let message = "the NPU compiler is run under wine on Linux on x86-64 only";
        let hint = "set OPENVINO_DIR to an OpenVINO that has the NPU compiler";
        return Err(Fail::environment(message).hint(hint).into());
    }
    install_packages()?;
    add_rust_target()?;
    let windows = Provider::windows(folder);
    if !wheel::WINDOWS.is_unpacked(&windows) {
        fetch(&windows, &wheel::WINDOWS, local)?;
    }
    let renewed = build_worker(folder, &Provider::Wine, Some(RUST_TARGET))?;
    make_prefix(folder)?;
    Ok(renewed)
}

/// Packages for building and running Windows programs that are not installed.
pub(super) fn missing_here() -> Vec<&'static str> {
    missing_packages(on_path)
}

fn install_packages() -> Result<()> {
    let missing = missing_here();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    let wanted = format!("apt-get install --no-install-recommends {names}");
    let Some(prefix) = root_prefix().filter(|_| on_path("apt-get")) else {
        let message = format!("needed to run and build for Windows: {names}");
        let hint = format!(
            "as root, run: {wanted} (or, where there is no apt-get, what provides `wine` and \
             `{LINKER}`)"
        );
        return Err(Fail::environment(message).hint(hint).into());
    };
    note(format!("installing {names}"));
    let apt = |arguments: &[&str]| {
        let words: Vec<&str> = prefix.iter().chain(["apt-get"].iter()).copied().collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(arguments);
        // Our standard output is for results.
        command.env("DEBIAN_FRONTEND", "noninteractive");
        workspace::capture(&mut command, "apt-get").map(drop)
    };
    apt(&["update", "-qq"])?;
    apt(&[
        &["install", "-y", "-qq", "--no-install-recommends"],
        missing.as_slice(),
    ]
    .concat())
    .with_context(|| Fail::environment("cannot install packages").hint(format!("try: {wanted}")))
}

fn missing_packages(is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    PROGRAMS
        .into_iter()
        .filter(|(program, _)| !is_there(program))
        .flat_map(|(_, packages)| packages.iter().copied())
        .collect()
}

/// The command prefix for running as root; `None` if this user cannot.
fn root_prefix() -> Option<&'static [&'static str]> {
    let succeeds = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let output = command.args(arguments).stdin(Stdio::null()).output();
        output.ok().filter(|output| output.status.success())
    };
    let id = succeeds("id", &["-u"])?;
    if id.stdout.trim_ascii() == b"0" {
        return Some(&[]);
    }
    succeeds("sudo", &["-n", "true"]).map(|_| ["sudo", "-n"].as_slice())
}

fn add_rust_target() -> Result<()> {
    if has_rust_target(RUST_TARGET)? {
        return Ok(());
    }
    note(format!("adding the Rust target {RUST_TARGET}"));
    let mut rustup = Command::new("rustup");
    workspace::capture(rustup.args(["target", "add", RUST_TARGET]), "rustup")
        .map(drop)
        .with_context(|| {
            Fail::environment(format!("this Rust cannot build for {RUST_TARGET}"))
                .hint(format!("run: rustup target add {RUST_TARGET}"))
        })
}

/// Builds the worker and installs it; returns whether it differs from the previous one.
fn build_worker(folder: &Path, provider: &Provider, target: Option<&str>) -> Result<bool> {
    let mut command = workspace::cargo(&["build", "--release", "--quiet", "-p", "heg-openvino"]);
    command.args(["--bin", WORKER]);
    let mut built = target_dir();
    if let Some(target) = target {
        command.args(["--target", target]);
        built.push(target);
    }
    workspace::run(&mut command, "building the NPU worker")?;
    let place = provider.worker(folder);
    let name = place.file_name().unwrap_or_default();
    let built = built.join("release").join(name);
    let fresh = fs::read(&built).with_context(|| format!("cannot read `{}`", built.display()))?;
    if fs::read(&place).is_ok_and(|there| there == fresh) {
        return Ok(false);
    }
    let what = || format!("cannot write `{}`", place.display());
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent).with_context(what)?;
    }
    // By a rename, since a worker of another process may be running.
    let unfinished = place.with_extension("part");
    fs::copy(&built, &unfinished).with_context(what)?;
    fs::rename(&unfinished, &place).with_context(what)?;
    Ok(true)
}

fn make_prefix(folder: &Path) -> Result<()> {
    let prefix = Provider::prefix(folder);
    let stamp = prefix.join(PREFIX_STAMP);
    if stamp.is_file() {
        return Ok(());
    }
    if prefix.exists() {
        fs::remove_dir_all(&prefix)
            .with_context(|| format!("cannot remove `{}`", prefix.display()))?;
    }
    note("making a wine prefix (about 10 s)");
    let mut wine = Command::new("wine");
    wine.args(["wineboot.exe", "--init"])
        .envs(wine_environment(folder))
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY");
    workspace::capture(&mut wine, "making a wine prefix")?;
    fs::write(&stamp, b"").with_context(|| format!("cannot write `{}`", stamp.display()))
}

fn verify(folder: &Path, provider: Provider) -> Result<NpuToolchain> {
    note(format!("trying the NPU compiler: {provider}"));
    NpuToolchain::set_up(folder, provider).map_err(|error| {
        let hint = format!("remove `{}` and try again", folder.display());
        anyhow::Error::new(error)
            .context(Fail::environment("the NPU compiler is no use").hint(hint))
    })
}

const WORKER: &str = "heg-npu-worker";
pub(super) const RUST_TARGET: &str = "x86_64-pc-windows-gnu";
pub(super) const LINKER: &str = "x86_64-w64-mingw32-gcc";

/// Programs that must be on PATH, and the Debian packages that provide them.
const PROGRAMS: [(&str, &[&str]); 2] = [
    ("wine", &["wine", "wine64"]),
    (LINKER, &["gcc-mingw-w64-x86-64"]),
];

/// Name of the file that marks a complete prefix; written last.
const PREFIX_STAMP: &str = "heg-complete";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packages_of_missing_programs_are_installed() {
        assert_eq!(missing_packages(|_| true), [""; 0]);
        assert_eq!(
            missing_packages(|program| program == "wine"),
            ["gcc-mingw-w64-x86-64"]
        );
        assert_eq!(
            missing_packages(|program| program == LINKER),
            ["wine", "wine64"]
        );
    }
}
