//! Errors of a partition, as data.

use heg_spec::{CutMisfit, CutProduct, Group, Side};

use crate::annotation::AnnotationError;
use crate::predict::TableError;

/// Why there is no partition, or why a document is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// Nothing is known of either device.
    #[error(
        "no latency of `{product}` over {tokens} tokens is known on either device: expected a profile, or peaks in the SoC file"
    )]
    Unknown {
        /// The product.
        product: CutProduct,
        /// Tokens of the call.
        tokens: u32,
    },

    /// A latency that no product has.
    #[error(
        "the latency of `{product}` ({rows} rows, {tokens} tokens) on the {side} device is `{found:?}` µs, expected a finite \
         number above 0: measure it again"
    )]
    Absurd {
        /// The product.
        product: CutProduct,
        /// Output rows of the piece.
        rows: u32,
        /// Tokens of the piece.
        tokens: u32,
        /// The device.
        side: Side,
        /// The latency, in µs.
        found: f64,
    },

    /// A cost of synchronisation that is none.
    #[error("a hand-over costs `{found:?}` µs, expected a finite number from 0")]
    HandOver {
        /// The cost, in µs.
        found: f64,
    },

    /// A product without rows, columns or tokens.
    #[error("`{product}` has {rows} rows of {depth} and {tokens} tokens, expected each from 1")]
    Empty {
        /// The product.
        product: CutProduct,
        /// Its output rows.
        rows: u32,
        /// Its columns.
        depth: u32,
        /// Tokens of the call.
        tokens: u32,
    },

    /// The SoC has no two devices that share products.
    #[error(
        "the SoC `{soc}` has no `pair`: expected a SoC file that names two devices that share products"
    )]
    NoPair {
        /// Name of the SoC.
        soc: String,
    },

    /// A device of the pair has no data sheet.
    #[error(
        "the SoC `{soc}` has no `peaks` for its {side} device: expected its FLOP/s and bandwidth, with their source"
    )]
    NoPeaks {
        /// Name of the SoC.
        soc: String,
        /// The device.
        side: Side,
    },

    /// The data sheet makes no sense.
    #[error(transparent)]
    Sheet(#[from] AnnotationError),

    /// Measurements make no table.
    #[error(transparent)]
    Table(#[from] TableError),

    /// A kernel that has not the matrices of a gated layer.
    #[error("the kernel of `{}` has {found} matrices, expected {expected} matrices", group.name())]
    Parameters {
        /// Group of the kernel.
        group: Group,
        /// Matrices among its parameters.
        found: usize,
        /// Numbers that its products have.
        expected: usize,
    },

    /// The document is longer than any real one.
    #[error("the partitions are {found} bytes long, expected up to {limit}")]
    TooLong {
        /// Length of the text.
        found: usize,
        /// The longest that is read.
        limit: usize,
    },

    /// The text is no document of partitions.
    #[error("partitions, line {line}, column {column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The parser's message.
        message: String,
    },

    /// A newer program wrote this.
    #[error("the partitions' revision {found} is unknown: this program reads 1 to {supported}")]
    Revision {
        /// The revision in the document.
        found: u32,
        /// The newest that is understood.
        supported: u32,
    },

    /// Something is there twice, out of order, or not at all.
    #[error("partition of `{soc}`, {what}: {message}")]
    Document {
        /// Name of the SoC.
        soc: String,
        /// The part of it.
        what: String,
        /// The expected and the found value.
        message: String,
    },

    /// A cut that does not fit its product.
    #[error("partition of `{soc}`, `{product}` up to {tokens} tokens: {misfit}")]
    Misfit {
        /// Name of the SoC.
        soc: String,
        /// The product.
        product: CutProduct,
        /// Tokens of the class.
        tokens: u32,
        /// The part that does not fit.
        misfit: CutMisfit,
    },
}
