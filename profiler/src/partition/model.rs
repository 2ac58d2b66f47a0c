//! Latencies of pieces by what a SoC file says of two devices: "prediction mode" (HeteroLLM §4.3).
//!
//! A device that multiplies at one rate whatever the shape needs no more than its roofline. The matrix units of an NPU
//! have steps and losses of their own ([`MatrixUnits`]). Side by side, both draw from one memory: a piece that waits
//! for it gets its device's share of what the pair draws together.

use heg_spec::pair::MatrixUnits;
use heg_spec::{Side, Soc};

use super::{Company, CutPiece, PairLatencies, PartitionError};
use crate::annotation::of_data_sheet;

/// Predicted latencies of a pair.
#[derive(Debug, Clone, PartialEq)]
pub struct PairModel {
    /// The first device.
    pub first: DeviceRates,
    /// The second device.
    pub second: DeviceRates,
    /// Bandwidth that both draw together, in B/s.
    pub bytes_per_sec: f64,
    /// Bytes of an element of activations.
    pub activation_bytes: f64,
}

/// Rates of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceRates {
    /// Rate of its kernels, in FLOP/s.
    pub flops_per_sec: f64,
    /// Bandwidth that it draws alone, in B/s.
    pub bytes_per_sec: f64,
    /// Efficiency in place of the rate, where shapes matter.
    pub matrix_units: Option<MatrixUnits>,
}

impl PairModel {
    /// The pair of a SoC file.
    ///
    /// Errors: [`PartitionError::NoPair`], [`PartitionError::NoPeaks`], [`PartitionError::Sheet`].
    pub fn of(soc: &Soc) -> Result<Self, PartitionError> {
        let pair = soc.pair.as_ref().ok_or_else(|| PartitionError::NoPair {
            soc: soc.name.clone(),
        })?;
        let sheet = of_data_sheet(soc)?;
        let rates = |side| -> Result<DeviceRates, PartitionError> {
            let place = pair.device(side);
            let roofline = sheet.devices.get(place).and_then(|device| device.spec);
            let roofline = roofline.ok_or_else(|| PartitionError::NoPeaks {
                soc: soc.name.clone(),
                side,
            })?;
            let device = soc.devices.get(place);
            let matrix_units = device.and_then(|device| device.matrix_units.clone());
            let drawn = matrix_units.as_ref().and_then(|units| units.bytes_per_sec);
            Ok(DeviceRates {
                flops_per_sec: roofline.effective_flops_per_sec(),
                bytes_per_sec: drawn.unwrap_or(roofline.effective_bytes_per_sec()),
                matrix_units,
            })
        };
        Ok(Self {
            first: rates(Side::First)?,
            second: rates(Side::Second)?,
            bytes_per_sec: pair.bytes_per_sec,
            activation_bytes: ACTIVATION_BYTES,
        })
    }

    /// A device's rates.
    pub fn rates(&self, side: Side) -> &DeviceRates {
        match side {
            Side::First => &self.first,
            Side::Second => &self.second,
        }
    }

    /// Weights and activations that a piece reads and writes, in bytes.
    pub fn moved_bytes(&self, piece: CutPiece<'_>) -> f64 {
        let shape = piece.shape;
        let written = f64::from(piece.rows) * f64::from(shape.matrices);
        let activations = f64::from(piece.tokens) * (f64::from(shape.depth) + written);
        f64::from(piece.rows) * shape.row_bytes + activations * self.activation_bytes
    }

    /// Time in which a piece's bytes are moved, in µs.
    pub(super) fn memory_us(&self, side: Side, piece: CutPiece<'_>, company: Company) -> f64 {
        self.moved_bytes(piece) / self.bandwidth(side, company) * 1e6
    }

    /// Bandwidth of a device, in B/s.
    fn bandwidth(&self, side: Side, company: Company) -> f64 {
        let alone = self.rates(side).bytes_per_sec;
        let wanted = self.first.bytes_per_sec + self.second.bytes_per_sec;
        match company {
            Company::Alone => alone,
            Company::Beside => alone * (self.bytes_per_sec / wanted).min(1.0),
        }
    }
}

impl PairLatencies for PairModel {
    fn piece_us(&self, side: Side, piece: CutPiece<'_>, company: Company) -> Option<f64> {
        let CutPiece {
            shape,
            rows,
            tokens,
        } = piece;
        let rates = self.rates(side);
        let depth = f64::from(shape.depth);
        let weights = f64::from(rows) * f64::from(shape.matrices);
        let columns = f64::from(tokens);
        let compute_us = match &rates.matrix_units {
            Some(units) => units.compute_us(weights, depth, tokens),
            None => 2.0 * weights * depth * columns / rates.flops_per_sec * 1e6,
        };
        Some(compute_us.max(self.memory_us(side, piece, company)))
    }
}

/// Activations that devices exchange are f16.
const ACTIVATION_BYTES: f64 = 2.0;

#[cfg(test)]
mod tests {
    use heg_spec::{CutProduct, shipped};

    use super::*;
    use crate::partition::CutShape;

    #[test]
    fn memory_is_shared_and_steps_are_an_npus() {
        let model = PairModel::of(&shipped::soc("snapdragon-8-gen3").unwrap()).unwrap();
        let shape = CutShape {
            product: CutProduct::GateUp,
            rows: 14_336,
            depth: 4096,
            matrices: 2,
            unit_rows: 1,
            row_bytes: 4096.0,
        };
        let us = |side, tokens, company| {
            let piece = CutPiece {
                shape: &shape,
                rows: shape.rows,
                tokens,
            };
            model.piece_us(side, piece, company).unwrap()
        };
        let (first, second) = (Side::First, Side::Second);
        // One token waits for 58.7 MB of weights; beside each other both wait longer.
        assert!((us(second, 1, Company::Alone) / 1357.0 - 1.0).abs() < 0.01);
        assert!(us(second, 1, Company::Beside) > 1.4 * us(second, 1, Company::Alone));
        assert_eq!(us(first, 33, Company::Alone), us(first, 64, Company::Alone));
        assert!(us(second, 33, Company::Alone) < 0.6 * us(second, 64, Company::Alone));
        assert_eq!(
            us(second, 256, Company::Alone),
            us(second, 256, Company::Beside)
        );
    }

    #[test]
    fn a_machine_without_a_pair_is_refused() {
        let refused = |name| {
            PairModel::of(&shipped::soc(name).unwrap())
                .unwrap_err()
                .to_string()
        };
        let expected = "the SoC `host-cpu` has no `pair`: expected a SoC file that names two devices that share products";
        assert_eq!(refused("host-cpu"), expected);
    }
}
