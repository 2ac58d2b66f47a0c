//! A mapped bundle with its text side: the entry point of every command.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use heg_artifacts::{Bundle, SectionId};
use heg_profiler::annotation::Annotations;
use heg_profiler::partition::Partitions;
use heg_spec::{Policy, Soc};

use crate::error::RuntimeError;
use crate::platform::{lockable_bytes, memory_bytes};
use heg_engine::{Engine, EngineOptions, annotations};
use heg_exec::{Executor, ExecutorOptions, GpuExaminer, GpuProcess, Loader};
use heg_files::OwnFolder;
use heg_text::{ChatTemplate, Tokenizer};

/// An open bundle.
pub struct Loaded {
    bundle: Arc<Bundle>,
    path: PathBuf,
}

impl Loaded {
    /// Maps the bundle at `path`. O(manifest).
    pub fn open(path: &Path) -> Result<Self, RuntimeError> {
        let bundle = Bundle::open(path).map_err(|source| RuntimeError::Bundle {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            bundle: Arc::new(bundle),
            path: path.to_owned(),
        })
    }

    /// Reads the bundle and locks it in memory while it is open, even if other programs need memory.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::LockWeights`] if the system does not allow it; [`RuntimeError::NoRoomForWeights`] if this
    /// process may not have that much memory.
    pub fn lock_weights(&self) -> Result<(), RuntimeError> {
        let mapping = self.bundle.mapping();
        let bytes = mapping.len() as u64;
        // Checked first, because the system kills processes that lock more memory than they may have.
        if let Some(limit) = memory_bytes().filter(|limit| *limit < bytes) {
            return Err(RuntimeError::NoRoomForWeights { bytes, limit });
        }
        mapping.lock().map_err(|source| RuntimeError::LockWeights {
            bytes,
            limit: lockable_bytes(),
            source,
        })
    }

    /// Hashes every section and compares, with `threads` threads, and checks the modules that GPUs may run.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Bundle`] for the first damaged section, [`RuntimeError::Modules`] for the first module that is not
    /// sound.
    pub fn verify(&self, threads: NonZero<usize>) -> Result<(), RuntimeError> {
        let verified = self.bundle.verify(threads);
        verified.map_err(|source| RuntimeError::Bundle {
            path: self.path.clone(),
            source,
        })?;
        heg_spirv::verify(&self.bundle).map_err(|source| RuntimeError::Modules {
            path: self.path.clone(),
            source,
        })
    }

    /// Returns the bundle itself.
    pub fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// Returns the tokenizer of a trusted bundle: the cost of encoding a text is bounded only by the tokenizer file.
    pub fn tokenizer(&self) -> Result<Tokenizer, RuntimeError> {
        let missing = RuntimeError::NoText {
            missing: "tokenizer",
            hint: "give the prompt as token ids with `--prompt-ids`",
        };
        let id = self.bundle.manifest().text.tokenizer.ok_or(missing)?;
        Ok(Tokenizer::from_json(&self.section(id)?)?)
    }

    /// Returns the chat template of a trusted bundle: the template's memory and stack are unbounded.
    pub fn chat_template(&self) -> Result<ChatTemplate, RuntimeError> {
        let missing = RuntimeError::NoText {
            missing: "chat template",
            hint: "give the prompt as it is with `--raw`",
        };
        let text = &self.bundle.manifest().text;
        let source = self.section(text.chat_template.ok_or(missing)?)?;
        let source = String::from_utf8_lossy(&source);
        Ok(ChatTemplate::new(&source, text.special_tokens.clone())?)
    }

    /// Returns the files of the bundle's text side, for processes that do not trust them.
    pub fn text_source(&self) -> TextSource {
        TextSource(Self {
            bundle: Arc::clone(&self.bundle),
            path: self.path.clone(),
        })
    }

    /// Returns the annotations with the speed of the bundle's kernels, if there are any.
    pub fn annotations(&self) -> Result<Option<Annotations>, RuntimeError> {
        Ok(annotations(&self.bundle)?)
    }

    /// Returns the bundle's partitions of products between two devices, if it has some for any machine.
    pub fn partitions(&self) -> Result<Option<Partitions>, RuntimeError> {
        let Some(id) = self.bundle.manifest().partitions else {
            return Ok(None);
        };
        let text = self.section(id)?;
        Ok(Some(Partitions::parse(&String::from_utf8_lossy(&text))?))
    }

    /// Returns a loader of the bundle's kernels on the devices of `soc`.
    pub fn loader(&self, soc: &Soc) -> Result<Loader, RuntimeError> {
        Ok(Loader::open(Arc::clone(&self.bundle), soc.clone())?)
    }

    /// Returns a loader like [`loader`](Self::loader), with a cache, which uses a GPU only after a process of its own has
    /// run the bundle there: `program` with `arguments`, which calls [`examine`](heg_exec::examine) with the last of its
    /// arguments and prints what that returns.
    pub fn examined_loader(
        &self,
        soc: &Soc,
        cache: OwnFolder,
        program: PathBuf,
        arguments: Vec<OsString>,
    ) -> Result<Loader, RuntimeError> {
        let examiner = GpuExaminer {
            process: gpu_process(program, arguments),
            bundle: self.path.clone(),
            cache,
        };
        let bundle = Arc::clone(&self.bundle);
        Ok(Loader::open_examined(bundle, soc.clone(), &examiner)?)
    }

    /// Starts an engine on the devices of `soc`; returns before kernels are ready.
    ///
    /// # Errors
    ///
    /// [`ExecError::OpenVino`](crate::ExecError::OpenVino) if OpenVINO's libraries are missing; otherwise as
    /// [`Engine::start`].
    pub fn engine(
        &self,
        soc: &Soc,
        policy: Policy,
        options: EngineOptions,
    ) -> Result<Engine, RuntimeError> {
        Ok(Engine::start(self.loader(soc)?, policy, options)?)
    }

    /// Returns an executor on the devices of `soc`, without a cache; kernels are still being prepared when this
    /// returns.
    pub fn executor(&self, soc: &Soc, options: ExecutorOptions) -> Result<Executor, RuntimeError> {
        Ok(Executor::new(self.loader(soc)?, options)?)
    }

    /// Copies a section, so that the parsed bytes are those that were hashed.
    pub(crate) fn section(&self, id: SectionId) -> Result<Vec<u8>, RuntimeError> {
        self.bundle
            .section_copy(id)
            .map_err(|source| RuntimeError::Bundle {
                path: self.path.clone(),
                source,
            })
    }
}

/// The process that examines GPUs: `program` with `arguments`, as in [`examined_loader`](Loaded::examined_loader).
pub fn gpu_process(program: PathBuf, arguments: Vec<OsString>) -> GpuProcess {
    GpuProcess {
        program,
        arguments,
        patience: EXAMINATION_MAX,
    }
}

/// The longest time in which a GPU is examined. Chosen: drivers of phones compile for seconds, and large weights are copied.
const EXAMINATION_MAX: Duration = Duration::from_secs(120);

/// The unparsed text side of a bundle.
pub struct TextFiles {
    /// Contents of the `tokenizer.json`, if there is one.
    pub tokenizer: Option<Vec<u8>>,
    /// The chat template, if there is one.
    pub template: Option<String>,
    /// Texts of special tokens, by their names in templates.
    pub special_tokens: BTreeMap<String, String>,
    /// The tokens that end an answer.
    pub eos_ids: Vec<u32>,
}

/// The text side of a bundle, read on demand.
pub struct TextSource(Loaded);

impl TextSource {
    /// Reads the tokenizer and the template, if there are any.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Bundle`] if a section is damaged.
    pub fn read(&self) -> Result<TextFiles, RuntimeError> {
        let Self(loaded) = self;
        let text = &loaded.bundle.manifest().text;
        let section = |id: Option<SectionId>| id.map(|id| loaded.section(id)).transpose();
        let template = section(text.chat_template)?;
        Ok(TextFiles {
            tokenizer: section(text.tokenizer)?,
            template: template.map(|source| String::from_utf8_lossy(&source).into_owned()),
            special_tokens: text.special_tokens.clone(),
            eos_ids: text.eos_ids.clone(),
        })
    }
}
