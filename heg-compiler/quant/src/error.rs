//! Reasons why a tensor cannot be encoded.
//!
//! All causes but `Write` are in the numbers of a source tensor or in a caller's buffers. Rows are counted from the
//! start of the stored tensor, also for a view of some of its rows.

use thiserror::Error;

/// A tensor that cannot be encoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum QuantError {
    /// NaN or infinity among the weights.
    #[error("tensor `{tensor}` holds NaN or infinity in row {row}")]
    NotFinite {
        /// The tensor's name.
        tensor: String,
        /// Index of the row, from the start of the stored tensor.
        row: usize,
    },
    /// A weight that the target form cannot hold.
    #[error(
        "tensor `{tensor}` holds a number in row {row} that is too large for F16: at most 65504 fits"
    )]
    Overflow {
        /// The tensor's name.
        tensor: String,
        /// Index of the row, from the start of the stored tensor.
        row: usize,
    },
    /// There are no weights.
    #[error("tensor `{tensor}` of shape {shape:?} is empty")]
    Empty {
        /// The tensor's name.
        tensor: String,
        /// The tensor's shape: elements in each dimension.
        shape: Vec<usize>,
    },
    /// Channel-wise int8 for a tensor without channels.
    #[error(
        "tensor `{tensor}` of shape {shape:?} has no rows to scale, expected two dimensions or more"
    )]
    Rank {
        /// The tensor's name.
        tensor: String,
        /// The tensor's shape: elements in each dimension.
        shape: Vec<usize>,
    },
    /// Groups that do not divide the rows.
    #[error(
        "tensor `{tensor}` has rows of {columns} columns, which groups of {group} do not divide: \
         {advice}"
    )]
    Groups {
        /// The tensor's name.
        tensor: String,
        /// Number of columns in a row.
        columns: usize,
        /// Number of columns in a group.
        group: usize,
        /// Possible remedies.
        advice: String,
    },
    /// 4-bit blocks that would be rounded to other groups.
    #[error(
        "tensor `{tensor}` is {format} and would be rounded to 4 bits a second time: \
         its blocks are taken over as groups of 32, symmetric ones for Q4_0 alone"
    )]
    SecondRounding {
        /// The tensor's name.
        tensor: String,
        /// The format of its blocks.
        format: String,
    },
    /// A buffer of the wrong length, or a missing one.
    #[error("{buffer} for tensor `{tensor}`: found room for {found}, expected {expected}")]
    Room {
        /// The tensor's name.
        tensor: String,
        /// The kind of buffer, for the message.
        buffer: &'static str,
        /// Number of entries that the buffer has.
        found: usize,
        /// Number of entries that the tensor needs.
        expected: usize,
    },
    /// The sink returned an error.
    #[error("encoded tensor `{tensor}` cannot be written")]
    Write {
        /// The tensor's name.
        tensor: String,
        /// The sink's error.
        #[source]
        source: std::io::Error,
    },
}
