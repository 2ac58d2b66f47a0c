//! How the two sides of a device share a phase: by its tokens, by outputs of products and heads of attention, or by both.
//!
//! A row's result does not depend on the rows beside it, nor an output on the outputs beside it, so a division changes no
//! bit. Of a device with one side all is the first's.

use std::ops::Range;

use heg_spec::{Cut, CutProduct, Side};

/// Work before it is cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Uncut {
    /// The product or attention; none for steps on single rows.
    pub product: Option<CutProduct>,
    /// Output rows that a row-cut divides: those of queries, keys and values together, of gate and up each, of attention
    /// the key-value heads. 0 for steps on single rows, which have none.
    pub rows: usize,
    /// Columns of the product's matrices; 0 where there are none.
    pub columns: usize,
    /// Tokens of the call.
    pub tokens: usize,
    /// Time of the same work on each side, in any unit: as measured for this product in calls of few rows or of many, and
    /// before that by what the sides are.
    pub times: [f64; 2],
    /// The side that is to do all of it, because it takes longer shared, or to find out whether it does.
    pub alone: Option<Side>,
}

/// Says how the sides of a pair share work.
pub trait Partition: Send {
    /// The cut of some work. Steps on single rows have no output rows to be cut by: the first side does them whole where
    /// they are cut so.
    fn cut(&self, work: Uncut) -> Cut;
}

/// A phase as both sides share it: the first has the first outputs of the first tokens, the second all else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Division {
    /// Outputs of the first side, of so many; of none, it has all of its tokens.
    pub(crate) first: usize,
    pub(crate) of: usize,
    /// Tokens of the first side.
    pub(crate) tokens: usize,
}

/// Some outputs of some tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) outputs: Range<usize>,
    pub(crate) tokens: Range<usize>,
}

/// Areas of a side at most: the second one has what is left beside those of the first, and below.
pub(crate) const AREAS: usize = 2;

impl Division {
    /// What a cut comes to. One that leaves a side nothing is no mistake: every output is somebody's.
    pub(crate) fn of(cut: &Cut, work: Uncut) -> Self {
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
        }
    }

    /// All on the first side.
    pub(crate) const fn whole(work: &Uncut) -> Self {
        Self {
            first: work.rows,
            of: work.rows,
            tokens: work.tokens,
        }
    }

    /// Times as long as the first side's part takes because of static shapes: above 1 where the cut pads its tokens. Programs
    /// take any number of them, so a side that plays a device with such shapes waits as long as that would compute.
    pub(crate) fn padding(cut: &Cut, work: Uncut) -> f64 {
        let (padded, tokens) = match cut {
            Cut::Tokens { sizes } => {
                let padded: usize = sizes.iter().map(|size| *size as usize).sum();
                (padded, padded.min(work.tokens))
            }
            Cut::Hybrid { padded_tokens, .. } => (*padded_tokens as usize, work.tokens),
            Cut::Whole(_) | Cut::Rows { .. } => return 1.0,
        };
        (padded as f64 / tokens.max(1) as f64).max(1.0)
    }

    /// A side's tokens, of those of a call, where steps are on single rows.
    pub(crate) fn rows(self, side: Side, tokens: usize) -> Range<usize> {
        let first = tokens.min(self.tokens);
        match side {
            Side::First => 0..first,
            Side::Second => first..tokens,
        }
    }

    /// One of a side's areas, of the outputs of one matrix, or heads, and the tokens of a call. Some are empty.
    pub(crate) fn area(self, side: Side, number: usize, width: usize, tokens: usize) -> Area {
        let own = match self.of {
            0 => width,
            // Of several matrices each is cut at the same share.
            of => width * self.first / of,
        };
        let (outputs, tokens) = match (side, number) {
            (Side::First, 0) => (0..own, self.rows(side, tokens)),
            (Side::Second, 0) => (own..width, 0..tokens),
            (Side::Second, 1) => (0..own, self.rows(side, tokens)),
            _ => (0..0, 0..0),
        };
        Area { outputs, tokens }
    }
}

/// Number of a side, where there is one of something for each.
pub(crate) const fn index(side: Side) -> usize {
    match side {
        Side::First => 0,
        Side::Second => 1,
    }
}

/// Both sides, by number.
pub(crate) const SIDES: [Side; 2] = [Side::First, Side::Second];

#[cfg(test)]
mod tests {
    use super::*;

    fn work(rows: usize, tokens: usize) -> Uncut {
        Uncut {
            product: None,
            rows,
            columns: 0,
            tokens,
            times: [1.0; 2],
            alone: None,
        }
    }

    #[test]
    fn padding_is_what_static_sizes_hold_beyond_the_tokens() {
        let hybrid = |padded_tokens| Cut::Hybrid {
            first: 7,
            padded_tokens,
        };
        let tokens = |sizes: &[u32]| Cut::Tokens {
            sizes: sizes.to_vec(),
        };
        let padding = |cut: Cut| Division::padding(&cut, work(96, 48));
        assert_eq!(padding(hybrid(64)), 64.0 / 48.0);
        assert_eq!(padding(hybrid(32)), 1.0);
        assert_eq!(padding(tokens(&[32])), 1.0);
        assert_eq!(padding(tokens(&[32, 32])), 64.0 / 48.0);
        assert_eq!(padding(tokens(&[])), 1.0);
        assert_eq!(padding(Cut::Whole(Side::First)), 1.0);
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
        // Padded, there is no margin, and with all rows nothing beside it.
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
                // Of matrices of a third and two thirds of the rows, too.
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
