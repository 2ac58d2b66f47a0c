//! Errors of a compile, from the model folder to the bundle.

use std::path::PathBuf;

use heg_spec::expr::EvalError;
use heg_spec::{SpecError, WeightForm};
use thiserror::Error;

use crate::npu::NpuError;
use crate::verify::BrokenInvariant;
use heg_ingest::IngestError;
use heg_quant::QuantError;

/// Reasons why a compile failed. Nothing of a failed compile is left at the output's path.
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
    /// A file beside the store cannot be written or trusted.
    #[error(transparent)]
    Files(#[from] heg_files::FileError),
    /// A blob for an NPU cannot be made.
    #[error(transparent)]
    Npu(#[from] NpuError),
    /// A blob for an NPU has an unknown format.
    #[error("the blob of `{name}` cannot be read")]
    Blob {
        /// Kernel, shape and platform.
        name: String,
        /// Cause.
        source: heg_profiler::vendor::BlobError,
    },
    /// The speed of a variant cannot be given.
    #[error(transparent)]
    Annotation(#[from] heg_profiler::annotation::AnnotationError),
    /// Two devices of a machine cannot share the products of the model.
    #[error(transparent)]
    Partition(#[from] heg_profiler::partition::PartitionError),
    /// `config.json` has no `model_type`, and no model file names an architecture.
    #[error("`{path}` has no `model_type`, expected the name of a model family", path = path.display())]
    NoModelType {
        /// The config.
        path: PathBuf,
    },
    /// Keys and values of 8 bits are asked for beside weights that are floats.
    #[error(
        "`kv` is `I8` beside {weights} weights, expected W8A16 or W4A16: choose such weights, or leave `kv` out"
    )]
    Kv {
        /// Form of the weights.
        weights: WeightForm,
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
    /// An expression has a value of the wrong type or range.
    #[error("architecture `{architecture}`: `{expression}` gives {found}, expected {expected}")]
    Value {
        /// Architecture file.
        architecture: String,
        /// The expression.
        expression: String,
        /// The accepted values.
        expected: &'static str,
        /// The value from the config.
        found: String,
    },
    /// A dimension is out of range or contradicts the others.
    #[error("dimension `{name}` is {found}, expected {expected}")]
    Dimension {
        /// Name of the dimension.
        name: &'static str,
        /// The accepted values.
        expected: String,
        /// The value from the config.
        found: String,
    },
    /// An operator refers to an unknown wire or table.
    #[error("architecture `{architecture}`: operator `{operator}` refers to unknown `{wire}`")]
    Wire {
        /// Architecture file.
        architecture: String,
        /// The operator.
        operator: String,
        /// The name that it refers to.
        wire: String,
    },
    /// Two widths differ.
    #[error(
        "architecture `{architecture}`: operator `{operator}` needs rows of {expected}, found {found}"
    )]
    Width {
        /// Architecture file.
        architecture: String,
        /// The operator.
        operator: String,
        /// Required width.
        expected: u32,
        /// Width of the operand.
        found: u32,
    },
    /// An attention over the whole text stands where tokens are given one after the other.
    #[error("architecture `{architecture}`: operator `{operator}` needs {expected}")]
    Sight {
        /// Architecture file.
        architecture: String,
        /// The operator.
        operator: String,
        /// The requirement.
        expected: &'static str,
    },
    /// The model gives vectors, and no file says how they are pooled.
    #[error(
        "architecture `{architecture}` gives vectors, expected `modules.json` in the model's folder with a `Pooling` \
         module, as sentence-transformers writes it, found none"
    )]
    NoPooling {
        /// Architecture file.
        architecture: String,
    },
    /// The model's folder says how vectors are pooled, and its architecture has none.
    #[error(
        "the model's folder has `modules.json` with a `Pooling` module, and the head of architecture `{architecture}` is a \
         projection alone, expected a norm before it"
    )]
    NoVectors {
        /// Architecture file.
        architecture: String,
    },
    /// The fusion plan does not fit the graph.
    #[error("fusion: `{operator}`: {message}")]
    Fusion {
        /// The operator or anchor in question.
        operator: String,
        /// The mistake.
        message: &'static str,
    },
    /// A pass broke an invariant that the next one relies on.
    #[error(transparent)]
    BrokenInvariant(#[from] BrokenInvariant),
    /// A rotary scaling that is unknown or incomplete.
    #[error("rotary scaling `{key}`: expected {expected}, found {found}")]
    RopeScaling {
        /// Config key.
        key: String,
        /// The accepted values.
        expected: String,
        /// The value from the config.
        found: String,
    },
    /// The requested context is longer than the model's, or too short for a prompt and its answer.
    #[error("context of {asked} tokens, expected at least 2, and at most the model's {limit}")]
    Context {
        /// The requested tokens, or the model's if none were requested.
        asked: u32,
        /// The model's limit.
        limit: u32,
    },
    /// There is nothing about which to ask the NPU's compiler.
    #[error("nothing to ask the NPU's compiler about: expected {expected}, found none")]
    NothingToAsk {
        /// The required input.
        expected: &'static str,
    },
    /// A file beside the store could not be read or written.
    #[error("cannot {action} `{path}`", path = path.display())]
    Io {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}
