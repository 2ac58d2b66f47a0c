//! Errors between a bundle and a token, and the exit status of each.

use std::path::PathBuf;

use heg_files::FileError;
use heg_spec::{DeviceClass, Group};
use thiserror::Error;

use crate::history::HistoryError;
use heg_text::TextError;

/// Why the runtime could not do what it was asked.
#[derive(Debug, Error)]
pub enum RuntimeError {
    /// A policy names a device that the machine has no lane for.
    #[error(
        "policy `{policy}` runs every kernel on the {device:?}, and machine `{soc}` has no such lane: \
         choose a policy for its devices, or another machine"
    )]
    PolicyDevice {
        /// The policy.
        policy: String,
        /// The device that it names.
        device: heg_spec::DeviceClass,
        /// The machine.
        soc: String,
    },
    /// A policy has two devices run every kernel together, which the machine cannot.
    #[error(
        "the policy has NPU and iGPU run every kernel together, and machine `{soc}` has no CPU programs for both roles: \
         choose another policy, or a machine such as `host-pair`"
    )]
    Pair {
        /// The machine.
        soc: String,
    },
    /// The bundle cannot be opened, or is damaged.
    #[error("cannot use bundle `{path}`", path = path.display())]
    Bundle {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: heg_artifacts::Error,
    },
    /// A section is damaged; found on its first use.
    #[error("the bundle is damaged")]
    Section(#[source] heg_artifacts::Error),
    /// Somebody wrote to the bundle's file while it was in use, or cut it off.
    #[error("the bundle changed while it was in use")]
    BundleChanged(#[source] heg_artifacts::Error),
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
        /// What the process may lock; none where nothing bounds it.
        limit: Option<u64>,
        /// Cause.
        source: heg_artifacts::Error,
    },
    /// The bundle cannot be kept in memory, because it is larger than what there is.
    #[error(
        "cannot lock the {bytes} bytes of the bundle in memory: this process may have {limit} bytes, by the machine's \
         memory or the limit of a control group"
    )]
    NoRoomForWeights {
        /// Size of the bundle.
        bytes: u64,
        /// What the process may have.
        limit: u64,
    },
    /// The bundle's annotations cannot be read.
    #[error(transparent)]
    Annotations(#[from] heg_profiler::annotation::AnnotationError),
    /// The bundle's partitions cannot be read.
    #[error(transparent)]
    Partitions(#[from] heg_profiler::partition::PartitionError),
    /// A SoC file is wrong or unknown.
    #[error(transparent)]
    Spec(#[from] heg_spec::SpecError),
    /// OpenVINO is missing or refused something.
    #[error("OpenVINO: {doing}")]
    OpenVino {
        /// What was being done.
        doing: String,
        /// Cause.
        source: heg_openvino::Error,
    },
    /// The SoC has no device for a kernel.
    #[error(
        "SoC `{soc}` has no device for `{group:?}` kernels, expected one of class {expected:?}"
    )]
    NoDevice {
        /// The SoC.
        soc: String,
        /// The op group.
        group: Group,
        /// Classes that are accepted.
        expected: Vec<DeviceClass>,
    },
    /// Every rung of a kernel's ladder was passed over.
    #[error("nothing is left to run kernel `{kernel}`: {reasons}")]
    NoRung {
        /// The kernel.
        kernel: String,
        /// Why each rung was passed over.
        reasons: String,
    },
    /// Kernels failed their known-answer tests.
    #[error(
        "{wrong} kernels answered wrongly; they are quarantined, and the next kernels of their ladders run instead"
    )]
    WrongAnswers {
        /// Number of kernels.
        wrong: usize,
    },
    /// A device refused a kernel.
    #[error("kernel `{kernel}` was refused: {message}")]
    Refused {
        /// The kernel.
        kernel: String,
        /// Message of the device.
        message: String,
    },
    /// A CPU program cannot run.
    #[error("run the CPU program of kernel `{kernel}`")]
    Program {
        /// The kernel.
        kernel: String,
        /// Why.
        source: heg_cpu::Error,
    },
    /// Bytes of the bundle are not what they were when they were verified.
    #[error("{part} has changed in memory since it was verified")]
    ChangedInMemory {
        /// The part of the bundle.
        part: String,
    },
    /// The cache folder, or something in it, is not the user's own, or cannot be used.
    #[error("cannot use the cache folder `{path}`", path = path.display())]
    Cache {
        /// The folder.
        path: PathBuf,
        /// Cause.
        source: FileError,
    },
    /// An IR of the bundle has an invalid reference.
    #[error("IR of kernel `{kernel}` has `{found}`, expected {expected}")]
    Reference {
        /// The kernel.
        kernel: String,
        /// The text that was found, shortened.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// The IR of static attention cannot be narrowed to fewer rows of context.
    #[error(
        "IR of kernel `{kernel}` cannot be narrowed to {to} rows of context: its {from} rows are in {found} places, \
         expected 3"
    )]
    Narrow {
        /// The kernel.
        kernel: String,
        /// Rows of the variant.
        from: u32,
        /// Rows that were wanted.
        to: u32,
        /// Places in the IR that hold the number of rows.
        found: usize,
    },
    /// Prompt and answer do not fit the context.
    #[error("{asked} tokens do not fit the context of {context} tokens")]
    Context {
        /// Tokens in the prompt, or prompt and answer.
        asked: usize,
        /// Tokens the bundle was compiled for.
        context: usize,
    },
    /// The prompt has no tokens.
    #[error("the prompt has no tokens, expected at least one")]
    EmptyPrompt,
    /// A token is not in the vocabulary.
    #[error("token {found} is not in the vocabulary of {vocab} tokens")]
    Token {
        /// The token.
        found: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// A token of a passage is not in the vocabulary.
    #[error("token {found} at position {position} is not in the vocabulary of {vocab} tokens")]
    PassageToken {
        /// Its place in the passage, from 0.
        position: usize,
        /// The token.
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
    /// Models that are to be compared have other tokens.
    #[error(
        "the vocabulary has {model} tokens and the other model's {against}, expected the same vocabulary"
    )]
    Vocabularies {
        /// Tokens of the model.
        model: u32,
        /// Tokens of the one that it is held against.
        against: u32,
    },
    /// A batch is larger than the executor has rows for.
    #[error("a batch of {asked} rows, expected at most {rows}")]
    Batch {
        /// Rows asked for.
        asked: usize,
        /// Rows of the executor.
        rows: usize,
    },
    /// The bundle has no tokenizer, or no chat template, and the request needs one.
    #[error("the bundle has no {missing}; {hint}")]
    NoText {
        /// What is missing.
        missing: &'static str,
        /// The way to do without it.
        hint: &'static str,
    },
    /// Text could not be encoded, decoded or rendered.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A KV cache cannot be read back from flash.
    #[error("cannot read a KV cache back from flash")]
    Flash {
        /// Cause.
        source: std::io::Error,
    },
    /// There is no address range for a KV cache.
    #[error("cannot reserve {bytes} bytes of address space")]
    Reserve {
        /// Size of the range.
        bytes: usize,
        /// Cause.
        source: std::io::Error,
    },
    /// A profile is damaged, or of another bundle or device.
    #[error("cannot use profile `{path}`", path = path.display())]
    Profile {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: heg_profiler::measure::ProfileError,
    },
    /// A profile cannot be read or written.
    #[error("cannot read or write profile `{path}`", path = path.display())]
    ProfileFile {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: FileError,
    },
    /// Finished answers of earlier runs cannot be read or written.
    #[error("cannot use the history `{path}`", path = path.display())]
    History {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: HistoryError,
    },
    /// A lane cannot be used any more.
    #[error("the lane {lane:?} is lost: {why}")]
    LaneLost {
        /// The lane.
        lane: heg_sched::Lane,
        /// The reason that the lane gave.
        why: String,
    },
    /// A kernel ran far longer than expected, and its lane was reset.
    #[error("a kernel on lane {lane:?} did not end in time")]
    Hung {
        /// The lane.
        lane: heg_sched::Lane,
    },
    /// The engine was shut down, or could not prepare its kernels.
    #[error("the engine has stopped")]
    EngineStopped,
    /// The engine's thread panicked.
    #[error("the engine ended early; this is a bug")]
    EngineGone,
    /// A launch was given up while it ran.
    #[error("the launch was given up")]
    Abandoned,
    /// The thread that prepares kernels ended early.
    #[error("kernel preparation ended early; this is a bug")]
    LoaderGone,
    /// A launch does not fit the model: a bug of the caller.
    #[error("launch of {group:?} at layer {layer:?} does not fit the model; this is a bug")]
    Launch {
        /// The op group.
        group: Group,
        /// The layer; none for the head.
        layer: Option<u32>,
    },
    /// A tree of drafted tokens came to a kernel that is no CPU program: a bug of the caller.
    #[error(
        "a tree of drafted tokens needs CPU programs, found another form of a kernel; this is a bug"
    )]
    Tree,
}

/// Exit status of a process that ends with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// The user's input.
    Input = 2,
    /// The bundle does not fit this host, or is damaged.
    Incompatible = 3,
    /// Device, memory, files.
    Environment = 4,
    /// A bug of HEG.
    Bug = 70,
}

impl RuntimeError {
    /// The error and its causes, on one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }

    /// Exit status of a process that ends with this error.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Bundle {
                source: heg_artifacts::Error::Io { source, .. },
                ..
            } if source.kind() == std::io::ErrorKind::NotFound => ExitStatus::Input,
            Self::Bundle {
                source: heg_artifacts::Error::Io { .. } | heg_artifacts::Error::File(_),
                ..
            }
            | Self::OpenVino { .. }
            | Self::LockWeights { .. }
            | Self::NoRoomForWeights { .. }
            | Self::Flash { .. }
            | Self::Reserve { .. }
            | Self::Refused { .. }
            | Self::Program { .. }
            | Self::ChangedInMemory { .. }
            | Self::Cache { .. }
            | Self::ProfileFile { .. }
            | Self::History {
                source: HistoryError::File(_),
                ..
            }
            | Self::Hung { .. }
            | Self::EngineStopped => ExitStatus::Environment,
            Self::Bundle { .. }
            | Self::Section(_)
            | Self::BundleChanged(_)
            | Self::Annotations(_)
            | Self::Partitions(_)
            | Self::NoDevice { .. }
            | Self::NoRung { .. }
            | Self::WrongAnswers { .. }
            | Self::Reference { .. }
            | Self::Narrow { .. } => ExitStatus::Incompatible,
            Self::Spec(_)
            | Self::Context { .. }
            | Self::EmptyPrompt
            | Self::Token { .. }
            | Self::PassageToken { .. }
            | Self::NothingToScore { .. }
            | Self::Vocabularies { .. }
            | Self::Batch { .. }
            | Self::PolicyDevice { .. }
            | Self::Pair { .. }
            | Self::NoText { .. }
            | Self::Text(_)
            | Self::History { .. }
            | Self::Profile { .. } => ExitStatus::Input,
            Self::LoaderGone
            | Self::EngineGone
            | Self::Launch { .. }
            | Self::Tree
            | Self::LaneLost { .. }
            | Self::Abandoned => ExitStatus::Bug,
        }
    }
}

/// Adds to an error of OpenVINO what was being done.
pub(crate) fn openvino(
    doing: impl Into<String>,
) -> impl FnOnce(heg_openvino::Error) -> RuntimeError {
    let doing = doing.into();
    move |source| RuntimeError::OpenVino { doing, source }
}
