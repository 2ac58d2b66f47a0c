//! Errors between a bundle and a token, and the exit status of each.

use std::path::PathBuf;

use heg_engine::EngineError;
use heg_exec::{ExecError, ExitStatus, chain};
use heg_text::TextError;
use thiserror::Error;

/// The reason why the runtime could not do its work.
#[derive(Debug, Error)]
pub enum RuntimeError {
    /// A kernel could not be prepared or run, or a request does not fit the model.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The engine could not do what it was asked.
    #[error(transparent)]
    Engine(EngineError),
    /// The bundle cannot be opened, or is damaged.
    #[error("cannot use bundle `{path}`", path = path.display())]
    Bundle {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: heg_artifacts::Error,
    },
    /// The bundle has modules that no GPU should run.
    #[error("bundle `{path}` has a GPU module that is refused", path = path.display())]
    Modules {
        /// The file.
        path: PathBuf,
        /// The fault.
        source: heg_spirv::ModuleError,
    },
    /// The bundle cannot be kept in memory.
    #[error(
        "cannot lock the {bytes} bytes of the bundle in memory: {}",
        match limit {
            Some(limit) => format!("this process may lock {limit} bytes (RLIMIT_MEMLOCK)"),
            None => "there is no limit, but not enough memory".to_owned(),
        }
    )]
    LockWeights {
        /// Size of the bundle.
        bytes: u64,
        /// Number of bytes that the process may lock; `None` if there is no limit.
        limit: Option<u64>,
        /// Cause.
        source: heg_artifacts::Error,
    },
    /// The bundle cannot be kept in memory, because it is larger than the memory that the process may use.
    #[error(
        "cannot lock the {bytes} bytes of the bundle in memory: this process may have {limit} bytes, by the machine's \
         memory or the limit of a control group"
    )]
    NoRoomForWeights {
        /// Size of the bundle.
        bytes: u64,
        /// Number of bytes that the process may use.
        limit: u64,
    },
    /// The bundle's partitions cannot be read.
    #[error(transparent)]
    Partitions(#[from] heg_profiler::partition::PartitionError),
    /// A SoC file is wrong or unknown.
    #[error(transparent)]
    Spec(#[from] heg_spec::SpecError),
    /// Kernels failed their known-answer tests.
    #[error(
        "{wrong} kernels answered wrongly; they are quarantined, and the next kernels of their ladders run instead"
    )]
    WrongAnswers {
        /// Number of kernels.
        wrong: usize,
    },
    /// A token of a passage is not in the vocabulary.
    #[error("token {found} at position {position} is not in the vocabulary of {vocab} tokens")]
    PassageToken {
        /// The token's position in the passage, from 0.
        position: usize,
        /// The token id.
        found: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// A passage ends before the first token that is to be scored.
    #[error(
        "there is nothing to score from position {from} on: the length is {tokens}, expected at least {}",
        from.saturating_add(1)
    )]
    NothingToScore {
        /// Position of the first token to score.
        from: usize,
        /// Tokens of the passage.
        tokens: usize,
    },
    /// Two models that are to be compared have different vocabularies.
    #[error(
        "the vocabulary has {model} tokens and the other model's {against}, expected the same vocabulary"
    )]
    Vocabularies {
        /// Vocabulary size of the model.
        model: u32,
        /// Vocabulary size of the model that it is compared with.
        against: u32,
    },
    /// Too few tokens to bake: they fill no page.
    #[error(
        "conversations have their first {tokens} tokens in common, expected at least {expected}: the system message is too \
         short to be baked, or the chat template does not put it first"
    )]
    ShortBeginning {
        /// Tokens in common.
        tokens: usize,
        /// Tokens of a page.
        expected: usize,
    },
    /// This machine computes keys and values that others could not go on behind.
    #[error("states cannot be baked here: {why}; use CPU programs (`--soc host-cpu`)")]
    NoStateForm {
        /// The reason.
        why: String,
    },
    /// The messages of a baked state cannot be read.
    #[error("state `{state}` has messages that cannot be read")]
    Beginning {
        /// The state.
        state: String,
        /// The fault.
        source: serde_json::Error,
    },
    /// The bundle has no tokenizer, or no chat template, and the request needs one.
    #[error("the bundle has no {missing}; {hint}")]
    NoText {
        /// The missing part.
        missing: &'static str,
        /// The way to do without it.
        hint: &'static str,
    },
    /// Text could not be encoded, decoded or rendered.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The tokenizer or the template of a bundle cannot make a prompt of a plain message.
    #[error("the bundle's text side cannot be used: {why}")]
    TextSide {
        /// The reason that the worker gave.
        why: String,
    },
}

impl From<EngineError> for RuntimeError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Exec(error) => Self::Exec(error),
            EngineError::Text(error) => Self::Text(error),
            EngineError::Spec(error) => Self::Spec(error),
            error => Self::Engine(error),
        }
    }
}

impl RuntimeError {
    /// Returns the error and its causes, on one line.
    pub fn chain(&self) -> String {
        chain(self)
    }

    /// Returns the exit status of a process that ends with this error.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Exec(error) => error.exit_status(),
            Self::Engine(error) => error.exit_status(),
            Self::Bundle {
                source: heg_artifacts::Error::Io { source, .. },
                ..
            } if source.kind() == std::io::ErrorKind::NotFound => ExitStatus::Input,
            Self::Bundle {
                source: heg_artifacts::Error::Io { .. } | heg_artifacts::Error::File(_),
                ..
            } => ExitStatus::Environment,
            Self::Bundle { .. } => ExitStatus::Incompatible,
            Self::LockWeights { .. } | Self::NoRoomForWeights { .. } => ExitStatus::Environment,
            Self::Modules { .. }
            | Self::Partitions(_)
            | Self::WrongAnswers { .. }
            | Self::Beginning { .. }
            | Self::TextSide { .. } => ExitStatus::Incompatible,
            Self::Spec(_)
            | Self::PassageToken { .. }
            | Self::NothingToScore { .. }
            | Self::Vocabularies { .. }
            | Self::NoText { .. }
            | Self::ShortBeginning { .. }
            | Self::NoStateForm { .. }
            | Self::Text(_) => ExitStatus::Input,
        }
    }
}
