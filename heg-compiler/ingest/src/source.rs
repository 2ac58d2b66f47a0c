//! A model as published: a Hugging Face folder or a GGUF file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use heg_artifacts::Mapping;

use super::config_json::ConfigJson;
use super::error::IngestError;
use super::gguf;
use super::safetensors::{Checkpoint, map_file, unreadable};
use super::text_assets::TextAssets;

/// The parts of a published model that are read.
#[derive(Debug)]
pub struct ModelSource {
    /// The model's configuration.
    pub config: ConfigJson,
    /// The tokenizer, the chat template and other text assets.
    pub text: TextAssets,
    /// The model's weights.
    pub checkpoint: Checkpoint,
    /// Name of the configuration's source, for provenance.
    pub config_name: &'static str,
}

impl ModelSource {
    /// Opens a folder or a GGUF file. Weights are mapped: they must not be changed while this lives.
    pub fn open(path: &Path) -> Result<Self, IngestError> {
        if path.is_file() {
            return Self::of_gguf(path.to_owned(), map_file(path)?);
        }
        let config = ConfigJson::read(&path.join("config.json"))?;
        let text = TextAssets::read(path, &config)?;
        let checkpoint = Checkpoint::open(path)?;
        Ok(Self {
            config,
            text,
            checkpoint,
            config_name: "config.json",
        })
    }

    /// Reads the configuration alone.
    pub fn config(path: &Path) -> Result<ConfigJson, IngestError> {
        match path.is_file() {
            true => gguf::config(path, &map_file(path)?),
            false => ConfigJson::read(&path.join("config.json")),
        }
    }

    /// Opens a GGUF file in memory, with the same checks as for a mapped one.
    pub fn from_gguf_bytes(name: &str, content: &[u8]) -> Result<Self, IngestError> {
        let path = PathBuf::from(name);
        let mapping = Mapping::of_bytes(content).map_err(|error| unreadable(&path, error))?;
        Self::of_gguf(path, mapping)
    }

    fn of_gguf(path: PathBuf, mapping: Mapping) -> Result<Self, IngestError> {
        let (config, text, entries) = gguf::read(&path, &mapping)?;
        Ok(Self {
            config,
            text,
            checkpoint: Checkpoint::of_gguf(path, mapping, entries),
            config_name: "GGUF header",
        })
    }

    /// Whether a file is a GGUF file, by its name or its first bytes.
    pub fn is_gguf(path: &Path) -> bool {
        let named = path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        let begins = || {
            let mut start = [0; gguf::MAGIC.len()];
            let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
            read.is_ok() && start == gguf::MAGIC
        };
        path.is_file() && (named || begins())
    }
}
