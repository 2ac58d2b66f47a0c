//! Two facts of a device besides its speed: its power, and its slowdown beside a busy neighbour.

use heg_spec::DeviceClass;
use serde::{Deserialize, Serialize};

use super::error::AnnotationError;
use crate::model::AnchorSource;

/// Power of a device while a kernel runs on it. The source decides whether the machine's idle power is included.
///
/// Invariants:
/// - both are finite and above 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Power", try_from = "RawDevicePower")]
pub struct DevicePower {
    prefill_watts: f64,
    decode_watts: f64,
}

impl DevicePower {
    /// Checks the power of a device; refuses with [`AnnotationError::Power`].
    pub fn new(raw: RawDevicePower) -> Result<Self, AnnotationError> {
        let RawDevicePower {
            prefill_watts,
            decode_watts,
        } = raw;
        for found in [prefill_watts, decode_watts] {
            if !(found.is_finite() && found > 0.0) {
                return Err(AnnotationError::Power { found });
            }
        }
        Ok(DevicePower {
            prefill_watts,
            decode_watts,
        })
    }

    /// Power with many tokens of a sequence in a call, in W.
    pub fn prefill_watts(&self) -> f64 {
        self.prefill_watts
    }

    /// Power with one token of each sequence in a call, in W.
    pub fn decode_watts(&self) -> f64 {
        self.decode_watts
    }
}

impl TryFrom<RawDevicePower> for DevicePower {
    type Error = AnnotationError;

    fn try_from(raw: RawDevicePower) -> Result<Self, AnnotationError> {
        DevicePower::new(raw)
    }
}

/// An unchecked [`DevicePower`].
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename = "Power", deny_unknown_fields)]
pub struct RawDevicePower {
    /// Power with many tokens of a sequence in a call, in W.
    pub prefill_watts: f64,
    /// Power with one token of each sequence in a call, in W.
    pub decode_watts: f64,
}

/// The ceiling of the roofline that limits a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Regime {
    /// Limited by bandwidth.
    MemoryBound,
    /// Limited by throughput.
    ComputeBound,
}

/// One cell of the contention table (Agent.xpu, Fig. 4): a kernel beside another on the same memory.
///
/// Invariants:
/// - the slow-down is finite and above 0. Noise may put it a little below 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawContention")]
pub struct Contention {
    device: DeviceClass,
    regime: Regime,
    neighbour: DeviceClass,
    neighbour_regime: Regime,
    slowdown: f64,
    source: AnchorSource,
}

impl Contention {
    /// Checks a cell; refuses with [`AnnotationError::Slowdown`].
    pub fn new(raw: RawContention) -> Result<Self, AnnotationError> {
        let RawContention {
            device,
            regime,
            neighbour,
            neighbour_regime,
            slowdown,
            source,
        } = raw;
        if !(slowdown.is_finite() && slowdown > 0.0) {
            return Err(AnnotationError::Slowdown { found: slowdown });
        }
        Ok(Contention {
            device,
            regime,
            neighbour,
            neighbour_regime,
            slowdown,
            source,
        })
    }

    /// The device that is slowed down, and the regime of its kernel.
    pub fn subject(&self) -> (DeviceClass, Regime) {
        (self.device, self.regime)
    }

    /// The device that is busy beside it, and the regime of its kernel.
    pub fn neighbour(&self) -> (DeviceClass, Regime) {
        (self.neighbour, self.neighbour_regime)
    }

    /// Latency beside the neighbour divided by latency alone.
    pub fn slowdown(&self) -> f64 {
        self.slowdown
    }

    /// The source of the factor.
    pub fn source(&self) -> AnchorSource {
        self.source
    }
}

impl TryFrom<RawContention> for Contention {
    type Error = AnnotationError;

    fn try_from(raw: RawContention) -> Result<Self, AnnotationError> {
        Contention::new(raw)
    }
}

/// An unchecked [`Contention`].
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename = "Contention", deny_unknown_fields)]
pub struct RawContention {
    /// The device that is slowed down.
    pub device: DeviceClass,
    /// The regime of its kernel.
    pub regime: Regime,
    /// The device that is busy beside it.
    pub neighbour: DeviceClass,
    /// The regime of the neighbour's kernel.
    pub neighbour_regime: Regime,
    /// Latency beside the neighbour divided by latency alone.
    pub slowdown: f64,
    /// The source of the factor.
    pub source: AnchorSource,
}
