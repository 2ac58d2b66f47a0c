//! The part of a SoC file on two devices that share products (HeteroLLM §3 and §4.2), and on an NPU's matrix units.

use serde::Deserialize;

use crate::cut::Side;
use crate::policy::Synchronisation;
use crate::soc::{Soc, check_positive, check_source};
use crate::source::Problems;

/// Two devices that share products.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Place in `devices` of the one whose kernels have static shapes.
    pub first: usize,
    /// Place in `devices` of the one that takes any shape.
    pub second: usize,
    /// Bandwidth that both draw together, in B/s.
    pub bytes_per_sec: f64,
    /// Output rows at whose multiples products are cut.
    pub row_step: u32,
    /// Static sizes of a prompt's calls on the first device, in tokens, ascending.
    pub static_tokens: Vec<u32>,
    /// Synchronisation by shared buffers and a polled flag.
    pub fast: HandOver,
    /// Synchronisation by the devices' own interfaces.
    pub plain: HandOver,
    /// Source of the numbers.
    pub source: String,
}

/// Cost of giving a product to the device that does not do the rest of a layer, there and back.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOver {
    /// For many tokens in a call, where the first device has the longer part, in µs.
    pub prefill_us: f64,
    /// For a token of each sequence, or a few drafts, where the second has, in µs.
    pub decode_us: f64,
    /// Copies of inputs and results, in µs.
    pub copy_us: f64,
}

/// Departure of an NPU's matrix units from a roofline's compute ceiling (HeteroLLM §3.2).
///
/// A product of N×K weights and c tokens takes 2·N·K·c′ / P · (1 + (K / K_half)^e) · (1 + c_half / c′), where c′ is c
/// rounded up to whole tiles.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixUnits {
    /// Rate of the best shape P, in FLOP/s.
    pub flops_per_sec: f64,
    /// Bandwidth that the device draws alone, in B/s; by its anchors if absent.
    #[serde(default)]
    pub bytes_per_sec: Option<f64>,
    /// Tokens of a tile: fewer take the time of a whole one.
    pub tile_tokens: u32,
    /// Tokens up to which a call waits for memory alone, since kernels of another kind compute it.
    #[serde(default)]
    pub memory_bound_tokens: u32,
    /// Tokens at which half of the rate is reached c_half; 0 where it does not depend on them.
    #[serde(default)]
    pub half_rate_tokens: f64,
    /// Loss of a deep product; nothing if absent.
    #[serde(default)]
    pub depth: Option<DepthLoss>,
    /// Factor by which a product takes longer with its operands in the wrong order.
    #[serde(default = "unchanged")]
    pub wrong_order: f64,
    /// Source of the numbers.
    pub source: String,
}

/// Loss of speed of a product with its depth.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DepthLoss {
    /// Depth at which half of the rate is left, K_half.
    pub half_rate: f64,
    /// Exponent e.
    pub exponent: f64,
}

/// The factor of a device for which the order makes no difference.
fn unchanged() -> f64 {
    1.0
}

impl MatrixUnits {
    /// Time of a product of `rows` × `depth` weights and `tokens` tokens in µs, if it waits for no memory.
    pub fn compute_us(&self, rows: f64, depth: f64, tokens: u32) -> f64 {
        if tokens <= self.memory_bound_tokens {
            return 0.0;
        }
        let tokens = f64::from(tokens.next_multiple_of(self.tile_tokens.max(1)));
        let deep = self
            .depth
            .map_or(0.0, |loss| (depth / loss.half_rate).powf(loss.exponent));
        let short = self.half_rate_tokens / tokens;
        2.0 * rows * depth * tokens / self.flops_per_sec * (1.0 + deep) * (1.0 + short) * 1e6
    }

    pub(crate) fn check(&self, problems: &mut Problems<'_>, path: &str) {
        let field = |name: &str| format!("{path}.{name}");
        check_positive(problems, &field("flops_per_sec"), self.flops_per_sec);
        check_positive(problems, &field("wrong_order"), self.wrong_order);
        if let Some(found) = self.bytes_per_sec {
            check_positive(problems, &field("bytes_per_sec"), found);
        }
        if self.tile_tokens == 0 {
            let message = "expected a tile from 1 token, found 0".to_owned();
            problems.push(&field("tile_tokens"), message);
        }
        check_not_negative(problems, &field("half_rate_tokens"), self.half_rate_tokens);
        if let Some(loss) = self.depth {
            check_positive(problems, &field("depth.half_rate"), loss.half_rate);
            check_positive(problems, &field("depth.exponent"), loss.exponent);
        }
        check_source(problems, &field("source"), &self.source);
    }
}

impl Pair {
    /// Costs of a hand-over.
    pub const fn costs(&self, how: Synchronisation) -> HandOver {
        match how {
            Synchronisation::Fast => self.fast,
            Synchronisation::Plain => self.plain,
        }
    }

    /// Place of a side in the SoC's `devices`.
    pub fn device(&self, side: Side) -> usize {
        match side {
            Side::First => self.first,
            Side::Second => self.second,
        }
    }

    pub(crate) fn check(&self, problems: &mut Problems<'_>, soc: &Soc) {
        for (name, found) in [("first", self.first), ("second", self.second)] {
            if found >= soc.devices.len() {
                let devices = soc.devices.len();
                let message =
                    format!("expected a place in `devices`, below {devices}, found {found}");
                problems.push(&format!("pair.{name}"), message);
            }
        }
        if self.first == self.second {
            let message = format!(
                "expected another device than `first`, found {}",
                self.second
            );
            problems.push("pair.second", message);
        }
        check_positive(problems, "pair.bytes_per_sec", self.bytes_per_sec);
        if self.row_step == 0 {
            let message = "expected a step from 1 row, found 0".to_owned();
            problems.push("pair.row_step", message);
        }
        let ascending = self.static_tokens.is_sorted_by(|a, b| a < b);
        if self.static_tokens.is_empty() || self.static_tokens.contains(&0) || !ascending {
            let found = &self.static_tokens;
            let message = format!("expected sizes from 1 token, ascending, found {found:?}");
            problems.push("pair.static_tokens", message);
        }
        for (name, costs) in [("fast", self.fast), ("plain", self.plain)] {
            let field = |of: &str| format!("pair.{name}.{of}");
            check_not_negative(problems, &field("prefill_us"), costs.prefill_us);
            check_not_negative(problems, &field("decode_us"), costs.decode_us);
            check_not_negative(problems, &field("copy_us"), costs.copy_us);
        }
        check_source(problems, "pair.source", &self.source);
    }
}

fn check_not_negative(problems: &mut Problems<'_>, path: &str, found: f64) {
    if !(found.is_finite() && found >= 0.0) {
        let message = format!("expected a finite number from 0, found {found:?}");
        problems.push(path, message);
    }
}

#[cfg(test)]
mod tests {
    use crate::source::Source;

    use super::*;

    fn units() -> MatrixUnits {
        MatrixUnits {
            flops_per_sec: 1e12,
            bytes_per_sec: None,
            tile_tokens: 32,
            memory_bound_tokens: 0,
            half_rate_tokens: 32.0,
            depth: Some(DepthLoss {
                half_rate: 1000.0,
                exponent: 2.0,
            }),
            wrong_order: 6.0,
            source: "chosen".to_owned(),
        }
    }

    #[test]
    fn a_product_takes_whole_tiles_and_loses_by_its_depth() {
        let units = units();
        let at = |tokens| units.compute_us(1000.0, 1000.0, tokens);
        // 64 MFLOP at a quarter of the rate.
        assert_eq!(at(32), 256.0);
        assert_eq!((at(1), at(31)), (at(32), at(32)));
        // The rate is by a third closer to half of the best.
        assert_eq!(at(33), 128.0 * 2.0 * 1.5);
        let decoding = MatrixUnits {
            memory_bound_tokens: 1,
            ..units.clone()
        };
        assert_eq!(decoding.compute_us(1000.0, 1000.0, 1), 0.0);
        assert_eq!(decoding.compute_us(1000.0, 1000.0, 2), 256.0);
        let even = MatrixUnits {
            depth: None,
            half_rate_tokens: 0.0,
            ..units
        };
        assert_eq!(even.compute_us(1000.0, 4000.0, 32), 256.0);
    }

    fn refused(pair: &str) -> String {
        let device = |name: &str| format!("(class: Cpu, openvino: \"{name}\")");
        let devices = [device("A"), device("B")].join(", ");
        let text = format!("(name: \"x\", devices: [{devices}], pair: ({pair}, source: \"s\"))");
        let source = Source {
            file: "x.ron",
            text: &text,
        };
        Soc::parse(source).map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
    }

    #[test]
    fn a_pair_is_of_two_devices_and_its_costs_are_costs() {
        let costs = "fast: (prefill_us: 1, decode_us: 1, copy_us: 0), plain: (prefill_us: 9, decode_us: 9, copy_us: 400)";
        let good = format!(
            "first: 0, second: 1, bytes_per_sec: 1e9, row_step: 256, static_tokens: [32, 64], {costs}"
        );
        assert_eq!(refused(&good), "accepted");
        for (from, to, found) in [
            ("second: 1", "second: 2", "below 2, found 2"),
            ("second: 1", "second: 0", "another device than `first`"),
            ("1e9", "0", "finite number above 0"),
            ("row_step: 256", "row_step: 0", "from 1 row"),
            ("[32, 64]", "[64, 32]", "ascending, found [64, 32]"),
            ("[32, 64]", "[]", "ascending, found []"),
            ("copy_us: 400", "copy_us: -1", "finite number from 0"),
        ] {
            let message = refused(&good.replace(from, to));
            assert!(message.contains(found), "{message}");
        }
    }
}
