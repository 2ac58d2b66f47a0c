//! The operators of the graph, with every number resolved for one layer.
//!
//! The set is closed: fusion, lowering and cost match on it exhaustively.

use heg_artifacts::manifest::Rows;
pub use heg_artifacts::program::{Activation, Attention};

/// An operator and its output rows.
#[derive(Debug, Clone, PartialEq)]
pub struct OpNode {
    /// Name of its output in the architecture file.
    pub name: String,
    /// The operator.
    pub op: Op,
    /// Number of output rows.
    pub rows: Rows,
    /// Elements per output row.
    pub width: u32,
}

/// A resolved operator.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// The residual stream entering this graph.
    Input,
    /// `x / rms(x) · (offset + w)` over each of `groups` equal parts of the row.
    RmsNorm {
        /// Weight of shape `[width / groups]`.
        weight: Param,
        /// Added to the mean square.
        eps: f32,
        /// Added to the weight.
        offset: f32,
        /// Parts of the row that are normed apart.
        groups: u32,
    },
    /// `(x − mean) / deviation · w + b`.
    LayerNorm {
        /// Weight of shape `[width]`.
        weight: Param,
        /// Bias of shape `[width]`.
        bias: Option<Param>,
        /// Added to the variance.
        eps: f32,
    },
    /// `x · Wᵀ + b`.
    Linear {
        /// Weight of shape `[out, in]`.
        weight: Param,
        /// Bias of shape `[out]`.
        bias: Option<Param>,
    },
    /// Rotate-half position embedding of the first `rotated` dimensions of each head.
    Rope {
        /// Heads in the row.
        heads: u32,
        /// Dimensions rotated; even.
        rotated: u32,
        /// Name of the rotary table.
        table: String,
    },
    /// Attention.
    Attention(Attention),
    /// `activation(x)`.
    Activated(Activation),
    /// `activation(gate) · up`.
    Gated(Activation),
    /// `a + b_scale · b`.
    Add {
        /// Factor on the second term.
        b_scale: f32,
    },
    /// `factor · x`.
    Scale {
        /// Factor.
        factor: f32,
    },
    /// `cap · tanh(x / cap)`.
    SoftCap {
        /// Cap.
        cap: f32,
    },
}

/// A weight of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Name within the kernel: the operator's output and the weight's role, e.g. `q.weight`.
    pub slot: String,
    /// Its place in the checkpoint.
    pub source: WeightSource,
    /// Its role in the operator.
    pub kind: ParamKind,
    /// Row-major shape.
    pub shape: Vec<u32>,
}

/// A weight's role in its operator: decides how it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ParamKind {
    /// A linear operator's matrix: stored in the model's weight form.
    Matrix,
    /// A matrix with a row for each token of the vocabulary, that of the embedding or the head: stored as matrices are,
    /// but int8 rows are centred.
    Table,
    /// A norm's weight, a bias, or rows that are added to embeddings: always f32.
    Vector,
}

/// A tensor of the checkpoint, or a run of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightSource {
    /// Hugging Face name.
    pub name: String,
    /// First row, if several operators share the tensor.
    pub first_row: Option<u32>,
}

impl Op {
    /// Weights in the order in which a kernel takes them.
    pub fn params(&self) -> Vec<&Param> {
        match self {
            Self::RmsNorm { weight, .. } => vec![weight],
            Self::LayerNorm { weight, bias, .. } | Self::Linear { weight, bias } => {
                std::iter::once(weight).chain(bias).collect()
            }
            Self::Input
            | Self::Rope { .. }
            | Self::Attention(_)
            | Self::Activated(_)
            | Self::Gated(_)
            | Self::Add { .. }
            | Self::Scale { .. }
            | Self::SoftCap { .. } => Vec::new(),
        }
    }

    /// Name of the operator, for dumps.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::RmsNorm { .. } => "rms_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Linear { .. } => "linear",
            Self::Rope { .. } => "rope",
            Self::Attention(_) => "attention",
            Self::Activated(_) => "activated",
            Self::Gated(_) => "gated",
            Self::Add { .. } => "add",
            Self::Scale { .. } => "scale",
            Self::SoftCap { .. } => "soft_cap",
        }
    }
}
