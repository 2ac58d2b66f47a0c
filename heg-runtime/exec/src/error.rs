//! Errors of running kernels, and the exit status of each.

use std::path::PathBuf;

use heg_files::FileError;
use heg_spec::{Bug, DeviceClass, Group};
use thiserror::Error;

/// The reason why kernels could not be prepared or run.
#[derive(Debug, Error)]
pub enum ExecError {
    /// A section is damaged; found on its first use.
    #[error("the bundle is damaged")]
    Section(#[source] heg_artifacts::Error),
    /// The bundle's file was written to or truncated while it was in use.
    #[error("the bundle changed while it was in use")]
    BundleChanged(#[source] heg_artifacts::Error),
    /// A policy has two devices run every kernel together, and the machine cannot do that.
    #[error(
        "the policy has NPU and iGPU run every kernel together, and machine `{soc}` has no CPU programs for both roles: \
         choose another policy, or a machine such as `host-pair`"
    )]
    Pair {
        /// Name of the machine.
        soc: String,
    },
    /// The bundle's partitions of products between two devices are malformed, or of another model.
    #[error("the bundle says wrongly how two devices share its products")]
    Partition(#[source] heg_profiler::partition::PartitionError),
    /// OpenVINO is missing or refused an operation.
    #[error("OpenVINO: {doing}")]
    OpenVino {
        /// The operation that failed.
        doing: String,
        /// The cause.
        source: heg_openvino::OpenvinoError,
    },
    /// The SoC has no device for a kernel.
    #[error(
        "SoC `{soc}` has no device for `{group:?}` kernels, expected one of class {expected:?}"
    )]
    NoDevice {
        /// Name of the SoC.
        soc: String,
        /// The op group.
        group: Group,
        /// Device classes that are accepted.
        expected: Vec<DeviceClass>,
    },
    /// Every rung of a kernel's ladder was passed over.
    #[error("nothing is left to run kernel `{kernel}`: {reasons}")]
    NoRung {
        /// Name of the kernel.
        kernel: String,
        /// The reason why each rung was passed over.
        reasons: String,
    },
    /// A device refused a kernel.
    #[error("kernel `{kernel}` was refused: {message}")]
    Refused {
        /// Name of the kernel.
        kernel: String,
        /// The message of the device.
        message: String,
    },
    /// A CPU program cannot run.
    #[error("run the CPU program of kernel `{kernel}`")]
    Program {
        /// Name of the kernel.
        kernel: String,
        /// The cause.
        source: heg_cpu::CpuError,
    },
    /// A GPU cannot run a CPU program.
    #[error("run the CPU program of kernel `{kernel}` on the GPU")]
    Gpu {
        /// Name of the kernel.
        kernel: String,
        /// The cause.
        source: heg_gpu::GpuError,
    },
    /// A GPU could not be examined.
    #[error("examine the GPU: {message}")]
    Examination {
        /// The cause.
        message: String,
    },
    /// Bytes of the bundle differ from those that were verified.
    #[error("{part} has changed in memory since it was verified")]
    ChangedInMemory {
        /// The part of the bundle.
        part: String,
    },
    /// The cache folder, or a file in it, is not the user's own, or cannot be used.
    #[error("cannot use the cache folder `{path}`", path = path.display())]
    Cache {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: FileError,
    },
    /// An IR of the bundle has an invalid reference.
    #[error("IR of kernel `{kernel}` has `{found}`, expected {expected}")]
    Reference {
        /// Name of the kernel.
        kernel: String,
        /// The text that was found, shortened.
        found: String,
        /// The accepted form of the text.
        expected: String,
    },
    /// The IR of static attention cannot be narrowed to fewer rows of context.
    #[error(
        "IR of kernel `{kernel}` cannot be narrowed to {to} rows of context: its {from} rows are in {found} places, \
         expected 3"
    )]
    Narrow {
        /// Name of the kernel.
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
    /// A batch is larger than the executor has rows for.
    #[error("a batch of {asked} rows, expected at most {rows}")]
    Batch {
        /// Rows asked for.
        asked: usize,
        /// Rows of the executor.
        rows: usize,
    },
    /// There is no address range for a KV cache.
    #[error("cannot reserve {bytes} bytes of address space")]
    Reserve {
        /// Bytes of the range.
        bytes: usize,
        /// The cause.
        source: std::io::Error,
    },
    /// A profile is damaged, or of another bundle or device.
    #[error("cannot use profile `{path}`", path = path.display())]
    Profile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: heg_profiler::measure::ProfileError,
    },
    /// Measured latencies of parts of products that none are.
    #[error("cannot use what was measured of products on two devices")]
    PieceTable(#[from] heg_profiler::predict::TableError),
    /// A profile cannot be read or written.
    #[error("cannot read or write profile `{path}`", path = path.display())]
    ProfileFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: FileError,
    },
    /// A device does not answer any more: nothing that was made on it can run again.
    #[error("device `{device}` is lost: {why}")]
    DeviceLost {
        /// The back end's name of the device.
        device: String,
        /// Verdict on its earlier results.
        loss: Loss,
        /// The reason.
        why: String,
    },
    /// A device gave no result that a kernel can have.
    #[error("kernel `{kernel}` on `{device}` gave {found}, expected numbers")]
    NoResult {
        /// The back end's name of the device.
        device: String,
        /// Name of the kernel.
        kernel: String,
        /// The output, in words.
        found: &'static str,
    },
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
        /// The layer; `None` for the head.
        layer: Option<u32>,
    },
    /// A tree of drafted tokens reached attention that takes none: a bug of the caller.
    #[error(
        "a tree of drafted tokens needs attention that takes trees, found another form; this is a bug"
    )]
    Tree,
    /// An invariant that a check elsewhere keeps was broken.
    #[error(transparent)]
    Bug(#[from] Bug),
}

/// Verdict of a device's loss on its earlier results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Nothing: it failed, or fell silent.
    Failed,
    /// They may be wrong, since its last known answer was right.
    Wrong,
}

/// The exit status of a process that ends with an error.
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

impl ExecError {
    /// The message if a device refused an operation; `None` for errors of another kind.
    pub(crate) fn refusal(&self) -> Option<String> {
        match self {
            Self::OpenVino { doing, source } => Some(format!("{doing}: {}", last_line(source))),
            Self::Refused { message, .. } => Some(message.clone()),
            Self::Program { source, .. } => Some(source.to_string()),
            Self::Gpu { source, .. } => Some(chain(source)),
            Self::DeviceLost { .. } | Self::NoResult { .. } => Some(self.to_string()),
            _ => None,
        }
    }

    /// The loss of the device, if it is lost: nothing that was made on it can run again, and its lane ends.
    pub fn loss(&self) -> Option<Loss> {
        match self {
            Self::Gpu { source, .. } => source.is_loss().then_some(Loss::Failed),
            Self::DeviceLost { loss, .. } => Some(*loss),
            Self::Program {
                source: heg_cpu::CpuError::Partner(_),
                ..
            } => Some(Loss::Failed),
            _ => None,
        }
    }

    /// Exit status of a process that ends with this error.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Program {
                source: heg_cpu::CpuError::Bug(_),
                ..
            } => ExitStatus::Bug,
            Self::OpenVino { .. }
            | Self::Refused { .. }
            | Self::Program { .. }
            | Self::Gpu { .. }
            | Self::DeviceLost { .. }
            | Self::NoResult { .. }
            | Self::Examination { .. }
            | Self::ChangedInMemory { .. }
            | Self::Cache { .. }
            | Self::Reserve { .. }
            | Self::ProfileFile { .. } => ExitStatus::Environment,
            Self::Section(_)
            | Self::BundleChanged(_)
            | Self::Partition(_)
            | Self::NoDevice { .. }
            | Self::NoRung { .. }
            | Self::Reference { .. }
            | Self::Narrow { .. } => ExitStatus::Incompatible,
            Self::Context { .. }
            | Self::EmptyPrompt
            | Self::Token { .. }
            | Self::Batch { .. }
            | Self::Pair { .. }
            | Self::Profile { .. } => ExitStatus::Input,
            Self::LoaderGone
            | Self::Launch { .. }
            | Self::Tree
            | Self::Abandoned
            | Self::PieceTable(_)
            | Self::Bug(_) => ExitStatus::Bug,
        }
    }
}

/// Returns an error and its causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Adds the operation that failed to an error of OpenVINO.
pub(crate) fn openvino(
    doing: impl Into<String>,
) -> impl FnOnce(heg_openvino::OpenvinoError) -> ExecError {
    let doing = doing.into();
    move |source| ExecError::OpenVino { doing, source }
}

/// Returns the last line of OpenVINO's message that is not empty: the lines before it name places in its sources.
pub(crate) fn last_line(error: &heg_openvino::OpenvinoError) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim);
    let mut said = lines.filter(|line| !line.is_empty() && !line.starts_with("Exception from"));
    said.next_back().unwrap_or("no reason given").to_owned()
}
