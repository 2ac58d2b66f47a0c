//! Division of a phase between the two sides of a pair: by tokens, by output rows of products and heads of attention,
//! or by both.
//!
//! A row's result depends on no other row, and an output on no other output, so a division changes no bit. A device
//! with one side gives all work to the first.

use std::ops::Range;

use heg_spec::{Cut, CutProduct, Side, matrix_outputs};

use crate::part_clock::PartTimes;

/// One product, attention or row step, before it is divided between the sides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkItem {
    /// The product or attention; `None` for steps on single rows.
    pub product: Option<CutProduct>,
    /// Output rows that a cut by rows divides: of queries, keys and values together; of gate and up each; of attention,
    /// the key-value heads. 0 for steps on single rows.
    pub rows: usize,
    /// Columns of the product's matrices; 0 if it has none.
    pub columns: usize,
    /// Number of tokens in the call.
    pub tokens: usize,
    /// Time of a multiply-add on each side, in ns: measured for this product in calls of few or of many rows. Before the
    /// first measurement both are 1.
    pub times: [f64; 2],
    /// Time that a part on each side takes beside its work, in ns: to reach another device, and back. Measured; 0 for CPU
    /// programs.
    pub hand_over_ns: [f64; 2],
    /// The side to give all of the work, because that is faster or has to be measured; `None`: both share it.
    pub alone: Option<Side>,
}

/// Policy by which the sides of a pair share work.
pub trait Partition: Send {
    /// Chooses the cut of `work`. Steps on single rows have no output rows: a cut by rows gives them to the first side.
    fn cut(&self, work: WorkItem) -> Cut;

    /// Whether it cuts some work by the speeds of the run, so that a partner that gets nothing of it is measured now and then.
    fn follows_speeds(&self, _: WorkItem) -> bool {
        false
    }

    /// Number of the rules that it cuts by at present; it has another one under others. Beside a partner that got nothing of
    /// some orders, further ones of the kind may run without a cut.
    fn rules(&self) -> u32 {
        0
    }

    /// Whether it is told how long parts took. That costs two looks at the clock for each piece.
    fn is_told(&self) -> bool {
        false
    }

    /// Is told how long the sides took for a product of an order that ran.
    fn ran(&self, _: PartTimes) {}
}

/// A divided phase: the first side has the first outputs of the first tokens, the second everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Division {
    /// Output rows assigned to the first side, out of `of`. `of == 0`: rows are not divided.
    pub(crate) first: usize,
    pub(crate) of: usize,
    /// Tokens assigned to the first side.
    pub(crate) tokens: usize,
    /// Outputs at whose multiples each matrix is cut.
    pub(crate) step: usize,
}

/// A rectangle of outputs and tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) outputs: Range<usize>,
    pub(crate) tokens: Range<usize>,
}

/// Most areas of a side: the second side's work is an L of two.
pub(crate) const AREAS: usize = 2;

impl Division {
    /// The division that a cut describes, clamped to the work. A side may get nothing.
    pub(crate) fn of(cut: &Cut, work: WorkItem) -> Self {
        let first = match cut {
            Cut::Rows { first } | Cut::Hybrid { first, .. } => work.rows.min(*first as usize),
            Cut::Whole(_) | Cut::Tokens { .. } => work.rows,
        };
        let tokens = match cut {
            Cut::Whole(Side::First) | Cut::Rows { .. } => work.tokens,
            Cut::Whole(Side::Second) => 0,
            Cut::Tokens { sizes } => sizes.iter().map(|size| *size as usize).sum(),
            Cut::Hybrid { padded_tokens, .. } => *padded_tokens as usize,
        };
        Self {
            first,
            of: work.rows,
            tokens: work.tokens.min(tokens),
            step: 1,
        }
    }

    /// Everything on the first side.
    pub(crate) const fn whole(work: &WorkItem) -> Self {
        Self {
            first: work.rows,
            of: work.rows,
            tokens: work.tokens,
            step: 1,
        }
    }

    /// The division with each matrix cut at multiples of `step` outputs, or not at all.
    pub(crate) const fn in_steps(self, step: usize) -> Self {
        Self { step, ..self }
    }

    /// Whether a side has nothing of work over `tokens` tokens, which has outputs that can be divided.
    pub(crate) fn is_nothing(self, side: Side, tokens: usize) -> bool {
        let areas = (0..AREAS).map(|number| self.area(side, number, self.of, tokens));
        areas
            .into_iter()
            .all(|area| area.outputs.is_empty() || area.tokens.is_empty())
    }

    /// The tokens of a side, for steps on single rows.
    pub(crate) fn rows(self, side: Side, tokens: usize) -> Range<usize> {
        let first = tokens.min(self.tokens);
        match side {
            Side::First => 0..first,
            Side::Second => first..tokens,
        }
    }

    /// Area `number` of a side, of a matrix or set of heads with `width` outputs, in a call of `tokens` tokens. It may
    /// be empty.
    pub(crate) fn area(self, side: Side, number: usize, width: usize, tokens: usize) -> Area {
        let own = matrix_outputs(self.first, self.of, width, self.step);
        let (outputs, tokens) = match (side, number) {
            (Side::First, 0) => (0..own, self.rows(side, tokens)),
            (Side::Second, 0) => (own..width, 0..tokens),
            (Side::Second, 1) => (0..own, self.rows(side, tokens)),
            _ => (0..0, 0..0),
        };
        Area { outputs, tokens }
    }
}

/// Index of a side in an array of two.
pub(crate) const fn index(side: Side) -> usize {
    match side {
        Side::First => 0,
        Side::Second => 1,
    }
}

/// Both sides, by index.
pub(crate) const SIDES: [Side; 2] = [Side::First, Side::Second];

#[cfg(test)]
mod tests {
    use super::*;

    fn work(rows: usize, tokens: usize) -> WorkItem {
        WorkItem {
            product: None,
            rows,
            columns: 0,
            tokens,
            times: [1.0; 2],
            hand_over_ns: [0.0; 2],
            alone: None,
        }
    }

    #[test]
    fn a_hybrid_cut_leaves_the_second_side_rows_and_a_margin() {
        let areas = |first, padded_tokens| {
            let cut = Cut::Hybrid {
                first,
                padded_tokens,
            };
            let division = Division::of(&cut, work(96, 40));
            let of = |side, number| {
                let Area { outputs, tokens } = division.area(side, number, 96, 40);
                (outputs.len(), tokens.len())
            };
            let all = [(Side::First, 0), (Side::Second, 0), (Side::Second, 1)];
            all.map(|(side, number)| of(side, number))
        };
        assert_eq!(areas(64, 32), [(64, 32), (32, 40), (64, 8)]);
        // With padding there is no margin, and with all rows nothing beside it.
        assert_eq!(areas(64, 48), [(64, 40), (32, 40), (64, 0)]);
        assert_eq!(areas(96, 32), [(96, 32), (0, 40), (96, 8)]);
    }

    #[test]
    fn every_output_of_every_token_is_one_sides() {
        let cuts = [
            Cut::Whole(Side::First),
            Cut::Whole(Side::Second),
            Cut::Rows { first: 7 },
            Cut::Rows { first: 4000 },
            Cut::Tokens {
                sizes: vec![32, 16],
            },
            Cut::Tokens { sizes: vec![512] },
            Cut::Hybrid {
                first: 0,
                padded_tokens: 64,
            },
            Cut::Hybrid {
                first: 70,
                padded_tokens: 32,
            },
        ];
        for cut in cuts {
            for (rows, tokens) in [(96, 50), (5, 1), (0, 9)] {
                let division = Division::of(&cut, work(rows, tokens));
                // Also for matrices of a third and two thirds of the rows.
                for width in [rows, rows / 3, rows - rows / 3] {
                    let mut owners = vec![0; width.max(1) * tokens];
                    let areas = SIDES
                        .into_iter()
                        .flat_map(|side| (0..AREAS).map(move |number| (side, number)));
                    for (side, number) in areas {
                        let area = division.area(side, number, width.max(1), tokens);
                        for token in area.tokens {
                            let outputs = area.outputs.clone();
                            outputs.for_each(|output| owners[token * width.max(1) + output] += 1);
                        }
                    }
                    assert!(owners.iter().all(|owners| *owners == 1), "{cut}");
                }
            }
        }
    }
}
