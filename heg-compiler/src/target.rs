//! The input of a compile: a model file, a bare Hugging Face folder, or a GGUF file.

use std::fs;
use std::path::{Path, PathBuf};

use heg_artifacts::SectionId;
use heg_spec::{Architecture, Fusion, ModelSpec, Source, SpecError, shipped};

use crate::error::CompileError;
use crate::options::CompileOptions;
use heg_ingest::{ConfigJson, ModelSource, PooledVectors};

/// A resolved target.
#[derive(Debug, Clone)]
pub struct Target {
    /// The model file's content, or the defaults for a bare folder or a GGUF file.
    pub spec: ModelSpec,
    /// Folder that relative names in the spec start at: the model file's, or the Hugging Face folder itself.
    folder: PathBuf,
    /// The way in which vectors are pooled, if the model's folder says that it gives some.
    pooled: Option<PooledVectors>,
}

/// A spec file that went into a bundle: its name and the hash of its text.
pub(crate) type SpecHash = (String, SectionId);

impl Target {
    /// Makes a target with a given spec; relative names in `spec` start at `folder`.
    pub fn new(spec: ModelSpec, folder: PathBuf) -> Self {
        Self {
            spec,
            folder,
            pooled: None,
        }
    }

    /// The same target, whose model gives vectors if its folder says how they are pooled.
    pub(crate) fn pooling(&self, pooled: Option<PooledVectors>) -> Self {
        Self {
            pooled,
            ..self.clone()
        }
    }

    /// The way in which the model's vectors are pooled, if its folder says that it gives some.
    pub(crate) fn pooled(&self) -> Option<PooledVectors> {
        self.pooled
    }

    /// The same target with a caller's options applied to its spec.
    pub(crate) fn with(&self, options: &CompileOptions) -> Self {
        Self {
            spec: options.apply(&self.spec),
            ..self.clone()
        }
    }

    /// Reads `path`: a folder or a GGUF file is itself the target, any other file is a model file in RON.
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
            return Ok(Self::new(spec, path.to_owned()));
        }
        if ModelSource::is_gguf(path) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let spec = ModelSpec::of_folder(name.into_owned(), path.to_owned());
            let folder = path.parent().unwrap_or(Path::new(""));
            return Ok(Self::new(spec, folder.to_owned()));
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
        Ok(Self::new(spec, folder.to_owned()))
    }

    /// The architecture that the model file names (a shipped name, or a `.ron` file beside the model file), or else the
    /// one for the config's `model_type` and classes; without its output projection if the model gives vectors.
    pub(crate) fn architecture(
        &self,
        config: &ConfigJson,
    ) -> Result<(Architecture, SpecHash), CompileError> {
        let (architecture, hash) = self.named_architecture(config)?;
        if self.pooled.is_none() {
            return Ok((architecture, hash));
        }
        let name = architecture.name.clone();
        let giving = architecture.giving_vectors();
        let giving = giving.ok_or(CompileError::NoVectors { architecture: name })?;
        Ok((giving, hash))
    }

    fn named_architecture(
        &self,
        config: &ConfigJson,
    ) -> Result<(Architecture, SpecHash), CompileError> {
        let architecture = match &self.spec.architecture {
            Some(file) if file.ends_with(".ron") => return self.architecture_file(file),
            Some(name) => shipped::architecture(name)?,
            None => {
                let model_type =
                    config
                        .text("model_type")
                        .ok_or_else(|| CompileError::NoModelType {
                            path: config.path().to_owned(),
                        })?;
                shipped::architecture_of(model_type, &config.classes())?
            }
        };
        let name = architecture.name.as_str();
        let text = shipped::ARCHITECTURES
            .iter()
            .find(|(known, _)| *known == name);
        let hash = SectionId::of(text.map_or("", |(_, text)| text).as_bytes());
        let name = format!("architectures/{name}.ron");
        Ok((architecture, (name, hash)))
    }

    fn architecture_file(&self, file: &str) -> Result<(Architecture, SpecHash), CompileError> {
        let path = self.folder.join(file);
        let text = fs::read_to_string(&path).map_err(|source| SpecError::Read {
            path: path.clone(),
            source,
        })?;
        let shown = path.display().to_string();
        let architecture = Architecture::parse(Source {
            file: &shown,
            text: &text,
        })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok((
            architecture,
            (name.into_owned(), SectionId::of(text.as_bytes())),
        ))
    }

    pub(crate) fn fusion(&self) -> Result<Fusion, CompileError> {
        Ok(shipped::fusion(&self.spec.fusion)?)
    }

    /// The fusion plan's file, for the provenance.
    pub(crate) fn fusion_hash(&self) -> SpecHash {
        let name = self.spec.fusion.as_str();
        let text = shipped::FUSIONS.iter().find(|(known, _)| *known == name);
        let hash = SectionId::of(text.map_or("", |(_, text)| text).as_bytes());
        (format!("fusions/{name}.ron"), hash)
    }
}
