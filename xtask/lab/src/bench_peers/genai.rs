//! OpenVINO GenAI's side: a Python environment (`venv`) with pinned packages, the same model exported with 8-bit or
//! 4-bit weights, and the script that measures it (`genai.py`, embedded in this program).

use super::long::LongFigures;
use super::{BATCH, DECODE_TOKENS, PREFILL_TOKENS, START_PROMPT_TOKENS};
use crate::precision::{Bits, Precision};
use crate::process::{PeakMemory, finished, listed, text, timed_json};
use crate::subject::Subject;
use anyhow::{Context, Result};
use serde_json::Value;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::fail::Fail;
use xtask::venv;
use xtask::workspace::{self, note, target_dir};

/// A Python with the packages, and an exported model.
pub(crate) struct GenAi {
    pub(crate) python: PathBuf,
    script: PathBuf,
    pub(crate) model: PathBuf,
}

/// Times to the first token of one start.
pub(super) struct Start {
    /// Time from before the process starts.
    pub(super) process_ms: f64,
    /// Time from the end of Python's start and imports.
    pub(super) start_ms: f64,
    pub(super) peak: Option<PeakMemory>,
}

/// Returns the folder of programs of the Python environment, creating it if necessary.
pub(crate) fn environment() -> Result<PathBuf> {
    match env::var_os("HEG_PEERS_VENV").filter(|dir| !dir.is_empty()) {
        Some(venv) => Ok(PathBuf::from(venv).join("bin")),
        None => {
            let venv = target_dir().join("peers").join("venv");
            venv::ensure(&venv, venv::GENAI, ABOUT_PACKAGES)
        }
    }
}

pub(crate) fn prepare(
    subject: &Subject,
    exported: Option<&Path>,
    precision: Precision,
) -> Result<GenAi> {
    let peers = &subject.peers;
    let bin = environment()?;
    let script = peers.join("genai.py");
    fs::write(&script, SCRIPT).with_context(|| format!("cannot write `{}`", script.display()))?;
    let model = match exported {
        Some(exported) => exported.to_path_buf(),
        None => ensure_export(&bin, subject, GENERATION, precision)?,
    };
    if !model.join("openvino_model.xml").is_file() {
        let message = format!("`{}` holds no openvino_model.xml", model.display());
        return Err(Fail::input(message).into());
    }
    Ok(GenAi {
        python: bin.join("python"),
        script,
        model,
    })
}

impl GenAi {
    /// Measures speeds, time to load and peak memory, under the keys of `heg bench`.
    pub(super) fn micro(&self) -> Result<Value> {
        let mut command = self.command("micro", &PREFILL_TOKENS);
        timed_json(&mut command, "measuring GenAI").map(|(value, _)| value)
    }

    /// Measures a long prompt, and an answer behind it.
    pub(super) fn long(&self, tokens: u32) -> Result<LongFigures> {
        let mut command = self.command("long", &[tokens]);
        let (measured, _) = timed_json(&mut command, "measuring GenAI")?;
        let number = |key: &str| {
            let number = measured[key].as_f64();
            number.with_context(|| format!("genai.py printed no `{key}`"))
        };
        Ok(LongFigures {
            prefill_tokens_per_s: number("prefill_tokens_per_s")?,
            decode_tokens_per_s: number("decode_tokens_per_s")?,
            peak_rss_bytes: number("peak_rss_bytes")?,
        })
    }

    /// Measures one start in `mode`, which names an implementation of attention.
    pub(super) fn start_with(&self, mode: &str) -> Result<Start> {
        let mut command = self.command(mode, &[START_PROMPT_TOKENS]);
        let done = finished(&mut command, "starting GenAI")?;
        let start_ms = done.json("starting GenAI")?["start_ms"].as_f64();
        Ok(Start {
            process_ms: done.first_line_ms,
            start_ms: start_ms.context("genai.py printed no start_ms")?,
            peak: done.peak,
        })
    }

    fn command(&self, mode: &str, prefills: &[u32]) -> Command {
        let mut command = Command::new(&self.python);
        let (script, model) = (text(&self.script), text(&self.model));
        command
            .args([script.as_str(), mode, model.as_str()])
            .arg(listed(prefills))
            .args([DECODE_TOKENS, BATCH].map(|n| n.to_string()));
        command
    }
}

/// Exports the model with optimum-cli, once for each state of the model folder. `task` is its word for what the model does.
pub(crate) fn ensure_export(
    bin: &Path,
    subject: &Subject,
    task: &str,
    precision: Precision,
) -> Result<PathBuf> {
    let Subject {
        folder: model,
        name,
        peers,
        ..
    } = subject;
    let form = match precision.weights {
        Bits::Eight => precision.of_genai().to_owned(),
        Bits::Four(group) => format!("{}-{group}", precision.of_genai()),
    };
    let exported = peers.join(format!("{name}-genai-{form}"));
    let stamp = exported.join("source.txt");
    let source = source(model)?;
    if fs::read_to_string(&stamp).is_ok_and(|text| text == source) {
        return Ok(exported);
    }
    note(format!(
        "exporting {name} for GenAI ({form}): some minutes, 8 GB of memory"
    ));
    let scratch = tempfile::tempdir_in(peers).context("cannot create a folder for the export")?;
    let fresh = scratch.path().join("model");
    let script = scratch.path().join("genai_export.py");
    fs::write(&script, EXPORT).with_context(|| format!("cannot write `{}`", script.display()))?;
    let mut command = Command::new(bin.join("python"));
    command
        .arg(&script)
        .args(["export", "openvino", "--model", &text(model)])
        .args(["--task", task])
        .args(precision.export_arguments())
        .arg(&fresh);
    workspace::capture(&mut command, "optimum-cli export")?;
    fs::write(fresh.join("source.txt"), source).context("cannot write the stamp")?;
    if exported.exists() {
        fs::remove_dir_all(&exported)
            .with_context(|| format!("cannot remove `{}`", exported.display()))?;
    }
    fs::rename(&fresh, &exported).context("cannot move the export to its place")?;
    Ok(exported)
}

/// Names, sizes and times of the model's files, to detect a changed model.
fn source(model: &Path) -> Result<String> {
    let what = || format!("cannot list `{}`", model.display());
    let mut lines = Vec::new();
    for entry in fs::read_dir(model).with_context(what)? {
        let entry = entry.with_context(what)?;
        let meta = entry.metadata().with_context(what)?;
        let modified = meta.modified().with_context(what)?;
        let name = entry.file_name();
        lines.push(format!(
            "{} {} {modified:?}",
            name.to_string_lossy(),
            meta.len()
        ));
    }
    lines.sort();
    Ok(lines.join("\n"))
}

/// The task of a model that writes text.
pub(crate) const GENERATION: &str = "text-generation-with-past";

/// The tasks of models that give vectors, and scores of pairs.
pub(crate) const VECTORS: &str = "feature-extraction";
pub(crate) const SCORES: &str = "text-classification";

const SCRIPT: &str = include_str!("genai.py");

const EXPORT: &str = include_str!("genai_export.py");

const ABOUT_PACKAGES: &str = "about 3 GB to download, 6 GB on disk, once; \
    set HEG_PEERS_VENV to an environment that has the packages to avoid this";
