//! What can go wrong between a bundle and a token, sorted by who can do something about it.

use std::path::PathBuf;

use heg_artifacts::manifest::{DeviceClass, ElementType, Group};
use thiserror::Error;

use crate::text::TextError;

/// Why the runtime could not do what it was asked.
#[derive(Debug, Error)]
pub enum RuntimeError {
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
    /// The bundle's annotations, or a machine's, are not what they should be.
    #[error(transparent)]
    Annotations(#[from] heg_profiler::annotation::AnnotationError),
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
        /// Which op group.
        group: Group,
        /// Classes that would do.
        expected: Vec<DeviceClass>,
    },
    /// The bundle has no variant of a kernel for the device it was bound to.
    #[error("kernel `{kernel}` has no variant for {device:?}, the bundle has {found:?}")]
    NoVariant {
        /// The kernel.
        kernel: String,
        /// The device class.
        device: DeviceClass,
        /// Classes there are variants for.
        found: Vec<DeviceClass>,
    },
    /// Kernels that hand tensors to each other disagree on their element type.
    #[error(
        "kernel `{kernel}` has activations of {found:?}, the kernels before it of {expected:?}"
    )]
    MixedActivations {
        /// The kernel.
        kernel: String,
        /// Element type of the kernels before.
        expected: ElementType,
        /// Its own.
        found: ElementType,
    },
    /// An IR of the bundle refers to something that it cannot refer to.
    #[error(
        "IR of kernel `{kernel}` has the reference `{reference}`, expected one of its {sections} sections or a literal"
    )]
    Reference {
        /// The kernel.
        kernel: String,
        /// The text that was found.
        reference: String,
        /// Sections that the kernel is used with.
        sections: usize,
    },
    /// Prompt and answer do not fit the context.
    #[error("{asked} tokens do not fit the context of {context} tokens")]
    Context {
        /// Tokens in the prompt, or prompt and answer.
        asked: usize,
        /// Tokens the bundle was compiled for.
        context: usize,
    },
    /// A prompt without tokens.
    #[error("the prompt has no tokens, expected at least one")]
    EmptyPrompt,
    /// A token that the vocabulary does not have.
    #[error("token {found} is not in the vocabulary of {vocab} tokens")]
    Token {
        /// The token.
        found: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// More sequences in one batch than the executor has rows for.
    #[error("a batch of {asked} rows, expected at most {rows}")]
    Batch {
        /// Rows asked for.
        asked: usize,
        /// Rows there are.
        rows: usize,
    },
    /// The bundle has no tokenizer, or no chat template, and the request needs one.
    #[error("the bundle has no {missing}; {hint}")]
    NoText {
        /// What is missing.
        missing: &'static str,
        /// What can be done without it.
        hint: &'static str,
    },
    /// Text could not be encoded, decoded or rendered.
    #[error(transparent)]
    Text(#[from] TextError),
    /// No address range for a KV cache.
    #[error("cannot reserve {bytes} bytes of address space")]
    Reserve {
        /// Size of the range.
        bytes: usize,
        /// Cause.
        source: std::io::Error,
    },
    /// The thread that prepares kernels ended early.
    #[error("kernel preparation ended early; this is a bug")]
    LoaderGone,
    /// A launch that the plan cannot give: a bug of the caller.
    #[error("launch of {group:?} at layer {layer:?} does not fit the model; this is a bug")]
    Launch {
        /// Which op group.
        group: Group,
        /// Which layer.
        layer: Option<u32>,
    },
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
    /// A bug of ours.
    Bug = 70,
}

impl RuntimeError {
    /// Whose problem it is.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Bundle {
                source: heg_artifacts::Error::Io { source, .. },
                ..
            } if source.kind() == std::io::ErrorKind::NotFound => ExitStatus::Input,
            Self::Bundle {
                source: heg_artifacts::Error::Io { .. },
                ..
            }
            | Self::OpenVino { .. }
            | Self::Reserve { .. } => ExitStatus::Environment,
            Self::Bundle { .. }
            | Self::Section(_)
            | Self::Annotations(_)
            | Self::NoDevice { .. }
            | Self::NoVariant { .. }
            | Self::MixedActivations { .. }
            | Self::Reference { .. } => ExitStatus::Incompatible,
            Self::Spec(_)
            | Self::Context { .. }
            | Self::EmptyPrompt
            | Self::Token { .. }
            | Self::Batch { .. }
            | Self::NoText { .. }
            | Self::Text(_) => ExitStatus::Input,
            Self::LoaderGone | Self::Launch { .. } => ExitStatus::Bug,
        }
    }
}

/// Says what was being done when OpenVINO failed.
pub(crate) fn openvino(
    doing: impl Into<String>,
) -> impl FnOnce(heg_openvino::Error) -> RuntimeError {
    let doing = doing.into();
    move |source| RuntimeError::OpenVino { doing, source }
}
