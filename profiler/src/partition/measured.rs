//! Latencies of pieces that were run: "real-execution mode" (HeteroLLM §4.3).
//!
//! For each device and product a table over tokens and output rows, of pieces run alone and beside the other device's.
//! Between measured sizes a latency is linear in both; for the first device a number of tokens is a static size.

use std::collections::BTreeMap;

use heg_spec::{CutProduct, Side};

use super::{Company, CutPiece, CutShape, PairLatencies};
use crate::predict::{CallShape, LatencyTable, TableError};

/// A piece to measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairShape {
    /// The whole product.
    pub shape: CutShape,
    /// The device.
    pub side: Side,
    /// Output rows.
    pub rows: u32,
    /// Tokens.
    pub tokens: u32,
    /// Whether the other device does the rest of the rows meanwhile.
    pub company: Company,
}

/// The pieces that a table is made of: of each product an eighth of its rows, a quarter and so on to all, over each of
/// `tokens`, by both devices, alone and beside the rest.
pub fn pair_shapes(shapes: &[CutShape], tokens: &[u32], row_step: u32) -> Vec<PairShape> {
    let mut found = Vec::new();
    for shape in shapes {
        let step = shape.row_step(row_step);
        let mut sizes: Vec<u32> = [1_u32, 2, 3, 4, 6]
            .map(|eighths| (shape.rows / 8).saturating_mul(eighths) / step * step)
            .into_iter()
            .filter(|rows| *rows > 0 && *rows < shape.rows)
            .collect();
        sizes.push(shape.rows);
        sizes.dedup();
        for side in [Side::First, Side::Second] {
            for (rows, tokens) in sizes
                .iter()
                .flat_map(|rows| tokens.iter().map(move |c| (*rows, *c)))
            {
                let companies = match rows == shape.rows {
                    true => &[Company::Alone][..],
                    false => &[Company::Alone, Company::Beside],
                };
                found.extend(companies.iter().map(|company| PairShape {
                    shape: *shape,
                    side,
                    rows,
                    tokens,
                    company: *company,
                }));
            }
        }
    }
    found
}

/// Measured latencies of a pair.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MeasuredPair {
    tables: BTreeMap<(CutProduct, Side, Company), LatencyTable>,
}

impl MeasuredPair {
    /// From pieces and their latencies in µs, in any order; of a piece measured twice the smaller counts.
    ///
    /// Error: [`TableError`] for a latency that none is, or sizes that no call has.
    pub fn new(measured: impl IntoIterator<Item = (PairShape, f64)>) -> Result<Self, TableError> {
        let mut entries: BTreeMap<_, BTreeMap<CallShape, f64>> = BTreeMap::new();
        for (piece, latency_us) in measured {
            let table = entries
                .entry((piece.shape.product, piece.side, piece.company))
                .or_default();
            let call = call(piece.rows, piece.tokens);
            let least = table.entry(call).or_insert(latency_us);
            // A NaN stays, to be refused.
            *least = if latency_us.is_nan() {
                latency_us
            } else {
                least.min(latency_us)
            };
        }
        let tables = entries
            .into_iter()
            .map(|(key, table)| Ok((key, LatencyTable::new(table.into_iter().collect())?)));
        Ok(Self {
            tables: tables.collect::<Result<_, TableError>>()?,
        })
    }
}

/// Tables have output rows in the place of visible tokens.
fn call(rows: u32, tokens: u32) -> CallShape {
    CallShape {
        tokens,
        context: rows,
    }
}

impl PairLatencies for MeasuredPair {
    fn piece_us(&self, side: Side, piece: CutPiece<'_>, company: Company) -> Option<f64> {
        let product = piece.shape.product;
        let table = |company| self.tables.get(&(product, side, company));
        let table = table(company).or_else(|| table(Company::Alone))?;
        let work = |at: CallShape| f64::from(at.tokens) * f64::from(at.context);
        Some(table.latency_us(call(piece.rows, piece.tokens), work))
    }
}

#[cfg(test)]
mod tests {
    use heg_spec::Cut;

    use super::*;
    use crate::partition::{CutRules, solve};

    fn shape() -> CutShape {
        CutShape {
            product: CutProduct::Down,
            rows: 2048,
            depth: 8192,
            matrices: 1,
            unit_rows: 1,
            row_bytes: 8192.0,
        }
    }

    /// A device of which the first is three times as fast, both with a start of 20 µs.
    fn truth(side: Side, rows: u32, tokens: u32) -> f64 {
        let work = f64::from(rows) * f64::from(tokens) / 100.0;
        20.0 + if side == Side::First {
            work
        } else {
            3.0 * work
        }
    }

    fn measured() -> MeasuredPair {
        let shapes = pair_shapes(&[shape()], &[32, 256], 256);
        let timed = shapes
            .iter()
            .map(|it| (*it, truth(it.side, it.rows, it.tokens)));
        MeasuredPair::new(timed).unwrap()
    }

    #[test]
    fn between_measured_rows_and_tokens_the_truth_is_found() {
        let pair = measured();
        for (rows, tokens) in [(256, 32), (700, 32), (1500, 100), (2048, 200)] {
            for side in [Side::First, Side::Second] {
                let shape = shape();
                let piece = CutPiece {
                    shape: &shape,
                    rows,
                    tokens,
                };
                let found = pair.piece_us(side, piece, Company::Beside).unwrap();
                let expected = truth(side, rows, tokens);
                assert!(
                    (found / expected - 1.0).abs() < 0.01,
                    "{rows} {tokens}: {found}"
                );
            }
        }
    }

    #[test]
    fn the_cut_of_unequal_devices_is_the_best_of_a_sweep() {
        let rules = CutRules {
            static_tokens: &[256],
            row_step: 256,
            home: Side::First,
            hand_over_us: 5.0,
        };
        let found = solve(&measured(), &shape(), 256, rules).unwrap();
        let sweep = (1..8).map(|steps| {
            let first = 256 * steps;
            let others = truth(Side::Second, 2048 - first, 256);
            (truth(Side::First, first, 256).max(others), first)
        });
        let best = sweep.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        assert_eq!(found.cut, Cut::Rows { first: best.1 });
        assert!((found.latency_us / (best.0 + 5.0) - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_latency_that_none_is_is_refused() {
        let mut shapes = pair_shapes(&[shape()], &[32], 256);
        shapes.truncate(1);
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = MeasuredPair::new([(shapes[0], 1.0), (shapes[0], bad)]);
            let smaller = bad.is_infinite() && refused.is_ok();
            assert!(smaller || refused.is_err(), "{bad}");
        }
        let nothing = MeasuredPair::default();
        let shape = shape();
        let piece = CutPiece {
            shape: &shape,
            rows: 256,
            tokens: 32,
        };
        assert_eq!(nothing.piece_us(Side::First, piece, Company::Alone), None);
    }
}
