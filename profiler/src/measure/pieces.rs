//! Measuring pieces of products on two devices that share them (HeteroLLM §4.3, "real-execution mode").
//!
//! A kernel runs with its products cut in a way of the caller's, on both devices at once, and the devices' times for their
//! parts are kept: so each part is measured beside the rest, and a whole product alone. Disturbances only make a time longer,
//! so of several rounds the shortest counts; rounds go over all calls, so that a stretch of bad time hits each once.

use std::time::Duration;

use heg_spec::{Cut, CutProduct, Side};

use crate::partition::{
    CutRules, CutShape, MeasuredPair, PairShape, PieceTable, pair_cuts, pair_shapes, solve,
};
use crate::predict::TableError;

/// Two devices that run kernels together, and tell how long each took.
pub trait PairSubject {
    /// The error of a failed run.
    type Error: From<TableError>;

    /// The kernels that have products. [`Self::run`] takes an index into it.
    fn kernels(&self) -> &[PairKernel];

    /// Runs a kernel once over `tokens` tokens, with each of its products cut like the one of `cuts` at its place.
    /// Successive runs are at successive places of the model. Returns the times of products in the kernel's order; of a
    /// run in which one device took over a part of the other's there are none.
    fn run(
        &mut self,
        kernel: usize,
        tokens: u32,
        cuts: &[Cut],
    ) -> Result<Vec<Option<PieceTimes>>, Self::Error>;
}

/// A kernel with products that two devices share.
#[derive(Debug, Clone, PartialEq)]
pub struct PairKernel {
    /// Its name.
    pub name: String,
    /// Its products, in execution order.
    pub products: Vec<CutShape>,
    /// Largest number of tokens that it is called with.
    pub tokens_max: u32,
}

/// Times of the two devices for their parts of a product; `None` for one without a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceTimes {
    /// Of the first device.
    pub first: Option<Duration>,
    /// Of the second device.
    pub second: Option<Duration>,
}

/// Measures the pieces of all products, for devices that cut rows at multiples of `row_step`. After the first rounds it ends
/// when `budget` is spent.
pub fn measure_pieces<S: PairSubject>(
    subject: &mut S,
    row_step: u32,
    budget: Duration,
) -> Result<MeasuredPair, S::Error> {
    let mut found: Vec<(PairShape, f64)> = Vec::new();
    let mut spent = Duration::ZERO;
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS_MIN && spent > budget {
            break;
        }
        for (index, kernel) in subject.kernels().to_vec().iter().enumerate() {
            for tokens in token_counts(kernel.tokens_max) {
                for cuts in cuts_of(kernel, row_step) {
                    let times = subject.run(index, tokens, &cuts)?;
                    spent += times
                        .iter()
                        .flatten()
                        .map(PieceTimes::longer)
                        .sum::<Duration>();
                    let products = kernel.products.iter().zip(&cuts).zip(times);
                    for ((shape, cut), times) in products {
                        let pieces = pair_shapes(shape, cut, tokens);
                        let timed = pieces.into_iter().filter_map(|piece| {
                            let took = times?.of(piece.side)?;
                            Some((piece, took.as_secs_f64() * 1e6))
                        });
                        found.extend(timed);
                    }
                }
            }
        }
    }
    // Clocks may not tell a short time from none.
    found.retain(|(_, latency_us)| *latency_us > 0.0);
    Ok(MeasuredPair::new(found)?)
}

impl PieceTimes {
    fn of(&self, side: Side) -> Option<Duration> {
        match side {
            Side::First => self.first,
            Side::Second => self.second,
        }
    }

    fn longer(&self) -> Duration {
        self.first.max(self.second).unwrap_or_default()
    }
}

/// Each power of two up to the largest number of tokens, and that.
fn token_counts(tokens_max: u32) -> Vec<u32> {
    let powers = (0..tokens_max.max(1).ilog2() + 1).map(|power| 1 << power);
    let mut counts: Vec<u32> = powers.chain([tokens_max.max(1)]).collect();
    counts.dedup();
    counts
}

/// The cuts of a kernel's runs, one for each product: the first of each, the second of each, and so on. A product with fewer
/// cuts than another has its last ones again.
fn cuts_of(kernel: &PairKernel, row_step: u32) -> Vec<Vec<Cut>> {
    let products = kernel.products.iter();
    let each: Vec<Vec<Cut>> = products.map(|shape| pair_cuts(shape, row_step)).collect();
    let runs = each.iter().map(Vec::len).max().unwrap_or(0);
    let of_run = |run: usize| {
        let cuts = each.iter();
        let cuts = cuts.filter_map(|cuts| cuts.get(run).or(cuts.last()).cloned());
        cuts.collect()
    };
    (0..runs).map(of_run).collect()
}

/// The best cut of a product by its measured pieces.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct SolvedPieces {
    /// The product.
    pub product: CutProduct,
    /// Tokens of the call.
    pub tokens: u32,
    /// The best cut.
    pub cut: Cut,
    /// Its expected time, in µs.
    pub latency_us: f64,
    /// The same whole on the first device, in µs.
    pub first_us: Option<f64>,
    /// The same whole on the second device, in µs.
    pub second_us: Option<f64>,
}

impl SolvedPieces {
    /// The best cuts of kernels' products for a single token and for as many as a kernel takes.
    pub fn of(kernels: &[PairKernel], pieces: &[PieceTable], row_step: u32) -> Vec<Self> {
        let measured = MeasuredPair::of_tables(pieces);
        let of_kernel = |kernel: &PairKernel| {
            let mut counts = vec![1, kernel.tokens_max];
            counts.dedup();
            let of_product = |shape: &CutShape| {
                let one = |tokens: &u32| Self::one(&measured, shape, *tokens, row_step);
                counts.iter().filter_map(one).collect::<Vec<_>>()
            };
            kernel
                .products
                .iter()
                .flat_map(of_product)
                .collect::<Vec<_>>()
        };
        kernels.iter().flat_map(of_kernel).collect()
    }

    fn one(pair: &MeasuredPair, shape: &CutShape, tokens: u32, row_step: u32) -> Option<Self> {
        let rules = CutRules {
            static_tokens: &[tokens],
            row_step,
            home: Side::Second,
            hand_over_us: 0.0,
        };
        let best = solve(pair, shape, tokens, rules).ok()?;
        let [first_us, second_us] =
            [Side::First, Side::Second].map(|side| pair.whole_us(side, shape, tokens));
        Some(Self {
            product: shape.product,
            tokens,
            cut: best.cut,
            latency_us: best.latency_us,
            first_us,
            second_us,
        })
    }
}

/// Rounds over all calls, whatever they take. Chosen: of fewer than three the shortest is often a disturbed one.
const ROUNDS_MIN: usize = 3;

/// Rounds over all calls, if there is time. Chosen: after ten the shortest hardly changes.
const ROUNDS_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// Two devices. The first is three times as fast, and needs 20 µs to begin; every fourth run is disturbed.
    struct Synthetic {
        kernels: Vec<PairKernel>,
        runs: u32,
    }

    fn shape(product: CutProduct, rows: u32) -> CutShape {
        CutShape {
            product,
            rows,
            depth: 1024,
            matrices: 1,
            unit_rows: 1,
            row_bytes: 1024.0,
        }
    }

    fn truth_us(side: Side, rows: u32, tokens: u32) -> f64 {
        let work = f64::from(rows) * f64::from(tokens) / 30.0;
        match side {
            Side::First => 20.0 + work,
            Side::Second => 3.0 * work,
        }
    }

    impl PairSubject for Synthetic {
        type Error = TableError;

        fn kernels(&self) -> &[PairKernel] {
            &self.kernels
        }

        fn run(
            &mut self,
            kernel: usize,
            tokens: u32,
            cuts: &[Cut],
        ) -> Result<Vec<Option<PieceTimes>>, TableError> {
            self.runs += 1;
            let disturbed = if self.runs.is_multiple_of(4) {
                3.0
            } else {
                1.0
            };
            // Of some runs nothing is known.
            if self.runs.is_multiple_of(7) {
                return Ok(vec![None; cuts.len()]);
            }
            let products = self.kernels[kernel].products.iter();
            let times = products.zip(cuts).map(|(shape, cut)| {
                let mut times = PieceTimes {
                    first: None,
                    second: None,
                };
                for piece in pair_shapes(shape, cut, tokens) {
                    let us = truth_us(piece.side, piece.rows, tokens) * disturbed;
                    let took = Some(Duration::from_secs_f64(us / 1e6));
                    match piece.side {
                        Side::First => times.first = took,
                        Side::Second => times.second = took,
                    }
                }
                Some(times)
            });
            Ok(times.collect())
        }
    }

    fn synthetic() -> Synthetic {
        let kernel = |name: &str, products, tokens_max| PairKernel {
            name: name.to_owned(),
            products,
            tokens_max,
        };
        let (out, down) = (shape(CutProduct::Out, 512), shape(CutProduct::Down, 2048));
        Synthetic {
            kernels: vec![
                kernel("ffn", vec![out, down], 100),
                kernel("head", vec![shape(CutProduct::Head, 4096)], 4),
            ],
            runs: 0,
        }
    }

    #[test]
    fn the_cut_of_measured_pieces_is_the_best_of_a_sweep() {
        let mut subject = synthetic();
        let pair = measure_pieces(&mut subject, 16, Duration::from_secs(1)).unwrap();
        let solved = SolvedPieces::of(&subject.kernels, &pair.tables(), 16);
        assert_eq!(solved.len(), 6);
        for found in solved {
            let kernels = subject.kernels.iter();
            let mut shapes = kernels.flat_map(|kernel| &kernel.products);
            let shape = shapes.find(|it| it.product == found.product).unwrap();
            let shared = (16..shape.rows).step_by(16).map(|first| {
                let second = truth_us(Side::Second, shape.rows - first, found.tokens);
                truth_us(Side::First, first, found.tokens).max(second)
            });
            let whole =
                [Side::First, Side::Second].map(|side| truth_us(side, shape.rows, found.tokens));
            let best = shared.chain(whole).fold(f64::INFINITY, f64::min);
            assert!(found.latency_us < 1.01 * best, "{found:?}, expected {best}");
            let [first, second] = whole.map(|us| (us * 10.0).round() / 10.0);
            assert_eq!(
                (found.first_us, found.second_us),
                (Some(first), Some(second))
            );
        }
    }

    #[test]
    fn rounds_end_with_the_budget() {
        let mut subject = synthetic();
        measure_pieces(&mut subject, 16, Duration::ZERO).unwrap();
        let few = subject.runs;
        measure_pieces(&mut subject, 16, Duration::from_secs(1000)).unwrap();
        assert_eq!((subject.runs - few) * 3, few * 10);
    }

    #[test]
    fn calls_are_measured_at_powers_of_two_and_at_the_largest() {
        assert_eq!(token_counts(0), [1]);
        assert_eq!(token_counts(1), [1]);
        assert_eq!(token_counts(32), [1, 2, 4, 8, 16, 32]);
        assert_eq!(token_counts(100), [1, 2, 4, 8, 16, 32, 64, 100]);
    }
}
