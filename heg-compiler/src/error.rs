//! What can go wrong between a model folder and a bundle.

use std::path::PathBuf;

use heg_spec::SpecError;
use heg_spec::expr::EvalError;
use thiserror::Error;

use crate::ingest::IngestError;
use crate::npu::NpuError;
use crate::quant::QuantError;
use crate::verify::Invariant;

/// Why a compile failed. Nothing of a failed compile is left at the output's place.
#[derive(Debug, Error)]
pub enum CompileError {
    /// A spec file is wrong, or names something that does not exist.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The model folder is incomplete or damaged.
    #[error(transparent)]
    Ingest(#[from] IngestError),
    /// A weight cannot be encoded.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// The store or the bundle cannot be written.
    #[error(transparent)]
    Artifacts(#[from] heg_artifacts::Error),
    /// A file beside the store cannot be written, or is not such that it can be used.
    #[error(transparent)]
    Files(#[from] heg_files::FileError),
    /// A blob for an NPU cannot be made.
    #[error(transparent)]
    Npu(#[from] NpuError),
    /// A blob for an NPU is not what blobs are known to be.
    #[error("the blob of `{name}` cannot be read")]
    Blob {
        /// Kernel, shape and platform.
        name: String,
        /// Cause.
        source: heg_profiler::vendor::BlobError,
    },
    /// The speed of a variant cannot be stated.
    #[error(transparent)]
    Annotation(#[from] heg_profiler::annotation::AnnotationError),
    /// `config.json` has no `model_type`, and no model file names an architecture.
    #[error("`{path}` has no `model_type`, expected the name of a model family", path = path.display())]
    NoModelType {
        /// The config.
        path: PathBuf,
    },
    /// An expression of the architecture has no value.
    #[error("architecture `{architecture}`: `{expression}`")]
    Expression {
        /// Architecture file.
        architecture: String,
        /// The expression.
        expression: String,
        /// Cause.
        source: EvalError,
    },
    /// An expression has a value that its place cannot take.
    #[error("architecture `{architecture}`: `{expression}` gives {found}, expected {expected}")]
    Value {
        /// Architecture file.
        architecture: String,
        /// The expression.
        expression: String,
        /// What the place takes.
        expected: &'static str,
        /// What the config gave.
        found: String,
    },
    /// A dimension is absurd or does not fit the others.
    #[error("dimension `{name}` is {found}, expected {expected}")]
    Dimension {
        /// Which dimension.
        name: &'static str,
        /// What would fit.
        expected: String,
        /// What the config gave.
        found: String,
    },
    /// An operator reads something that is not there.
    #[error("architecture `{architecture}`: operator `{operator}` refers to unknown `{wire}`")]
    Wire {
        /// Architecture file.
        architecture: String,
        /// The operator.
        operator: String,
        /// What it refers to.
        wire: String,
    },
    /// Widths that do not meet.
    #[error(
        "architecture `{architecture}`: operator `{operator}` needs rows of {expected}, found {found}"
    )]
    Width {
        /// Architecture file.
        architecture: String,
        /// The operator.
        operator: String,
        /// Width it needs.
        expected: u32,
        /// Width it was given.
        found: u32,
    },
    /// A fusion plan that does not fit the graph.
    #[error("fusion: `{operator}`: {message}")]
    Fusion {
        /// The operator or anchor.
        operator: String,
        /// What is wrong with it.
        message: &'static str,
    },
    /// A pass broke an invariant that the next one relies on.
    #[error(transparent)]
    Invariant(#[from] Invariant),
    /// A rotary scaling that is unknown or incomplete.
    #[error("rotary scaling `{key}`: expected {expected}, found {found}")]
    RopeScaling {
        /// Config key.
        key: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// More context was asked for than the model has, or none.
    #[error("context of {asked} tokens, expected 1 to the model's {limit}")]
    Context {
        /// Tokens asked for.
        asked: u32,
        /// The model's limit.
        limit: u32,
    },
    /// The worker threads could not be started.
    #[error("cannot start {threads} worker threads")]
    Threads {
        /// How many.
        threads: usize,
        /// Cause.
        source: rayon::ThreadPoolBuildError,
    },
    /// A file beside the store could not be read or written.
    #[error("cannot {action} `{path}`", path = path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}
