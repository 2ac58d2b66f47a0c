//! From measured tables to latencies of any call (HeteroLLM §4.3, "prediction mode"; DESIGN §5).
//!
//! [`LatencyTable`] holds the measurements over (c, n). [`Calibrated`] predicts a dynamic variant: by the table within
//! the measured range, by the roofline fitted to it beyond. [`Steps`] predicts the static variants of a kernel, whose
//! latency is a step function of c. [`Check`] compares predictions with measurements.
//!
//! Pure, like `model`: the measuring itself is in `measure`.

mod calibrated;
mod check;
mod steps;
mod table;
#[cfg(test)]
mod tree_tests;

pub use calibrated::{Calibrated, fit_roofline};
pub use check::{Check, Comparison, PredictionSource, held_out};
pub use steps::Steps;
pub use table::{LatencyTable, TableError};

use heg_artifacts::manifest::{ShapeClass, Work};
use serde::{Deserialize, Serialize};

/// The size of one call of a kernel: c and n.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename = "Call")]
pub struct CallShape {
    /// c, the tokens of the call (rows for the head).
    pub tokens: u32,
    /// n, the rows of the KV cache that attention sees; 0 for other kernels.
    pub context: u32,
}

impl CallShape {
    /// The one call that a static variant carries out, whatever the requested size.
    pub fn of_static(shape: ShapeClass) -> Option<Self> {
        Some(Self {
            tokens: shape.chunk()?,
            context: shape.bucket().unwrap_or(0),
        })
    }

    /// Floating-point operations of the call.
    pub fn flops(self, work: &Work) -> f64 {
        work.flops(u64::from(self.tokens), u64::from(self.context))
    }

    /// Bytes that the call reads and writes.
    pub fn bytes(self, work: &Work) -> f64 {
        work.bytes(u64::from(self.tokens), u64::from(self.context))
    }
}
