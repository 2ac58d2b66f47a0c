//! The folder that is carried to another machine: programs without symbols, a small model, and the script.

use super::PackArgs;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::fail::Fail;
use xtask::workspace::{self, cargo, note, root};

/// Size of the folder, at most. Chosen: what such machines take at once.
const PACK_BYTES_MAX: u64 = 60_000_000;

const SCRIPT: &str = include_str!("run.sh");

pub(super) fn run(args: &PackArgs) -> Result<()> {
    let folder = &args.folder;
    let made = || format!("cannot write to `{}`", folder.display());
    fs::create_dir_all(folder).with_context(made)?;
    note("building heg, hegc and the measuring programs");
    for (target, name) in TARGETS {
        let from = build(target, args.dev)?;
        let to = folder.join(name);
        fs::copy(&from, &to).with_context(made)?;
        workspace::run(Command::new("strip").arg(&to), "strip")?;
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

/// Programs, by what cargo calls them, and their names in the folder.
const TARGETS: [(&[&str], &str); 4] = [
    (&["-p", "heg", "--bin", "heg"], "heg"),
    (&["-p", "hegc", "--bin", "hegc"], "hegc"),
    (&["-p", "heg-gpu", "--example", "measure"], "measure"),
    (&["-p", "heg-gpu", "--test", "it"], "gpu-tests"),
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

/// Builds a program, and finds it by what cargo says of it.
fn build(target: &[&str], dev: bool) -> Result<PathBuf> {
    let mut command = cargo(&["build", "--quiet", "--message-format", "json"]);
    command.args(target);
    if !dev {
        command.arg("--release");
    }
    let said = workspace::capture(&mut command, "the build")?;
    let mut built = said.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message.get("executable")?.as_str().map(PathBuf::from)
    });
    let last = built.next_back();
    last.with_context(|| format!("cargo built no program of {target:?}"))
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
