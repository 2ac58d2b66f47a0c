//! Kernels: ports, parameters, and the work of one call.

use heg_spec::{Group, GroupColumns};
use serde::{Deserialize, Serialize};

use super::{ElementType, Variant};

/// An op group: the unit of mapping, preemption and annotation (Agent.xpu §4.2).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Unique name, e.g. `qkv` or `qkv.1` where layers differ.
    pub name: String,
    /// The part of a layer that it computes.
    pub group: Group,
    /// Operators that it was fused from, in order.
    pub ops: Vec<String>,
    /// Activation inputs, in port order. The weight inputs of [`Binding::Input`](super::Binding::Input) variants follow
    /// them.
    pub inputs: Vec<Port>,
    /// Outputs, in port order.
    pub outputs: Vec<Port>,
    /// Its weights, in order: the shape of every [`KernelUse::weights`](super::KernelUse::weights).
    pub parameters: Vec<Parameter>,
    /// Work of one call.
    pub work: Work,
    /// Realisations, from which the runtime binds one per device.
    pub variants: Vec<Variant>,
}

/// One activation tensor at a kernel's boundary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Tensor that the runtime binds here.
    pub role: Role,
    /// Number of rows.
    pub rows: Rows,
    /// Elements per row.
    pub width: u32,
}

/// Roles of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Residual stream x[c, D].
    Hidden,
    /// Rotary cosines of the tokens' positions.
    Cos,
    /// Rotary sines of the tokens' positions.
    Sin,
    /// Queries q[c, H·d].
    Query,
    /// Keys k[·, K·d]: new rows as an output, the cache as an input.
    Key,
    /// Values v[·, K·d]: new rows as an output, the cache as an input.
    Value,
    /// Position of the first token, `i64[1]`.
    Position,
    /// Attention output a[c, H·d].
    Attended,
    /// Logits[b, V].
    Logits,
    /// Vectors[b, D] of a text's tokens, from which its vector is pooled; scores[b, 1] of a model that gives scores.
    Vector,
}

/// Number of rows of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Rows {
    /// c, the tokens of this call (b for the head).
    Tokens,
    /// n, the tokens visible in the KV cache.
    Context,
    /// Exactly one.
    One,
}

/// One weight of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Name within the kernel, e.g. `q_proj`.
    pub name: String,
    /// Element type of the values.
    pub element: ElementType,
    /// Row-major shape.
    pub shape: Vec<u32>,
    /// Neighbouring columns that share a scale: see [`Weight::group_columns`](super::Weight::group_columns).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_columns: Option<GroupColumns>,
    /// Whether its integers have centres, see [`Weight::centres`](super::Weight::centres).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub centred: bool,
}

impl Parameter {
    /// Bytes of a weight, with its scales and centres; `u64::MAX` if they cannot be counted.
    pub fn bytes(&self) -> u64 {
        let sizes = self.shape.iter().map(|size| u64::from(*size));
        let elements = sizes.fold(1, u64::saturating_mul);
        let values = self.element.bytes_of(elements).unwrap_or(u64::MAX);
        let kinds = if self.centred { 2 } else { 1 };
        values.saturating_add(self.affine_bytes().saturating_mul(kinds))
    }

    /// Bytes of its scales, and of its centres if it has any; `u64::MAX` if they cannot be counted.
    pub fn affine_bytes(&self) -> u64 {
        let rows = u64::from(self.shape.first().copied().unwrap_or(0));
        let numbers = match (self.element, self.group_columns) {
            (ElementType::I8, _) => ElementType::F32.bytes_of(rows),
            (ElementType::I4 | ElementType::U4, Some(group)) => {
                let columns = self.shape.last().copied().unwrap_or(0);
                let groups = columns.checked_div(group.count()).unwrap_or(0);
                let groups = rows.checked_mul(u64::from(groups));
                groups.and_then(|groups| ElementType::F16.bytes_of(groups))
            }
            _ => Some(0),
        };
        numbers.unwrap_or(u64::MAX)
    }
}

/// Work of one call, as polynomials over c (tokens) and n (visible context).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// Floating-point operations (a multiply-add counts two).
    pub flops: Vec<Term>,
    /// Bytes read and written: weights once, activations at the kernel's boundary.
    pub bytes: Vec<Term>,
}

/// `factor · c^tokens · n^context`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// Coefficient.
    pub factor: u64,
    /// Exponent of c.
    pub tokens: u8,
    /// Exponent of n.
    pub context: u8,
}

impl Work {
    /// Floating-point operations of a call with `tokens` new tokens and `context` visible ones.
    pub fn flops(&self, tokens: u64, context: u64) -> f64 {
        evaluate(&self.flops, tokens, context)
    }

    /// Bytes moved by a call with `tokens` new tokens and `context` visible ones.
    pub fn bytes(&self, tokens: u64, context: u64) -> f64 {
        evaluate(&self.bytes, tokens, context)
    }
}

fn evaluate(terms: &[Term], tokens: u64, context: u64) -> f64 {
    terms
        .iter()
        .map(|term| {
            term.factor as f64
                * (tokens as f64).powi(i32::from(term.tokens))
                * (context as f64).powi(i32::from(term.context))
        })
        .sum()
}
