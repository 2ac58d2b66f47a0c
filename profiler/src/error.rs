//! Errors of the roofline model, as data.
//!
//! All are wrong input: an anchor, a peak or an overhead to which the formulas of DESIGN §5 do not apply. Variants hold
//! the found value; the messages add the expected one. Advice to the user is added by the binary: it knows which file
//! the number came from.

use std::fmt;

/// An input that the roofline model refuses.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RooflineError {
    /// An arithmetic intensity that no kernel has.
    #[error("the anchor's intensity in FLOP/B is `{found:?}`, expected a finite number from 0")]
    Intensity {
        /// The intensity, in FLOP/B.
        found: f64,
    },

    /// A share of the bandwidth that no kernel uses.
    #[error("the anchor's utilisation is `{found:?}`, expected a number above 0 and up to 1")]
    Utilisation {
        /// Achieved bandwidth divided by peak bandwidth.
        found: f64,
    },

    /// The two anchors do not lie on two sides of a knee.
    #[error(
        "the memory-bound anchor's intensity in FLOP/B is `{memory_bound:?}`, expected less than the compute-bound anchor's: `{compute_bound:?}`"
    )]
    AnchorOrder {
        /// Intensity of the memory-bound anchor, in FLOP/B.
        memory_bound: f64,
        /// Intensity of the compute-bound anchor, in FLOP/B.
        compute_bound: f64,
    },

    /// A peak that no device has.
    #[error("the peak {ceiling} is `{found:?}`, expected a finite number above 0")]
    Peak {
        /// The ceiling in question.
        ceiling: Ceiling,
        /// The peak, in the ceiling's unit.
        found: f64,
    },

    /// The anchors push a ceiling below one unit per second: some input is in the wrong unit.
    #[error("the effective {ceiling} is `{found:?}`, expected at least 1")]
    Effective {
        /// The ceiling in question.
        ceiling: Ceiling,
        /// The ceiling that follows from the anchors, in its unit.
        found: f64,
    },

    /// An overhead that no launch has.
    #[error("the launch overhead in µs is `{found:?}`, expected a finite number from 0")]
    Launch {
        /// The overhead, in µs.
        found: f64,
    },
}

/// One of the two ceilings of a roofline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ceiling {
    /// Floating-point throughput, in FLOP/s.
    Compute,
    /// Off-chip memory bandwidth, in B/s.
    Memory,
}

impl fmt::Display for Ceiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ceiling::Compute => "compute in FLOP/s",
            Ceiling::Memory => "bandwidth in B/s",
        })
    }
}
