//! A mapped bundle with what text needs: the way in for every command.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use heg_artifacts::{Bundle, SectionId};
use heg_profiler::annotation::Annotations;
use heg_profiler::partition::Partitions;
use heg_spec::{Policy, Soc};

use crate::engine::{Engine, EngineOptions};
use crate::error::RuntimeError;
use crate::exec::{Executor, ExecutorOptions, Loader};
use crate::platform::{lockable_bytes, memory_bytes};
use heg_text::{ChatTemplate, Tokenizer};

/// A bundle, opened.
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

    /// Reads the bundle and keeps it in memory while it is open, whatever else needs memory.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::LockWeights`] where the system does not allow it; [`RuntimeError::NoRoomForWeights`] where this
    /// process may not have so much memory.
    pub fn lock_weights(&self) -> Result<(), RuntimeError> {
        let mapping = self.bundle.mapping();
        let bytes = mapping.len() as u64;
        // Asked before: a system ends processes that lock more than there is.
        if let Some(limit) = memory_bytes().filter(|limit| *limit < bytes) {
            return Err(RuntimeError::NoRoomForWeights { bytes, limit });
        }
        mapping.lock().map_err(|source| RuntimeError::LockWeights {
            bytes,
            limit: lockable_bytes(),
            source,
        })
    }

    /// The bundle itself.
    pub fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// The tokenizer of the bundle.
    pub fn tokenizer(&self) -> Result<Tokenizer, RuntimeError> {
        let missing = RuntimeError::NoText {
            missing: "tokenizer",
            hint: "give the prompt as token ids with `--prompt-ids`",
        };
        let id = self.bundle.manifest().text.tokenizer.ok_or(missing)?;
        Ok(Tokenizer::from_json(&self.section(id)?)?)
    }

    /// The chat template of the bundle.
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

    /// What the bundle says of the speed of its kernels, if anything.
    pub fn annotations(&self) -> Result<Option<Annotations>, RuntimeError> {
        annotations(&self.bundle)
    }

    /// How the bundle shares products between two devices, if it says so for any machine.
    pub fn partitions(&self) -> Result<Option<Partitions>, RuntimeError> {
        let Some(id) = self.bundle.manifest().partitions else {
            return Ok(None);
        };
        let text = self.section(id)?;
        Ok(Some(Partitions::parse(&String::from_utf8_lossy(&text))?))
    }

    /// A loader of its kernels on the devices of `soc`.
    pub fn loader(&self, soc: &Soc) -> Result<Loader, RuntimeError> {
        Loader::open(Arc::clone(&self.bundle), soc.clone())
    }

    /// Starts an engine on the devices of `soc`; returns before kernels are ready.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::OpenVino`] where OpenVINO's libraries are missing; otherwise as [`Engine::start`].
    pub fn engine(
        &self,
        soc: &Soc,
        policy: Policy,
        options: EngineOptions,
    ) -> Result<Engine, RuntimeError> {
        Engine::start(self.loader(soc)?, policy, options)
    }

    /// An executor on the devices of `soc`, which remembers nothing; kernels are being prepared when this returns.
    pub fn executor(&self, soc: &Soc, options: ExecutorOptions) -> Result<Executor, RuntimeError> {
        Executor::new(self.loader(soc)?, options)
    }

    /// A copy, so that what is parsed is what was hashed.
    fn section(&self, id: SectionId) -> Result<Vec<u8>, RuntimeError> {
        self.bundle
            .section_copy(id)
            .map_err(|source| RuntimeError::Bundle {
                path: self.path.clone(),
                source,
            })
    }
}

/// What a bundle says of the speed of its kernels, if anything.
pub(crate) fn annotations(bundle: &Bundle) -> Result<Option<Annotations>, RuntimeError> {
    let Some(id) = bundle.manifest().annotations else {
        return Ok(None);
    };
    let text = bundle.section_copy(id).map_err(RuntimeError::Section)?;
    Ok(Some(Annotations::parse(&String::from_utf8_lossy(&text))?))
}
