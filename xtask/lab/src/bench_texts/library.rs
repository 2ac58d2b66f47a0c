//! Engines that are libraries for Python: a script has the model and makes vectors.

use super::sides::pinned;
use crate::bench_peers::genai;
use crate::precision::Precision;
use crate::process::{finished, timed_json};
use crate::subject::Subject;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use xtask::venv;
use xtask::workspace::{capture, note};

/// A library with its form of the model.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) name: &'static str,
    python: PathBuf,
    script: &'static str,
    model: PathBuf,
}

impl Library {
    /// OpenVINO GenAI.
    pub(super) fn genai(embedder: &Subject) -> Result<Self> {
        let bin = genai::environment()?;
        let precision = Precision::EIGHT_BITS;
        Ok(Self {
            name: "GenAI",
            python: bin.join("python"),
            script: include_str!("genai_texts.py"),
            model: genai::ensure_export(&bin, embedder, genai::VECTORS, precision)?,
        })
    }

    /// ONNX Runtime, with a model that is written once.
    pub(super) fn onnxruntime(embedder: &Subject) -> Result<Self> {
        let folder = embedder.peers.join("onnxruntime");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create `{}`", folder.display()))?;
        let about = "ONNX Runtime, 200 MB on disk, once";
        let bin = venv::ensure(&folder.join("venv"), venv::ONNXRUNTIME, about)?;
        let library = Self {
            name: "ONNX Runtime",
            python: bin.join("python"),
            script: include_str!("onnxruntime_texts.py"),
            model: folder.join(&embedder.name),
        };
        if !library.model.is_dir() {
            note(format!("writing {} for ONNX Runtime", embedder.name));
            let partial = tempfile::tempdir_in(&folder).context("cannot create a folder")?;
            let scratch = scratch()?;
            let mut make = Command::new(&library.python);
            make.arg(library.written(&scratch)?)
                .arg("make")
                .args([&embedder.folder, partial.path()]);
            capture(&mut make, "writing the ONNX file")?;
            fs::rename(partial.keep(), &library.model)
                .context("cannot move the ONNX file to its place")?;
        }
        Ok(library)
    }

    /// Texts a second in calls with all texts of a list, for each list, on the first cores.
    pub(super) fn rates(
        &self,
        cores: usize,
        texts: &[Vec<String>],
        span: Duration,
    ) -> Result<Vec<f64>> {
        let scratch = scratch()?;
        let mut command = pinned(&self.python, cores);
        command
            .arg(self.written(&scratch)?)
            .arg("rates")
            .arg(&self.model)
            .arg(listed(&scratch, &json!(texts))?)
            .arg(span.as_secs_f64().to_string());
        let (rates, _) = timed_json(&mut command, self.name)?;
        serde_json::from_value(rates).context("a script printed something else than rates")
    }

    /// The vector of each text, asked for one after the other.
    pub(super) fn vectors(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        let scratch = scratch()?;
        let mut command = Command::new(&self.python);
        command
            .arg(self.written(&scratch)?)
            .arg("vectors")
            .arg(&self.model)
            .arg(listed(&scratch, &json!(texts))?);
        let (vectors, _) = timed_json(&mut command, self.name)?;
        serde_json::from_value(vectors).context("a script printed something else than vectors")
    }

    /// Time from before Python's start until the vector of a text is there, in ms.
    pub(super) fn first_vector_ms(&self, asked: &str) -> Result<f64> {
        let scratch = scratch()?;
        let mut command = Command::new(&self.python);
        command
            .arg(self.written(&scratch)?)
            .arg("first")
            .arg(&self.model)
            .arg(asked);
        Ok(finished(&mut command, self.name)?.first_line_ms)
    }

    /// Its script, written to a folder.
    fn written(&self, scratch: &TempDir) -> Result<PathBuf> {
        let script = scratch.path().join("texts.py");
        fs::write(&script, self.script).context("cannot write a script")?;
        Ok(script)
    }
}

fn scratch() -> Result<TempDir> {
    tempfile::tempdir().context("cannot create a folder for a script")
}

/// Texts as a file that scripts read.
fn listed(scratch: &TempDir, texts: &Value) -> Result<PathBuf> {
    let file = scratch.path().join("texts.json");
    fs::write(&file, texts.to_string()).context("cannot write texts")?;
    Ok(file)
}
