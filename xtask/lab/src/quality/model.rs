//! The measured models: the source of each, as a Hugging Face folder for both sides, and its bundles.

use crate::bench_peers::genai;
use crate::shared;
use crate::subject::{SMOLLM2, Subject};
use anyhow::{Context, Result};
use clap::ValueEnum;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::fetch::{self, Consent};
use xtask::workspace::{self, note, target_dir};

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
            Self::Smollm2 => SMOLLM2,
            Self::Gemma3 => "gemma3-270m",
            Self::Agent30m => "agent-30m",
        }
    }

    /// The model with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let mut all = Self::value_variants().iter().copied();
        all.find(|model| model.name() == name)
    }

    /// The inputs of both sides, created if necessary; `None` if the model's files are not beside this checkout.
    pub(crate) fn subject(self, consent: Consent) -> Result<Option<Subject>> {
        let (gguf, folder) = match self {
            Self::Smollm2 | Self::Gemma3 => {
                let file = fetch::ensure(self.name(), consent, &workspace::output())?;
                let folder = self.unpacked(&file)?;
                (Some(file), folder)
            }
            Self::Agent30m => match shared::folder("models/agent-30m") {
                Some(folder) => (None, folder),
                None => return Ok(None),
            },
        };
        Subject::of_folder(&folder, gguf).map(Some)
    }

    /// The folder that transformers writes from a GGUF file: the same weights in f32.
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

const SCRIPT: &str = include_str!("gguf_folder.py");
