//! llama.cpp: its programs, built from the source distribution of llama-cpp-python, and models for them as GGUF files
//! with 8-bit or 4-bit weights.

use crate::bench_peers::genai;
use crate::precision::{Bits, Precision};
use crate::process::text;
use crate::subject::Subject;
use anyhow::{Context, Result};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::fail::Fail;
use xtask::venv;
use xtask::workspace::{capture, note};

/// The folder in which llama.cpp is built.
pub(crate) struct LlamaCpp {
    folder: PathBuf,
}

impl LlamaCpp {
    /// Opens the folder with its existing content, or creates it.
    pub(crate) fn open(subject: &Subject) -> Result<Self> {
        let folder = subject.peers.join("llama");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create `{}`", folder.display()))?;
        Ok(Self { folder })
    }

    /// Returns the folder with `programs`, which are names of CMake targets; builds the missing ones.
    pub(crate) fn programs(&self, programs: &[&str]) -> Result<PathBuf> {
        let bin = self.folder.join("build").join("bin");
        let is_missing = |program: &&str| !bin.join(program).is_file();
        let missing: Vec<&str> = programs.iter().copied().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(bin);
        }
        let listed = missing.join(", ");
        note(format!("building {listed}: minutes on two cores, once"));
        self.build(&missing).with_context(|| {
            Fail::environment(format!("cannot build {listed}"))
                .hint("a C++ compiler is needed (Debian: `apt-get install g++`)")
        })?;
        Ok(bin)
    }

    /// The model with weights of llama.cpp's type for a precision, converted once.
    pub(crate) fn model(&self, subject: &Subject, precision: Precision) -> Result<PathBuf> {
        let of_weights = precision.of_llama();
        let file = format!("{}-{}.gguf", subject.name, of_weights.to_lowercase());
        let model = self.folder.join(file);
        if model.is_file() {
            return Ok(model);
        }
        note(format!("writing {} as GGUF ({of_weights})", subject.name));
        let partial = model.with_extension("partial");
        let mut command = match (&subject.gguf, precision.weights) {
            (Some(gguf), _) => self.requantize(gguf, &partial, of_weights)?,
            (None, Bits::Eight) => self.convert(&subject.folder, &partial)?,
            (None, Bits::Four(_)) => {
                let eight_bits = self.model(subject, Precision::EIGHT_BITS)?;
                self.requantize(&eight_bits, &partial, of_weights)?
            }
        };
        capture(&mut command, "writing the GGUF file")?;
        fs::rename(&partial, &model).context("cannot move the GGUF file to its place")?;
        Ok(model)
    }

    /// An encoder's folder with weights of 8 bits, converted once by llama.cpp's own script, which needs GenAI's Python
    /// packages.
    pub(crate) fn encoder(&self, subject: &Subject) -> Result<PathBuf> {
        let model = self.folder.join(format!("{}-q8_0.gguf", subject.name));
        if model.is_file() {
            return Ok(model);
        }
        note(format!("writing {} as GGUF (Q8_0)", subject.name));
        let partial = model.with_extension("partial");
        let sources = self.sources(&self.environment()?)?;
        let mut command = Command::new(genai::environment()?.join("python"));
        command
            .arg(sources.join("vendor/llama.cpp/convert_hf_to_gguf.py"))
            .args(["--outtype", "q8_0", "--outfile", &text(&partial)])
            .arg(&subject.folder);
        capture(&mut command, "writing the GGUF file")?;
        fs::rename(&partial, &model).context("cannot move the GGUF file to its place")?;
        Ok(model)
    }

    /// Requantises a GGUF file, whatever the present form of its weights.
    fn requantize(&self, gguf: &Path, output: &Path, of_weights: &str) -> Result<Command> {
        let quantize = "llama-quantize";
        let mut command = Command::new(self.programs(&[quantize])?.join(quantize));
        command
            .arg("--allow-requantize")
            .args([gguf, output])
            .arg(of_weights);
        Ok(command)
    }

    /// Writes a Hugging Face folder as a GGUF file.
    fn convert(&self, folder: &Path, output: &Path) -> Result<Command> {
        let script = self.folder.join("gguf_model.py");
        fs::write(&script, SCRIPT)
            .with_context(|| format!("cannot write `{}`", script.display()))?;
        let mut command = Command::new(self.environment()?.join("python"));
        command.arg(script).args([text(folder), text(output)]);
        Ok(command)
    }

    /// Returns the folder of programs of the Python environment, creating it if necessary.
    fn environment(&self) -> Result<PathBuf> {
        let about = "CMake and the gguf package, 250 MB on disk, once";
        venv::ensure(&self.folder.join("venv"), venv::LLAMA, about)
    }

    fn build(&self, targets: &[&str]) -> Result<()> {
        let bin = self.environment()?;
        let build = self.folder.join("build");
        let path = with_first(&bin)?;
        let mut configure = Command::new(bin.join("cmake"));
        configure
            .env("PATH", &path)
            .args(["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"])
            .args(OPTIONS)
            .arg("-S")
            .arg(self.sources(&bin)?.join("vendor/llama.cpp"))
            .arg("-B")
            .arg(&build);
        capture(&mut configure, "cmake")?;
        let mut compile = Command::new(bin.join("cmake"));
        compile
            .env("PATH", &path)
            .arg("--build")
            .arg(&build)
            .arg("--target")
            .args(targets);
        capture(&mut compile, "building llama.cpp").map(drop)
    }

    /// The source, downloaded and unpacked once.
    fn sources(&self, bin: &Path) -> Result<PathBuf> {
        let sources = self.folder.join("src");
        if sources.is_dir() {
            return Ok(sources);
        }
        let archives = self.folder.join("sdist");
        let mut download = Command::new(bin.join("python"));
        download
            .args(["-m", "pip", "download", "--disable-pip-version-check"])
            // Only this package: its build needs CMake, which would be built from source too.
            .args(["--no-input", "--no-deps", "--no-binary=llama-cpp-python"])
            .args(["--require-hashes", "-r"])
            .arg(venv::LLAMA_SOURCE.write(&self.folder)?)
            .arg("-d")
            .arg(&archives);
        capture(&mut download, "pip download")?;
        let scratch = tempfile::tempdir_in(&self.folder)
            .context("cannot create a folder for llama.cpp's source")?;
        let fresh = scratch.path().join("src");
        fs::create_dir(&fresh).with_context(|| format!("cannot create `{}`", fresh.display()))?;
        let mut unpack = Command::new("tar");
        unpack
            .arg("xzf")
            .arg(archives.join(ARCHIVE))
            .args(["--strip-components=1", "-C"])
            .arg(&fresh);
        capture(&mut unpack, "tar")?;
        keep_tile_configuration(&fresh)?;
        fs::rename(&fresh, &sources).context("cannot move llama.cpp's source to its place")?;
        Ok(sources)
    }
}

/// Makes the compiler write all bytes of llama.cpp's tile configuration. GCC 12 declares that `ldtilecfg` reads 8 of its 64
/// bytes and leaves the writes of the others out, and every program ends by SIGSEGV on a CPU with AMX.
fn keep_tile_configuration(sources: &Path) -> Result<()> {
    let file = sources.join("vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp");
    let source =
        fs::read_to_string(&file).with_context(|| format!("cannot read `{}`", file.display()))?;
    let load = "_tile_loadconfig(&tc);";
    let kept = source.replace(
        load,
        &format!(r#"__asm__ volatile("" : : "m"(tc)); {load}"#),
    );
    fs::write(&file, kept).with_context(|| format!("cannot write `{}`", file.display()))
}

/// `PATH` with another folder in front.
fn with_first(bin: &Path) -> Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(bin.to_path_buf()).chain(env::split_paths(&path));
    env::join_paths(folders).context("cannot make a PATH")
}

const SCRIPT: &str = include_str!("gguf_model.py");

/// The release whose hash is in `xtask/requirements/llama-source.txt`.
const ARCHIVE: &str = "llama_cpp_python-0.3.36.tar.gz";

/// Options for single-file programs without optional parts.
const OPTIONS: [&str; 5] = [
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
];
