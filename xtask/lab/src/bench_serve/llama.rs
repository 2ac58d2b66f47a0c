//! llama-server, built from the source that llama-cpp-python comes with, and the same model as GGUF.

use crate::bench_peers::{Subject, text};
use anyhow::{Context, Result};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::fail::Fail;
use xtask::venv;
use xtask::workspace::{capture, note};

/// A built llama-server and a model for it.
pub(super) struct Llama {
    pub(super) server: PathBuf,
    pub(super) model: PathBuf,
}

pub(super) fn prepare(subject: &Subject) -> Result<Llama> {
    let folder = subject.peers.join("llama");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
    let server = folder.join("build/bin/llama-server");
    let model = folder.join(format!("{}-q8_0.gguf", subject.name));
    if server.is_file() && model.is_file() {
        return Ok(Llama { server, model });
    }
    let about = "CMake and the gguf package, 250 MB on disk, once";
    let bin = venv::ensure(&folder.join("venv"), venv::LLAMA, about)?;
    if !server.is_file() {
        note("building llama-server: ten minutes on two cores, once");
        build(&folder, &bin).context(
            Fail::environment("cannot build llama-server")
                .hint("a C++ compiler is needed (Debian: `apt-get install g++`)"),
        )?;
    }
    if !model.is_file() {
        note(format!("writing {} as GGUF (8-bit weights)", subject.name));
        write_model(&folder, &bin, &subject.folder, &model)?;
    }
    Ok(Llama { server, model })
}

fn build(folder: &Path, bin: &Path) -> Result<()> {
    let (sources, build) = (folder.join("src"), folder.join("build"));
    let mut download = Command::new(bin.join("python"));
    download
        .args(["-m", "pip", "download", "--disable-pip-version-check"])
        // Only this one: its build needs CMake, which would be built from source too.
        .args(["--no-input", "--no-deps", "--no-binary=llama-cpp-python"])
        .args(["--require-hashes", "-r"])
        .arg(venv::LLAMA_SOURCE.write(folder)?)
        .arg("-d")
        .arg(folder.join("sdist"));
    capture(&mut download, "pip download")?;
    fs::create_dir_all(&sources)
        .with_context(|| format!("cannot create `{}`", sources.display()))?;
    let mut unpack = Command::new("tar");
    unpack
        .arg("xzf")
        .arg(folder.join("sdist").join(ARCHIVE))
        .args(["--strip-components=1", "-C"])
        .arg(&sources);
    capture(&mut unpack, "tar")?;
    let path = with_first(bin)?;
    let mut configure = Command::new(bin.join("cmake"));
    configure
        .env("PATH", &path)
        .args(["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"])
        .args(OPTIONS)
        .arg("-S")
        .arg(sources.join("vendor/llama.cpp"))
        .arg("-B")
        .arg(&build);
    capture(&mut configure, "cmake")?;
    let mut compile = Command::new(bin.join("cmake"));
    compile
        .env("PATH", &path)
        .arg("--build")
        .arg(&build)
        .args(["--target", "llama-server"]);
    capture(&mut compile, "building llama-server").map(drop)
}

/// `PATH` with another folder before it.
fn with_first(bin: &Path) -> Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(bin.to_path_buf()).chain(env::split_paths(&path));
    env::join_paths(folders).context("cannot make a PATH")
}

fn write_model(folder: &Path, bin: &Path, source: &Path, model: &Path) -> Result<()> {
    let script = folder.join("gguf_model.py");
    fs::write(&script, SCRIPT).with_context(|| format!("cannot write `{}`", script.display()))?;
    let partial = model.with_extension("partial");
    let mut command = Command::new(bin.join("python"));
    command.arg(script).args([text(source), text(&partial)]);
    capture(&mut command, "writing the GGUF")?;
    fs::rename(&partial, model).context("cannot move the GGUF to its place")
}

const SCRIPT: &str = include_str!("gguf_model.py");

/// Figures that were measured when this command was written.
const ARCHIVE: &str = "llama_cpp_python-0.3.36.tar.gz";

/// A server without what it is not asked for, in one file.
const OPTIONS: [&str; 5] = [
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
];
