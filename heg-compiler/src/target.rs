//! What the user asked to compile: a model file, or a bare Hugging Face folder.

use std::fs;
use std::path::Path;

use heg_spec::{Architecture, Fusion, ModelSpec, Source, SpecError, shipped};

use crate::error::CompileError;
use crate::ingest::ConfigJson;

/// A resolved target.
#[derive(Debug, Clone)]
pub struct Target {
    /// The model file, or what stands in for it.
    pub spec: ModelSpec,
}

impl Target {
    /// Reads `path`: a folder is taken as it is, a file is a model file in RON.
    pub fn read(path: &Path) -> Result<Self, CompileError> {
        if path.is_dir() {
            let absolute = path.canonicalize().map_err(|source| CompileError::Io {
                action: "resolve",
                path: path.to_owned(),
                source,
            })?;
            let name = absolute
                .file_name()
                .map_or_else(|| "model".into(), |name| name.to_string_lossy());
            let spec = ModelSpec::of_folder(name.into_owned(), path.to_owned());
            return Ok(Self { spec });
        }
        let text = fs::read_to_string(path).map_err(|source| SpecError::Read {
            path: path.to_owned(),
            source,
        })?;
        let file = path.display().to_string();
        let mut spec = ModelSpec::parse(Source {
            file: &file,
            text: &text,
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        spec.source = folder.join(&spec.source);
        Ok(Self { spec })
    }

    /// The architecture: the one the model file names (a shipped name, or a `.ron` file beside the model
    /// file), else the one that describes the config's `model_type`.
    pub(crate) fn architecture(&self, config: &ConfigJson) -> Result<Architecture, CompileError> {
        match &self.spec.architecture {
            Some(file) if file.ends_with(".ron") => {
                let path = self.spec.source.join(file);
                let text = fs::read_to_string(&path).map_err(|source| SpecError::Read {
                    path: path.clone(),
                    source,
                })?;
                let file = path.display().to_string();
                Ok(Architecture::parse(Source {
                    file: &file,
                    text: &text,
                })?)
            }
            Some(name) => Ok(shipped::architecture(name)?),
            None => {
                let model_type =
                    config
                        .text("model_type")
                        .ok_or_else(|| CompileError::NoModelType {
                            path: config.path().to_owned(),
                        })?;
                Ok(shipped::architecture_of(model_type)?)
            }
        }
    }

    pub(crate) fn fusion(&self) -> Result<Fusion, CompileError> {
        Ok(shipped::fusion(&self.spec.fusion)?)
    }
}
