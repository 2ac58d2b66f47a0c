//! The models that are measured: where each comes from, as a Hugging Face folder that both sides take, and its bundles.

use crate::bench_peers::{Subject, genai};
use anyhow::{Context, Result};
use clap::ValueEnum;
use heg_spec::WeightForm;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::compile;
use xtask::fail::Fail;
use xtask::fetch::{self, Consent};
use xtask::workspace::{self, note, root, target_dir};

/// A model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Model {
    /// SmolLM2-135M-Instruct, fetched
    Smollm2,
    /// Gemma 3 270M, fetched under Google's terms
    Gemma3,
    /// The project's own model of 27 million parameters, beside the checkout in ../shared/models
    #[value(name = "agent-30m")]
    Agent30m,
}

impl Model {
    /// Name in tables and of its files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Smollm2 => "smollm2-135m-instruct",
            Self::Gemma3 => "gemma3-270m",
            Self::Agent30m => "agent-30m",
        }
    }

    /// What both sides take, made if need be; none where the model lies beside no checkout like this one.
    pub(super) fn sources(self, consent: Consent) -> Result<Option<Sources>> {
        let (ours, folder) = match self {
            Self::Smollm2 | Self::Gemma3 => {
                let file = fetch::ensure(self.name(), consent)?;
                let folder = self.unpacked(&file)?;
                (file, folder)
            }
            Self::Agent30m => {
                let folder = root().join("../shared/models/agent-30m");
                (folder.clone(), folder)
            }
        };
        if !folder.is_dir() {
            return Ok(None);
        }
        let subject = Subject::find(Some(&folder))?;
        Ok(Some(Sources { ours, subject }))
    }

    /// The folder that transformers makes of a GGUF file: the same weights in f32.
    fn unpacked(self, file: &Path) -> Result<PathBuf> {
        let folders = target_dir().join("peers").join("folders");
        let folder = folders.join(self.name());
        if folder.is_dir() {
            return Ok(folder);
        }
        fs::create_dir_all(&folders)
            .with_context(|| format!("cannot create `{}`", folders.display()))?;
        note(format!("unpacking {} with transformers", self.name()));
        let scratch = tempfile::tempdir_in(&folders).context("cannot create a folder")?;
        let script = scratch.path().join("gguf_folder.py");
        fs::write(&script, SCRIPT).context("cannot write a script")?;
        let fresh = scratch.path().join("model");
        let mut command = Command::new(genai::environment()?.join("python"));
        command.arg(&script).arg(file).arg(&fresh);
        workspace::capture(&mut command, "reading the GGUF file with transformers")?;
        fs::rename(&fresh, &folder).context("cannot move the folder to its place")?;
        Ok(folder)
    }
}

/// The same weights for either side.
pub(super) struct Sources {
    /// What bundles are compiled from: a GGUF file, or a Hugging Face folder.
    ours: PathBuf,
    /// The Hugging Face folder that GenAI's export is made from.
    pub(super) subject: Subject,
}

/// The forms, the most exact first.
pub(super) const FORMS: [(&str, WeightForm); 3] = [
    ("f32", WeightForm::F32),
    ("f16", WeightForm::F16),
    ("w8a16", WeightForm::W8A16),
];

/// Compiles a model into a bundle of a form.
pub(super) fn bundle(sources: &Sources, (name, form): (&str, WeightForm)) -> Result<PathBuf> {
    let Sources { ours, subject } = sources;
    let bundle = subject.peers.join(format!("{}-{name}.heg", subject.name));
    let mut options = compile::own_use();
    options.weights = Some(form);
    options.name = Some(subject.name.clone());
    let done = compile::compiled(ours, &bundle, &options)
        .with_context(|| Fail::input(format!("cannot compile `{}`", ours.display())))?;
    note(done);
    Ok(bundle)
}

const SCRIPT: &str = include_str!("gguf_folder.py");
