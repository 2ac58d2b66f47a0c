//! The folder that is carried to another machine: programs without symbols, a small model, and the script.

use super::PackArgs;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::fail::Fail;
use xtask::workspace::{self, cargo, note, root};

/// Size of the folder, at most. Chosen: what such machines take at once.
const PACK_BYTES_MAX: u64 = 60_000_000;

const SCRIPT: &str = include_str!("run.sh");

/// Makes the models of llama.cpp's program.
const GGUF_SCRIPT: &str = include_str!("gguf_model.py");

pub(super) fn run(args: &PackArgs) -> Result<()> {
    let folder = &args.folder;
    let made = || format!("cannot write to `{}`", folder.display());
    fs::create_dir_all(folder).with_context(made)?;
    note("building heg, hegc and the measuring programs");
    for Programs { arguments, names } in BUILDS {
        let built = build(arguments, args.dev)?;
        for (program, name) in names {
            let from = built.get(*program);
            let from = from.with_context(|| format!("cargo built no `{program}`"))?;
            let to = folder.join(name);
            fs::copy(from, &to).with_context(made)?;
            workspace::run(Command::new("strip").arg(&to), "strip")?;
        }
    }
    let (fixture, model) = (
        root().join("tests/fixtures/tiny-agent"),
        folder.join("tiny-agent"),
    );
    fs::create_dir_all(&model).with_context(made)?;
    for file in MODEL_FILES {
        fs::copy(fixture.join(file), model.join(file)).with_context(made)?;
    }
    fs::copy(fixture.join("eval.jsonl"), folder.join("text.txt")).with_context(made)?;
    let soc = root().join("graph-specs/socs/host-cpu.ron");
    fs::copy(soc, folder.join("host-cpu.ron")).with_context(made)?;
    fs::write(folder.join("run.sh"), SCRIPT).with_context(made)?;
    if let Some(program) = &args.llama_bench {
        let to = folder.join("llama-bench");
        let what = || format!("cannot copy `{}`", program.display());
        fs::copy(program, &to).with_context(what)?;
        workspace::run(Command::new("strip").arg(&to), "strip")?;
        fs::write(folder.join("gguf_model.py"), GGUF_SCRIPT).with_context(made)?;
    }
    if let Some(loader) = &args.loader {
        copy_loader(loader, &folder.join("loader"))?;
    }
    let bytes = size(folder).with_context(made)?;
    if bytes > PACK_BYTES_MAX {
        let what = format!(
            "`{}` has {bytes} bytes, more than {PACK_BYTES_MAX}",
            folder.display()
        );
        return Err(Fail::check(what)
            .hint("empty the folder and pack it again")
            .into());
    }
    println!("{} ({:.1} MB)", folder.display(), bytes as f64 / 1e6);
    Ok(())
}

/// One call of cargo.
struct Programs {
    arguments: &'static [&'static str],
    /// Programs, each with its name in the folder.
    names: &'static [(&'static str, &'static str)],
}

const BUILDS: [Programs; 2] = [
    Programs {
        arguments: &["-p", "heg", "-p", "hegc", "--bins"],
        names: &[("heg", "heg"), ("hegc", "hegc")],
    },
    Programs {
        arguments: &["-p", "heg-gpu", "--example", "measure", "--test", "it"],
        names: &[("measure", "measure"), ("it", "gpu-tests")],
    },
];

/// The files of a model that its compilation reads.
const MODEL_FILES: [&str; 7] = [
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Builds programs; their files by name, as cargo says.
fn build(arguments: &[&str], dev: bool) -> Result<BTreeMap<String, PathBuf>> {
    let mut command = cargo(&["build", "--quiet", "--message-format", "json"]);
    command.args(arguments);
    if !dev {
        command.arg("--release");
    }
    let said = workspace::capture(&mut command, "the build")?;
    let built = said.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let name = message.get("target")?.get("name")?.as_str()?.to_owned();
        let file = message.get("executable")?.as_str()?;
        Some((name, PathBuf::from(file)))
    });
    Ok(built.collect())
}

fn copy_loader(from: &Path, to: &Path) -> Result<()> {
    let what = || format!("cannot copy packages from `{}`", from.display());
    fs::create_dir_all(to).with_context(what)?;
    for entry in fs::read_dir(from).with_context(what)? {
        let entry = entry.with_context(what)?;
        if entry.path().extension().is_some_and(|it| it == "deb") {
            fs::copy(entry.path(), to.join(entry.file_name())).with_context(what)?;
        }
    }
    Ok(())
}

/// Bytes of all files below a folder.
fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        bytes += if about.is_dir() {
            size(&entry.path())?
        } else {
            about.len()
        };
    }
    Ok(bytes)
}
