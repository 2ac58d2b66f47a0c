//! The calls of a case that are measured: a grid over (c, n), made denser where interpolation fails.
//!
//! Plugins cut rows into blocks, so that latency jumps where a block is full. Powers of two are multiples of any usual
//! block size, so each is measured together with its successor; steps elsewhere are found by bisecting the intervals
//! whose middle was mispredicted.

use super::{Case, Settled};
use crate::predict::{CallShape, LatencyTable};

/// The calls that are measured first, ascending.
pub(super) fn first(case: &Case) -> Vec<CallShape> {
    if let Some(call) = CallShape::of_static(case.shape) {
        return vec![call];
    }
    let rows = token_sizes(case.tokens_max);
    rows.into_iter()
        .flat_map(|tokens| row(case, tokens))
        .collect()
}

/// All calls with `tokens` tokens.
fn row(case: &Case, tokens: u32) -> Vec<CallShape> {
    context_sizes(case, tokens)
        .into_iter()
        .map(|context| CallShape { tokens, context })
        .collect()
}

/// Powers of two up to `max`, successors of the larger ones, and `max` itself.
fn token_sizes(max: u32) -> Vec<u32> {
    let powers = (0..u32::BITS).map(|exponent| 1_u32 << exponent);
    let mut sizes: Vec<u32> = powers
        .take_while(|power| *power < max)
        .flat_map(|power| {
            let successor = (power >= BLOCK_MIN && power + 1 < max).then_some(power + 1);
            std::iter::once(power).chain(successor)
        })
        .chain([max.max(1)])
        .collect();
    sizes.dedup();
    sizes
}

/// The values of n for a c: from the shortest context that has room for it to the longest, each four times the previous
/// one. A single 0 if n does not matter.
fn context_sizes(case: &Case, tokens: u32) -> Vec<u32> {
    if case.context_max == 0 {
        return vec![0];
    }
    let step = case.context_step.max(1);
    let longest = case.context_max.max(1).next_multiple_of(step);
    let shortest = tokens.next_multiple_of(step).min(longest);
    let mut sizes = vec![shortest];
    // The same n for all c that allow them, so that rows can be compared.
    let mut common = step;
    while common < longest {
        if common >= shortest.saturating_mul(2) {
            sizes.push(common);
        }
        common = common.saturating_mul(CONTEXT_FACTOR);
    }
    if longest > shortest {
        sizes.push(longest);
    }
    sizes
}

/// The middles of intervals between rows of `table`. Intervals that are narrow enough have none.
pub(super) fn middles(table: &LatencyTable, intervals: &[(u32, u32)]) -> Vec<CallShape> {
    let middle = |(low, high): &(u32, u32)| {
        let gap = high - low;
        if gap <= 1 || f64::from(gap) < f64::from(*low) * GAP_MIN {
            return None;
        }
        // The geometric mean; both ends are known.
        let tokens = (f64::from(*low) * f64::from(*high)).sqrt().round() as u32;
        Some(CallShape {
            tokens: tokens.clamp(low + 1, high - 1),
            context: widest_common(table, *low, *high)?,
        })
    };
    intervals.iter().filter_map(middle).collect()
}

/// Adjacent rows of a table.
pub(super) fn intervals(table: &LatencyTable) -> Vec<(u32, u32)> {
    let mut tokens: Vec<u32> = table
        .entries()
        .iter()
        .map(|(call, _)| call.tokens)
        .collect();
    tokens.dedup();
    tokens.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

/// Additions to the grid that follow from the middles of intervals.
pub(super) struct Denser {
    /// Calls to measure as well: the other contexts of mispredicted middles.
    pub(super) calls: Vec<CallShape>,
    /// Intervals whose middles are to be checked next.
    pub(super) intervals: Vec<(u32, u32)>,
    /// Middles that were predicted correctly.
    confirmed: Vec<CallShape>,
    has_context: bool,
}

impl Denser {
    /// Whether a middle becomes part of the table. One that only confirms the prediction for its row's longest context
    /// does not: the row's other contexts would have to be derived from it alone.
    pub(super) fn keeps(&self, middle: CallShape) -> bool {
        !(self.has_context && self.confirmed.contains(&middle))
    }
}

/// Compares the middles with the predictions of `table`.
pub(super) fn denser(
    case: &Case,
    table: &LatencyTable,
    middles: &[Settled],
    intervals: &[(u32, u32)],
    tolerance: f64,
) -> Denser {
    let mut denser = Denser {
        calls: Vec::new(),
        intervals: Vec::new(),
        confirmed: Vec::new(),
        has_context: case.context_max > 0,
    };
    for Settled {
        call, latency_us, ..
    } in middles
    {
        let predicted_us = table.latency_us(*call, |at| at.flops(&case.work));
        if (predicted_us / latency_us - 1.0).abs() <= tolerance {
            denser.confirmed.push(*call);
            continue;
        }
        let row = row(case, call.tokens).into_iter();
        denser.calls.extend(row.filter(|other| other != call));
        let around = intervals
            .iter()
            .filter(|(low, high)| *low < call.tokens && call.tokens < *high);
        denser
            .intervals
            .extend(around.flat_map(|(low, high)| [(*low, call.tokens), (call.tokens, *high)]));
    }
    denser
}

/// The largest n that both rows have, where the work of the tokens counts most.
fn widest_common(table: &LatencyTable, one: u32, other: u32) -> Option<u32> {
    let of = |tokens: u32| {
        let entries = table.entries().iter();
        entries.filter(move |(call, _)| call.tokens == tokens)
    };
    of(one)
        .map(|(call, _)| call.context)
        .filter(|context| of(other).any(|(call, _)| call.context == *context))
        .max()
}

/// Smallest row block that any plugin uses. Chosen.
const BLOCK_MIN: u32 = 16;

/// Ratio between neighbouring n: latency is linear in n, so few n are enough. Chosen.
const CONTEXT_FACTOR: u32 = 4;

/// Smallest interval that is bisected, as a share of its lower end. Chosen: a step within a narrower one affects a few
/// calls in a hundred.
const GAP_MIN: f64 = 0.04;

#[cfg(test)]
mod tests {
    use heg_artifacts::manifest::ShapeClass;

    use super::*;
    use crate::measure::synthetic;

    #[test]
    fn token_wise_kernels_get_a_line() {
        let case = synthetic::case("ffn", 100, 0);
        let tokens: Vec<u32> = first(&case).iter().map(|call| call.tokens).collect();
        assert_eq!(tokens, [1, 2, 4, 8, 16, 17, 32, 33, 64, 65, 100]);
        assert!(first(&case).iter().all(|call| call.context == 0));
    }

    #[test]
    fn attention_gets_a_ragged_grid() {
        let case = synthetic::case("mha", 128, 2048);
        let calls = first(&case);
        assert!(calls.is_sorted() && calls.len() < 70, "{}", calls.len());
        assert!(calls.iter().all(|call| call.context >= call.tokens));
        assert!(calls.iter().all(|call| call.context % 32 == 0));
        let row = |tokens| {
            let calls = calls.iter().filter(move |call| call.tokens == tokens);
            calls.map(|call| call.context).collect::<Vec<_>>()
        };
        assert_eq!(row(1), [32, 128, 512, 2048]);
        assert_eq!(row(128), [128, 512, 2048]);
    }

    #[test]
    fn a_static_variant_gets_its_one_call() {
        let mut case = synthetic::case("mha", 128, 2048);
        case.shape = ShapeClass::Bucket {
            tokens: 64,
            context: 1024,
        };
        let call = CallShape {
            tokens: 64,
            context: 1024,
        };
        assert_eq!(first(&case), [call]);
    }

    #[test]
    fn small_limits_are_kept() {
        for max in 1..40 {
            let calls = first(&synthetic::case("mha", max, 40));
            assert!(calls.is_sorted_by(|a, b| a < b), "{calls:?}");
            assert!(
                calls
                    .iter()
                    .all(|call| call.tokens <= max && call.context <= 64)
            );
        }
    }
}
