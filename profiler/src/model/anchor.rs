//! The inputs of the roofline fit: a device's two peaks and two anchors that bracket its regimes.
//!
//! The checked types have private fields; each is made from its `Raw*` mirror, which names the numbers at the call site
//! and is the type that serde reads. So a value of a checked type holds its invariants wherever it came from. Formulas
//! are in `roofline.rs`; the origin of anchors does not matter here. Follows Agent.xpu, Appendix A, "we calibrate
//! effective ceilings using two empirical anchor measurements".

use serde::{Deserialize, Serialize};

use crate::error::{Ceiling, RooflineError};

/// One kernel observed on one device: its place on the roofline's axis, and its bandwidth.
///
/// Invariants:
/// - the intensity is finite and at least 0 (0 is a pure copy);
/// - the utilisation is above 0 and at most 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Anchor", try_from = "RawAnchor")]
pub struct RooflineAnchor {
    intensity_flops_per_byte: f64,
    utilisation: f64,
}

impl RooflineAnchor {
    /// Checks an anchor; refuses with [`RooflineError::Intensity`] or [`RooflineError::Utilisation`].
    pub fn new(raw: RawAnchor) -> Result<Self, RooflineError> {
        let RawAnchor {
            intensity_flops_per_byte,
            utilisation,
        } = raw;
        if !(intensity_flops_per_byte.is_finite() && intensity_flops_per_byte >= 0.0) {
            return Err(RooflineError::Intensity {
                found: intensity_flops_per_byte,
            });
        }
        if !(utilisation > 0.0 && utilisation <= 1.0) {
            return Err(RooflineError::Utilisation { found: utilisation });
        }
        Ok(RooflineAnchor {
            intensity_flops_per_byte,
            utilisation,
        })
    }

    /// Work per byte moved, I = F / Q, in FLOP/B; finite, from 0.
    pub fn intensity_flops_per_byte(&self) -> f64 {
        self.intensity_flops_per_byte
    }

    /// Achieved bandwidth divided by the device's peak bandwidth; above 0, up to 1.
    pub fn utilisation(&self) -> f64 {
        self.utilisation
    }
}

impl TryFrom<RawAnchor> for RooflineAnchor {
    type Error = RooflineError;

    fn try_from(raw: RawAnchor) -> Result<Self, RooflineError> {
        RooflineAnchor::new(raw)
    }
}

/// An unchecked [`RooflineAnchor`].
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename = "Anchor", deny_unknown_fields)]
pub struct RawAnchor {
    /// I = F / Q, in FLOP/B.
    pub intensity_flops_per_byte: f64,
    /// Achieved bandwidth divided by peak bandwidth.
    pub utilisation: f64,
}

/// The two anchors of a kernel on a device.
///
/// Invariants:
/// - the memory-bound anchor's intensity is less than the compute-bound anchor's, which is therefore
///   above 0, as the compute ceiling needs it to be.
///
/// The utilisation may rise from one to the other, deliberately: an anchor of too little intensity makes the prediction
/// conservative, not meaningless (Appendix A, remark ii).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Anchors", try_from = "RawAnchors")]
pub struct RooflineAnchors {
    memory_bound: RooflineAnchor,
    compute_bound: RooflineAnchor,
}

impl RooflineAnchors {
    /// Checks a pair of anchors; refuses with [`RooflineError::AnchorOrder`].
    pub fn new(raw: RawAnchors) -> Result<Self, RooflineError> {
        let RawAnchors {
            memory_bound,
            compute_bound,
        } = raw;
        if memory_bound.intensity_flops_per_byte >= compute_bound.intensity_flops_per_byte {
            return Err(RooflineError::AnchorOrder {
                memory_bound: memory_bound.intensity_flops_per_byte,
                compute_bound: compute_bound.intensity_flops_per_byte,
            });
        }
        Ok(RooflineAnchors {
            memory_bound,
            compute_bound,
        })
    }

    /// The most memory-bound case, (I_m, u_m).
    pub fn memory_bound(&self) -> RooflineAnchor {
        self.memory_bound
    }

    /// The most compute-bound case, (I_c, u_c).
    pub fn compute_bound(&self) -> RooflineAnchor {
        self.compute_bound
    }
}

impl TryFrom<RawAnchors> for RooflineAnchors {
    type Error = RooflineError;

    fn try_from(raw: RawAnchors) -> Result<Self, RooflineError> {
        RooflineAnchors::new(raw)
    }
}

/// Unchecked [`RooflineAnchors`].
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename = "Anchors", deny_unknown_fields)]
pub struct RawAnchors {
    /// The most memory-bound case.
    pub memory_bound: RooflineAnchor,
    /// The most compute-bound case.
    pub compute_bound: RooflineAnchor,
}

/// The origin of a pair of anchors; stored beside them in an annotation.
///
/// The formulas do not depend on it: it tells a reader how far to trust the predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnchorSource {
    /// A run of the kernel on the device, measured by the profiler.
    Measured,
    /// The vendor compiler's own estimate, from the blob.
    Vendor,
    /// A data sheet: no kernel was observed.
    Spec,
}

/// The best possible rates of a device, P_peak and B_peak of Appendix A.
///
/// Invariants:
/// - both peaks are finite and above 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawDevicePeaks")]
pub struct DevicePeaks {
    flops_per_sec: f64,
    bytes_per_sec: f64,
}

impl DevicePeaks {
    /// Checks the peaks of a device; refuses with [`RooflineError::Peak`].
    pub fn new(raw: RawDevicePeaks) -> Result<Self, RooflineError> {
        let RawDevicePeaks {
            flops_per_sec,
            bytes_per_sec,
        } = raw;
        for (ceiling, found) in [
            (Ceiling::Compute, flops_per_sec),
            (Ceiling::Memory, bytes_per_sec),
        ] {
            if !(found.is_finite() && found > 0.0) {
                return Err(RooflineError::Peak { ceiling, found });
            }
        }
        Ok(DevicePeaks {
            flops_per_sec,
            bytes_per_sec,
        })
    }

    /// P_peak, in FLOP/s of the kernel's number format; finite, above 0.
    pub fn flops_per_sec(&self) -> f64 {
        self.flops_per_sec
    }

    /// B_peak, off-chip, in B/s; finite, above 0.
    pub fn bytes_per_sec(&self) -> f64 {
        self.bytes_per_sec
    }
}

impl TryFrom<RawDevicePeaks> for DevicePeaks {
    type Error = RooflineError;

    fn try_from(raw: RawDevicePeaks) -> Result<Self, RooflineError> {
        DevicePeaks::new(raw)
    }
}

/// Unchecked [`DevicePeaks`].
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename = "DevicePeaks", deny_unknown_fields)]
pub struct RawDevicePeaks {
    /// P_peak, in FLOP/s.
    pub flops_per_sec: f64,
    /// B_peak, in B/s.
    pub bytes_per_sec: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(
        intensity_flops_per_byte: f64,
        utilisation: f64,
    ) -> Result<RooflineAnchor, RooflineError> {
        RooflineAnchor::new(RawAnchor {
            intensity_flops_per_byte,
            utilisation,
        })
    }

    #[test]
    fn the_ends_of_the_ranges_are_taken() {
        for (intensity, utilisation) in [(0.0, 1.0), (f64::MAX, f64::MIN_POSITIVE)] {
            let taken = anchor(intensity, utilisation).unwrap();
            assert_eq!(taken.intensity_flops_per_byte(), intensity);
            assert_eq!(taken.utilisation(), utilisation);
        }
    }

    #[test]
    fn intensity_is_finite_and_not_negative() {
        for found in [-1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let refused = anchor(found, 0.5).unwrap_err();
            assert!(
                matches!(refused, RooflineError::Intensity { .. }),
                "{refused}"
            );
        }
    }

    #[test]
    fn utilisation_is_a_share_above_zero() {
        for found in [0.0, -0.5, 1.0 + f64::EPSILON, f64::INFINITY, f64::NAN] {
            let refused = anchor(1.0, found).unwrap_err();
            assert!(
                matches!(refused, RooflineError::Utilisation { .. }),
                "{refused}"
            );
        }
    }

    #[test]
    fn anchors_are_in_order() {
        let pair = |memory: f64, compute: f64| {
            RooflineAnchors::new(RawAnchors {
                memory_bound: anchor(memory, 0.8).unwrap(),
                compute_bound: anchor(compute, 0.4).unwrap(),
            })
        };
        let taken = pair(0.0, 200.0).unwrap();
        assert_eq!(taken.memory_bound(), anchor(0.0, 0.8).unwrap());
        assert_eq!(taken.compute_bound(), anchor(200.0, 0.4).unwrap());
        for (memory, compute) in [(0.0, 0.0), (200.0, 200.0), (200.0, 2.0)] {
            let expected = RooflineError::AnchorOrder {
                memory_bound: memory,
                compute_bound: compute,
            };
            assert_eq!(pair(memory, compute), Err(expected));
        }
    }

    #[test]
    fn peaks_are_finite_and_above_zero() {
        let peaks = |flops_per_sec, bytes_per_sec| {
            DevicePeaks::new(RawDevicePeaks {
                flops_per_sec,
                bytes_per_sec,
            })
        };
        let taken = peaks(12e12, 100e9).unwrap();
        assert_eq!(taken.flops_per_sec(), 12e12);
        assert_eq!(taken.bytes_per_sec(), 100e9);
        for bad in [0.0, -1.0, f64::INFINITY, f64::NAN] {
            let ceiling = |refused| match refused {
                Err(RooflineError::Peak { ceiling, .. }) => Some(ceiling),
                _ => None,
            };
            assert_eq!(ceiling(peaks(bad, 1.0)), Some(Ceiling::Compute));
            assert_eq!(ceiling(peaks(1.0, bad)), Some(Ceiling::Memory));
        }
    }
}
