//! CPU programs: the computation of a kernel as a flat list of steps over numbered buffers.
//!
//! A program is a section of its own, RON like the manifest. It names no family, no layer and no instruction set: all
//! places of a kernel share it, each with its own weights, and `heg-cpu` runs it with the available instructions. It
//! includes the memory plan: every buffer between steps has its place in the lane's scratch memory, and buffers that
//! are not in use at the same time share a place.
//!
//! [`Program::read`] checks everything that running relies on: buffers have the widths that steps need, nothing is read
//! before it is written, and no two buffers in use overlap.

mod check;
mod document;
mod flow;
mod phase;
mod text;

use heg_spec::Sight;
use serde::{Deserialize, Serialize};

pub use phase::StepPhase;

pub use text::ProgramText;

/// The computation of a kernel for the rows of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Rows that steps read and write.
    pub buffers: Vec<Buffer>,
    /// Steps, in order.
    pub steps: Vec<Step>,
}

/// Rows of one width, one for each token of the call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Name of the operator whose output it holds.
    pub name: String,
    /// Elements of a row.
    pub width: u32,
    /// Form of its rows.
    pub form: RowForm,
    /// Location of the rows.
    pub place: BufferPlace,
}

/// Form of a buffer's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowForm {
    /// Elements in f32; at a port, in the port's element type.
    Plain,
    /// The form that products read: rounded to integers if both the weights and the device's activations are, else f32.
    Operand,
}

/// The location of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BufferPlace {
    /// An input port of the kernel, by index.
    Input(u32),
    /// An output port of the kernel, by index.
    Output(u32),
    /// Scratch memory: a call of c rows has the f32 elements from `first · c` on, [`scratch_width`] of them for each
    /// row. A multiple of [`SCRATCH_STEP`].
    Scratch {
        /// First element of the scratch memory of a call of one row.
        first: u32,
    },
}

/// Widths and places in scratch memory are multiples of this many f32 elements. Chosen: four cache lines, within which
/// a row of at least one element fits in every form of operands.
pub const SCRATCH_STEP: u32 = 64;

/// The f32 elements of scratch memory that a row of `width` elements takes, whatever its form; `u32::MAX`, which no
/// checked program needs, if they cannot be counted.
pub const fn scratch_width(width: u32) -> u32 {
    match width.checked_next_multiple_of(SCRATCH_STEP) {
        Some(elements) => elements,
        None => u32::MAX,
    }
}

/// Index into [`Program::buffers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufferId(pub u32);

/// Index into [`Kernel::parameters`](crate::manifest::Kernel::parameters).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ParameterId(pub u32);

/// One step. All steps but products and attention work on each row by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Step {
    /// `x / rms(x) · (offset + w)` over each of `groups` equal parts of the row.
    RmsNorm {
        /// Rows to norm.
        x: BufferId,
        /// Weight of shape `[width / groups]`.
        weight: ParameterId,
        /// Added to the mean square.
        eps: f32,
        /// Added to the weight.
        offset: f32,
        /// Parts of the row that are normed apart.
        groups: u32,
        /// Normed rows.
        out: BufferId,
    },
    /// `(x − mean) / deviation · w + b`.
    LayerNorm {
        /// Rows to norm.
        x: BufferId,
        /// Weight of shape `[width]`.
        weight: ParameterId,
        /// Bias of shape `[width]`.
        bias: Option<ParameterId>,
        /// Added to the variance.
        eps: f32,
        /// Normed rows.
        out: BufferId,
    },
    /// Copies rows to a buffer of another form: rounds rows to operands, or stores rows at a port.
    Copy {
        /// Rows to copy.
        x: BufferId,
        /// The copy.
        out: BufferId,
    },
    /// Products of the same rows with several matrices.
    Product {
        /// Operands.
        x: BufferId,
        /// The matrices.
        parts: Vec<Part>,
    },
    /// Rotate-half position embedding of the first `rotated` dimensions of each head, by the kernel's rotary inputs.
    Rope {
        /// Rows to rotate.
        x: BufferId,
        /// Heads in the row.
        heads: u32,
        /// Number of rotated dimensions; even.
        rotated: u32,
        /// Rotated rows.
        out: BufferId,
    },
    /// Attention of the kernel's queries over its keys and values.
    Attention {
        /// Its attributes.
        attributes: Attention,
        /// One row of all heads for each query row.
        out: BufferId,
    },
    /// `activation(x)`.
    Activated {
        /// Rows to which the activation is applied.
        x: BufferId,
        /// The activation.
        activation: Activation,
        /// Activated rows.
        out: BufferId,
    },
    /// `activation(gate) · up`.
    Gated {
        /// Rows to which the activation is applied.
        gate: BufferId,
        /// Rows to be gated.
        up: BufferId,
        /// The activation.
        activation: Activation,
        /// Gated rows.
        out: BufferId,
    },
    /// `a + b_scale · b`.
    Add {
        /// First term.
        a: BufferId,
        /// Second term.
        b: BufferId,
        /// Factor on the second term.
        b_scale: f32,
        /// The sum.
        out: BufferId,
    },
    /// `factor · x`.
    Scale {
        /// Rows to scale.
        x: BufferId,
        /// Factor.
        factor: f32,
        /// Scaled rows.
        out: BufferId,
    },
    /// `cap · tanh(x / cap)`.
    SoftCap {
        /// Rows to cap.
        x: BufferId,
        /// Cap.
        cap: f32,
        /// Capped rows.
        out: BufferId,
    },
}

impl Step {
    /// Buffers that the step reads, in the order of its fields.
    pub fn reads(&self) -> Vec<BufferId> {
        match self {
            Self::RmsNorm { x, .. }
            | Self::LayerNorm { x, .. }
            | Self::Copy { x, .. }
            | Self::Rope { x, .. }
            | Self::Activated { x, .. }
            | Self::Scale { x, .. }
            | Self::SoftCap { x, .. } => vec![*x],
            Self::Product { x, parts } => {
                let residuals = parts.iter().filter_map(|part| part.residual);
                std::iter::once(*x)
                    .chain(residuals.map(|residual| residual.to))
                    .collect()
            }
            Self::Attention { .. } => Vec::new(),
            Self::Gated { gate, up, .. } => vec![*gate, *up],
            Self::Add { a, b, .. } => vec![*a, *b],
        }
    }

    /// Buffers that the step writes: one, except for products.
    pub fn writes(&self) -> Vec<BufferId> {
        match self {
            Self::RmsNorm { out, .. }
            | Self::LayerNorm { out, .. }
            | Self::Copy { out, .. }
            | Self::Rope { out, .. }
            | Self::Attention { out, .. }
            | Self::Activated { out, .. }
            | Self::Gated { out, .. }
            | Self::Add { out, .. }
            | Self::Scale { out, .. }
            | Self::SoftCap { out, .. } => vec![*out],
            Self::Product { parts, .. } => parts.iter().map(|part| part.out).collect(),
        }
    }

    /// Whether the step can write its rows as operands of products.
    pub fn gives_operands(&self) -> bool {
        matches!(
            self,
            Self::RmsNorm { .. }
                | Self::LayerNorm { .. }
                | Self::Copy { .. }
                | Self::Activated { .. }
                | Self::Gated { .. }
        )
    }

    /// Whether the step can store its rows as keys or values of the KV cache, which have an element type of their own.
    pub fn gives_cache_rows(&self) -> bool {
        matches!(
            self,
            Self::RmsNorm { .. } | Self::Copy { .. } | Self::Rope { .. }
        )
    }
}

/// A matrix of a product, `y = x · Wᵀ + b`, and the destination of y.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Matrix of shape `[out width, x width]`.
    pub weight: ParameterId,
    /// Bias of shape `[out width]`.
    pub bias: Option<ParameterId>,
    /// The residual, if any, to which y is added: `residual + factor · y`.
    pub residual: Option<Residual>,
    /// Rows that receive the result.
    pub out: BufferId,
}

/// A term to which the result of a product is added.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residual {
    /// The term.
    pub to: BufferId,
    /// Factor on the product.
    pub factor: f32,
}

/// Attributes of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads H, a multiple of `kv_heads`.
    pub heads: u32,
    /// Key/value heads K.
    pub kv_heads: u32,
    /// Head dimension d.
    pub head_dim: u32,
    /// Factor on q·k.
    pub scale: f32,
    /// Sliding window in tokens, the current one included.
    pub window: Option<u32>,
    /// Soft cap on the scores.
    pub softcap: Option<f32>,
    /// The tokens that a token sees; all of them only without a window.
    #[serde(default, skip_serializing_if = "Sight::is_causal")]
    pub sight: Sight,
}

/// Activations of feed-forward blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// Exact GELU.
    Gelu,
    /// GELU in its tanh approximation.
    GeluTanh,
}
