//! Architecture files: one model family as operators with symbolic dimensions.
//!
//! An architecture says how the config's keys become dimensions, which operators a decoder layer and the head
//! consist of, and how each weight is called in the checkpoint. Operators are listed in execution order; each
//! names its output, and its inputs by earlier outputs. `x` is the layer's input, and the last operator's
//! output is the layer's output. A new family made of known operators needs a new file and no code.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::error::{SpecError, nearest};
use crate::expr::Expr;
use crate::source::{Problems, Source};
use crate::vocabulary::Sight;
use crate::weight_name::WeightName;

/// Name of the layer's input wire.
pub const LAYER_INPUT: &str = "x";

/// One model family.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Name, e.g. `llama`.
    pub name: String,
    /// Values of `model_type` in `config.json` that this file describes.
    pub model_types: Vec<String>,
    /// Names in the config's `architectures` to which it is limited; empty for the file that describes all others.
    #[serde(default)]
    pub classes: Vec<String>,
    /// Named values, for use in expressions. `hidden`, `layers`, `heads`, `kv_heads`, `head_dim`, `vocab` and `context`
    /// are required. `layer` is the index of the layer being described.
    pub values: BTreeMap<String, Expr>,
    /// The token embedding.
    pub embedding: EmbeddingSpec,
    /// Rotary tables by name.
    pub rope: BTreeMap<String, Rope>,
    /// A decoder layer, in execution order.
    pub layer: Vec<Operator>,
    /// The operators from the last layer's output (`x`) to the rows that the head gives.
    pub head: Vec<Operator>,
    /// The rows that the head gives.
    #[serde(default)]
    pub gives: HeadRows,
}

/// The rows that a head gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum HeadRows {
    /// Logits, as wide as the vocabulary, from which the next token is chosen.
    #[default]
    Logits,
    /// Vectors, as wide as the hidden state, which are pooled to one for each text.
    Vectors,
    /// One number for each row. That of a text's first token is its score.
    Scores,
}

/// Values that every architecture defines.
pub const REQUIRED_VALUES: [&str; 7] = [
    "hidden", "layers", "heads", "kv_heads", "head_dim", "vocab", "context",
];

/// The token embedding, shape [vocab, hidden].
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingSpec {
    /// Checkpoint name.
    pub weight: WeightName,
    /// Factor after the look-up.
    pub scale: Option<Expr>,
    /// Checkpoint name of the learned positions, shape [context, hidden]: the row of a token's position is added.
    pub positions: Option<WeightName>,
    /// The learned kinds of texts: the first row is added, and the second to the tokens of a pair's second text.
    pub token_types: Option<TokenTypes>,
}

/// A table with a row for each kind of text, shape [count, hidden].
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenTypes {
    /// Checkpoint name.
    pub weight: WeightName,
    /// Number of kinds.
    pub count: Expr,
}

/// A rotary table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: Expr,
    /// Rotated dimensions of each head; the rest pass through.
    pub dim: Expr,
    /// Config key that holds the scaling (`rope_type`, `factor`, …), if this table is scaled.
    pub scaling: Option<String>,
}

/// An operator with the name of its output.
#[derive(Debug, Clone, Deserialize)]
pub struct Operator(
    /// Output wire.
    pub String,
    /// The operator.
    pub Op,
);

/// Operators. Wires are [tokens, width] rows; the widths follow from the weights.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Op {
    /// `x / rms(x) · (offset + w)`, over the row or over each of `groups` equal parts of it.
    RmsNorm {
        /// Input wire.
        x: String,
        /// Weight name.
        weight: WeightName,
        /// Added to the mean square.
        eps: Expr,
        /// Added to the weight (Gemma: 1).
        offset: Option<Expr>,
        /// Parts of the row that are normed apart (heads, for q/k norm).
        groups: Option<Expr>,
    },
    /// `(x − mean) / deviation · w + b`.
    LayerNorm {
        /// Input wire.
        x: String,
        /// Weight name.
        weight: WeightName,
        /// Bias name.
        bias: Option<WeightName>,
        /// Added to the variance.
        eps: Expr,
    },
    /// `x · Wᵀ + b`, W of shape [out, in].
    Linear {
        /// Input wire.
        x: String,
        /// Weight name.
        weight: WeightName,
        /// Rows of W, the width of the output.
        out: Expr,
        /// First row, where the checkpoint fuses several projections in one tensor.
        first_row: Option<Expr>,
        /// Bias name.
        bias: Option<WeightName>,
        /// Whether the bias exists; absent means that it does.
        bias_when: Option<Expr>,
        /// Whether the embedding table stands in for the weight (tied head).
        tied_when: Option<Expr>,
    },
    /// Rotary position embedding of each head's first dimensions (rotate-half form).
    Rope {
        /// Input wire.
        x: String,
        /// Number of heads in the row.
        heads: Expr,
        /// Name of the table, as an expression that gives text.
        table: Expr,
        /// Whether this layer rotates at all; absent means that it does.
        when: Option<Expr>,
    },
    /// Attention over the KV cache.
    Attention {
        /// Queries [tokens, heads · head_dim].
        q: String,
        /// Keys [context, kv_heads · head_dim].
        k: String,
        /// Values [context, kv_heads · head_dim].
        v: String,
        /// Factor on q·k.
        scale: Expr,
        /// Sliding window in tokens, the current one included; absent means all tokens.
        window: Option<Expr>,
        /// `cap · tanh(score / cap)`; absent means no cap.
        softcap: Option<Expr>,
        /// The tokens that a token sees.
        #[serde(default)]
        sight: Sight,
    },
    /// `activation(x)`.
    Activated {
        /// Input wire.
        x: String,
        /// As in `Gated`.
        activation: Expr,
    },
    /// `activation(gate) · up`.
    Gated {
        /// Gate wire.
        gate: String,
        /// Up wire.
        up: String,
        /// `'silu'`, `'gelu'` or `'gelu_pytorch_tanh'`, as an expression that gives text.
        activation: Expr,
    },
    /// `a + b_scale · b`.
    Add {
        /// First term, the residual.
        a: String,
        /// Second term.
        b: String,
        /// Factor on the second term.
        b_scale: Option<Expr>,
    },
    /// `factor · x`.
    Scale {
        /// Input wire.
        x: String,
        /// Factor; absent means 1.
        factor: Expr,
    },
    /// `cap · tanh(x / cap)`.
    SoftCap {
        /// Input wire.
        x: String,
        /// Cap.
        cap: Expr,
    },
}

impl Op {
    /// Input wires, in order.
    pub fn inputs(&self) -> Vec<&str> {
        self.named_inputs()
            .into_iter()
            .map(|(_, wire)| wire)
            .collect()
    }

    /// Input wires with the fields that name them.
    fn named_inputs(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::RmsNorm { x, .. }
            | Self::LayerNorm { x, .. }
            | Self::Linear { x, .. }
            | Self::Rope { x, .. }
            | Self::Activated { x, .. }
            | Self::Scale { x, .. }
            | Self::SoftCap { x, .. } => vec![("x", x)],
            Self::Attention { q, k, v, .. } => vec![("q", q), ("k", k), ("v", v)],
            Self::Gated { gate, up, .. } => vec![("gate", gate), ("up", up)],
            Self::Add { a, b, .. } => vec![("a", a), ("b", b)],
        }
    }
}

impl Architecture {
    /// Parses and checks an architecture file; reports every problem of the file.
    pub fn parse(source: Source<'_>) -> Result<Self, SpecError> {
        let architecture: Self = source.parse()?;
        let mut problems = Problems::new(source);
        architecture.check_values(&mut problems);
        check_wires("layer", &architecture.layer, &mut problems);
        check_wires("head", &architecture.head, &mut problems);
        architecture.check_attention(&mut problems);
        problems.finish(architecture)
    }

    /// Returns the family as a model that gives vectors: the head of one that gives logits ends before its last
    /// projection, and one that gives scores stays. `None` if nothing of the head is left.
    pub fn giving_vectors(mut self) -> Option<Self> {
        if self.gives != HeadRows::Logits {
            return Some(self);
        }
        let is_projection = |operator: &Operator| matches!(operator.1, Op::Linear { .. });
        let projection = self.head.iter().rposition(is_projection)?;
        self.head.truncate(projection);
        self.gives = HeadRows::Vectors;
        (!self.head.is_empty()).then_some(self)
    }

    fn check_values(&self, problems: &mut Problems<'_>) {
        for required in REQUIRED_VALUES {
            if !self.values.contains_key(required) {
                let message = format!("`values` must define `{required}`");
                problems.push("values", message);
            }
        }
    }

    /// Checks that the layer has exactly one attention: the op groups are cut at its ends.
    fn check_attention(&self, problems: &mut Problems<'_>) {
        let count = |operators: &[Operator]| {
            let attention = |operator: &&Operator| matches!(operator.1, Op::Attention { .. });
            operators.iter().filter(attention).count()
        };
        let (in_layer, in_head) = (count(&self.layer), count(&self.head));
        if in_layer != 1 || in_head != 0 {
            let message = format!(
                "expected one `Attention` in `layer` and none in `head`, found {in_layer} and {in_head}"
            );
            let part = if in_layer != 1 { "layer" } else { "head" };
            problems.push(part, message);
        }
    }
}

/// Checks that every input is an earlier output, and every output new. `part` is `layer` or `head`, whose wires have
/// separate names.
fn check_wires(part: &str, operators: &[Operator], problems: &mut Problems<'_>) {
    let mut defined: BTreeSet<&str> = BTreeSet::from([LAYER_INPUT]);
    if operators.is_empty() {
        problems.push(part, format!("`{part}` must not be empty"));
    }
    for (index, Operator(output, op)) in operators.iter().enumerate() {
        for (field, input) in op.named_inputs() {
            if !defined.contains(input) {
                let hint = nearest(input, defined.iter().copied())
                    .map(|name| format!("; did you mean `{name}`?"))
                    .unwrap_or_default();
                let message =
                    format!("`{output}` reads `{input}`, which no earlier operator defines{hint}");
                problems.push(&format!("{part}.{index}.1.{field}"), message);
            }
        }
        if !defined.insert(output) {
            let message = format!("`{output}` is defined twice");
            problems.push(&format!("{part}.{index}.0"), message);
        }
    }
}
