//! Latencies of pieces that were run: "real-execution mode" (HeteroLLM §4.3).
//!
//! For each device and product a table over tokens and output rows, of pieces run alone and beside the other device's.
//! Between measured sizes a latency is linear in both; for the first device a number of tokens is a static size.

use std::collections::BTreeMap;

use heg_spec::{Cut, CutProduct, Side};
use serde::{Deserialize, Serialize};

use super::{Company, CutPiece, CutShape, PairLatencies};
use crate::predict::{CallShape, LatencyTable, TableError};

/// A piece that was measured.
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

/// The cuts whose pieces a table is made of: the whole product on either device, and an eighth of its rows on the first and
/// the rest on the second, a quarter, and so on. Those are all that a solver asks for, of devices that take any number of
/// tokens.
pub fn pair_cuts(shape: &CutShape, row_step: u32) -> Vec<Cut> {
    let step = shape.row_step(row_step);
    let eighths = (1..8).map(|eighths| {
        let rows = u64::from(shape.rows) * eighths / 8;
        u32::try_from(rows).unwrap_or(u32::MAX) / step * step
    });
    let mut firsts: Vec<u32> = eighths
        .filter(|first| *first > 0 && *first < shape.rows)
        .collect();
    firsts.dedup();
    let rows = firsts.into_iter().map(|first| Cut::Rows { first });
    let whole = [Side::First, Side::Second].map(Cut::Whole);
    whole.into_iter().chain(rows).collect()
}

/// The pieces of a product that a cut by rows, or none, has the devices do.
pub fn pair_shapes(shape: &CutShape, cut: &Cut, tokens: u32) -> Vec<PairShape> {
    let company = match cut.is_shared() {
        true => Company::Beside,
        false => Company::Alone,
    };
    let [first, second] = cut.pieces(shape.rows, tokens, tokens);
    let of_side = |side, pieces: Vec<(u32, u32)>| {
        pieces.into_iter().map(move |(rows, tokens)| PairShape {
            shape: *shape,
            side,
            rows,
            tokens,
            company,
        })
    };
    let first = of_side(Side::First, first);
    first.chain(of_side(Side::Second, second)).collect()
}

/// Latencies of a product's pieces on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PieceTable {
    /// The product.
    pub product: CutProduct,
    /// The device.
    pub side: Side,
    /// Whether the other device does the rest meanwhile.
    pub company: Company,
    /// Its latencies, with output rows in the place of visible tokens.
    pub table: LatencyTable,
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

    /// From tables, each of another product, device or company.
    pub fn of_tables(tables: &[PieceTable]) -> Self {
        let key = |it: &PieceTable| (it.product, it.side, it.company);
        Self {
            tables: tables
                .iter()
                .map(|it| (key(it), it.table.clone()))
                .collect(),
        }
    }

    /// Time of a whole product on a device of its own, in µs; `None` where it was not measured.
    pub fn whole_us(&self, side: Side, shape: &CutShape, tokens: u32) -> Option<f64> {
        let piece = CutPiece {
            shape,
            rows: shape.rows,
            tokens,
        };
        self.piece_us(side, piece, Company::Alone)
    }

    /// Its tables, in order.
    pub fn tables(&self) -> Vec<PieceTable> {
        let table = |((product, side, company), table): (&(_, _, _), &LatencyTable)| PieceTable {
            product: *product,
            side: *side,
            company: *company,
            table: table.clone(),
        };
        self.tables.iter().map(table).collect()
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
        let cuts = pair_cuts(&shape(), 256);
        let pieces = cuts.iter().flat_map(|cut| {
            let of_tokens = |tokens| pair_shapes(&shape(), cut, tokens);
            [32, 256].into_iter().flat_map(of_tokens)
        });
        let timed = pieces.map(|it| (it, truth(it.side, it.rows, it.tokens)));
        let found = MeasuredPair::new(timed).unwrap();
        let kept = MeasuredPair::of_tables(&found.tables());
        assert_eq!(kept, found);
        kept
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
    fn pieces_are_whole_alone_and_parts_beside_the_rest() {
        let cuts = pair_cuts(&shape(), 256);
        assert_eq!(cuts.len(), 9);
        let pieces = pair_shapes(&shape(), &Cut::Rows { first: 512 }, 32);
        let found: Vec<_> = pieces
            .iter()
            .map(|it| (it.side, it.rows, it.company))
            .collect();
        let beside = Company::Beside;
        let expected = [(Side::First, 512, beside), (Side::Second, 1536, beside)];
        assert_eq!(found, expected);
        // Few rows are cut where they can be.
        let few = CutShape {
            rows: 300,
            ..shape()
        };
        assert_eq!(pair_cuts(&few, 256)[2..], [Cut::Rows { first: 256 }]);
        assert_eq!(pair_cuts(&few, 512).len(), 2);
    }

    #[test]
    fn a_latency_that_none_is_is_refused() {
        let shapes = pair_shapes(&shape(), &Cut::Whole(Side::First), 32);
        assert_eq!(shapes.len(), 1);
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
