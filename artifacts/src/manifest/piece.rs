//! Pieces of products: rows of one matrix over a fixed number of tokens, compiled for an NPU that shares products with
//! another device (HeteroLLM §4.1).
//!
//! A piece takes its rows as inputs, so one serves every layer, any run of as many rows, and every matrix of its form. It
//! computes `x · Wᵀ` alone: biases, residuals and activations are added by the program whose product is shared.

use serde::{Deserialize, Serialize};

use super::{Blob, ElementType, Parameter};
use heg_spec::GroupColumns;

/// The form of a matrix's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowsForm {
    /// Element type of the values.
    pub element: ElementType,
    /// Elements of a row.
    pub columns: u32,
    /// Neighbouring columns that share a scale: see [`Weight::group_columns`](super::Weight::group_columns).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_columns: Option<GroupColumns>,
    /// Whether its integers have centres.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub centred: bool,
}

/// A run of rows over a number of tokens, with a blob for each platform. Its ports are `x[tokens, columns]`, the rows'
/// values, scales and centres as kernels take them, and `y[tokens, rows]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowsPiece {
    /// Form of the rows.
    pub form: RowsForm,
    /// Number of rows: outputs of the product.
    pub rows: u32,
    /// Number of tokens; fewer are padded.
    pub tokens: u32,
    /// Element type of x and y.
    pub activations: ElementType,
    /// The piece compiled ahead of time, at most once per platform.
    pub blobs: Vec<Blob>,
}

/// Most pieces of a bundle. Chosen: five products of a few matrices, cut in a dozen ways at a dozen sizes.
pub const PIECES_MAX: usize = 4096;

/// Most tokens of a piece. Chosen: more than any chunk.
pub const PIECE_TOKENS_MAX: u32 = 1 << 16;

impl RowsForm {
    /// The form of a parameter's rows; `None` if it is no matrix.
    pub fn of(parameter: &Parameter) -> Option<Self> {
        let [_, columns] = parameter.shape[..] else {
            return None;
        };
        Some(Self {
            element: parameter.element,
            columns,
            group_columns: parameter.group_columns,
            centred: parameter.centred,
        })
    }
}

impl RowsPiece {
    /// Its rows as a parameter of a kernel.
    pub fn parameter(&self) -> Parameter {
        Parameter {
            name: "rows".to_owned(),
            element: self.form.element,
            shape: vec![self.rows, self.form.columns],
            group_columns: self.form.group_columns,
            centred: self.form.centred,
        }
    }

    /// The order of pieces in a manifest.
    pub const fn place(&self) -> (RowsForm, u32, u32) {
        (self.form, self.rows, self.tokens)
    }
}
