//! Why a tensor cannot be encoded.
//!
//! All causes but `Write` lie in the numbers of a source tensor or in a caller's buffers. Rows are
//! counted from the start of the stored tensor, also for a view of some of its rows.

use thiserror::Error;

/// A tensor that cannot be encoded, and why.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum QuantError {
    /// NaN or infinity among the weights.
    #[error("tensor `{tensor}` holds NaN or infinity in row {row}")]
    NotFinite { tensor: String, row: usize },
    /// A weight that the target form cannot hold.
    #[error(
        "tensor `{tensor}` holds a number in row {row} that is too large for F16: at most 65504 fits"
    )]
    Overflow { tensor: String, row: usize },
    /// No weights at all.
    #[error("tensor `{tensor}` of shape {shape:?} is empty")]
    Empty { tensor: String, shape: Vec<usize> },
    /// Channel-wise int8 of something without channels.
    #[error(
        "tensor `{tensor}` of shape {shape:?} has no rows to scale, expected two dimensions or more"
    )]
    Rank { tensor: String, shape: Vec<usize> },
    /// Groups that do not divide the rows.
    #[error(
        "tensor `{tensor}` has rows of {columns} columns, which groups of {group} do not divide: \
         {advice}"
    )]
    Groups {
        tensor: String,
        columns: usize,
        group: usize,
        /// What would do.
        advice: String,
    },
    /// 4-bit blocks that would be rounded to other groups.
    #[error(
        "tensor `{tensor}` is {format} and would be rounded to 4 bits a second time: \
         its blocks are taken over as groups of 32, symmetric ones for Q4_0 alone"
    )]
    SecondRounding { tensor: String, format: String },
    /// A buffer of the wrong length, or none where one is needed.
    #[error("{buffer} for tensor `{tensor}`: found room for {found}, expected {expected}")]
    Room {
        tensor: String,
        buffer: &'static str,
        found: usize,
        expected: usize,
    },
    /// The sink refused.
    #[error("encoded tensor `{tensor}` cannot be written")]
    Write {
        tensor: String,
        #[source]
        source: std::io::Error,
    },
}
