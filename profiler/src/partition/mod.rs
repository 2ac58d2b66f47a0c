//! Partitions: how two devices share the products of a model (HeteroLLM §4.3).
//!
//! [`solve`] chooses a [`Cut`](heg_spec::Cut) for one product and one number of tokens, from what [`PairLatencies`] knows
//! of pieces of it: measured ([`MeasuredPair`], a table over output rows and tokens for each product), predicted
//! ([`PairModel`], by what a SoC file says), or estimated by a device's compiler ([`EstimatedPair`]). [`partition`] does so for a whole model, and a bundle keeps the result
//! ([`Partitions`]).
//!
//! Pure, like the rest of the crate: what is measured is the caller's to run.

mod document;
mod error;
mod estimated;
mod measured;
mod model;
mod products;
mod solve;
mod whole;

use heg_spec::{CutProduct, Side};
use serde::{Deserialize, Serialize};

pub use document::{
    ClassCut, PARTITIONS_BYTES_MAX, PARTITIONS_REVISION, Partitions, ProductPartition, SocPartition,
};
pub use error::PartitionError;
pub use estimated::{EstimatedPair, sparse_shapes};
pub use measured::{MeasuredPair, PairShape, PieceTable, pair_cuts, pair_shapes};
pub use model::{DeviceRates, PairModel};
pub use products::products;
pub use solve::{CutRules, Solution, solve};
pub use whole::{DECODE_ROWS_MAX, partition, rules};

/// A product that may be cut, by its weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CutShape {
    /// The product.
    pub product: CutProduct,
    /// Output rows N; those of either matrix for gate and up.
    pub rows: u32,
    /// Columns K.
    pub depth: u32,
    /// Matrices that are cut at the same row: 2 for gate and up, otherwise 1.
    pub matrices: u32,
    /// Rows that stay together: those of a group of heads for `qkv`, otherwise 1.
    pub unit_rows: u32,
    /// Bytes of the weights of a row, in all matrices.
    pub row_bytes: f64,
}

impl CutShape {
    /// Output rows at whose multiples the product is cut on a device that wants multiples of `row_step`: the least number
    /// of whole units that has as many.
    pub fn row_step(&self, row_step: u32) -> u32 {
        let unit = self.unit_rows.max(1);
        unit.saturating_mul(row_step.div_ceil(unit).max(1))
    }
}

/// A part of a product that one device does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CutPiece<'p> {
    /// The whole product.
    pub shape: &'p CutShape,
    /// Output rows.
    pub rows: u32,
    /// Tokens, padded to a static size where the device needs one.
    pub tokens: u32,
}

/// Whether the other device is at work on the same memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Company {
    /// It is not.
    Alone,
    /// It is.
    Beside,
}

/// Known speeds of two devices.
pub trait PairLatencies {
    /// Time of a piece in µs, without what synchronisation takes; `None` where it is unknown, or the device does not run it.
    fn piece_us(&self, side: Side, piece: CutPiece<'_>, company: Company) -> Option<f64>;
}
