//! Cuts: how two devices share one product (HeteroLLM §4.1).
//!
//! The first side has static shapes (the NPU), the second takes the rest (the GPU). Both read the same activations, and
//! each multiplies a range of the rows of the uncut weights.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One of the two devices that share a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Side {
    /// The side whose kernels have static shapes.
    First,
    /// The side that takes any shape.
    Second,
}

impl Side {
    /// The other side.
    pub const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "first",
            Self::Second => "second",
        })
    }
}

/// A product that is cut as one piece; attention counts as one, with its heads in place of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CutProduct {
    /// Queries, keys and values, by groups of heads.
    Qkv,
    /// Attention, by groups of key-value heads.
    Attention,
    /// Output projection.
    Out,
    /// Gate and up projections, the same rows of both.
    GateUp,
    /// Down projection.
    Down,
    /// Logits.
    Head,
}

impl CutProduct {
    /// All cut products, in execution order.
    pub const ALL: [Self; 6] = [
        Self::Qkv,
        Self::Attention,
        Self::Out,
        Self::GateUp,
        Self::Down,
        Self::Head,
    ];

    /// Name in tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qkv => "qkv",
            Self::Attention => "attention",
            Self::Out => "out",
            Self::GateUp => "gate-up",
            Self::Down => "down",
            Self::Head => "head",
        }
    }
}

impl fmt::Display for CutProduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The way two devices share a product.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Cut {
    /// Not cut: one side computes everything.
    Whole(Side),
    /// By output rows.
    Rows {
        /// Output rows of the first side, from row 0; the second does the rest.
        first: u32,
    },
    /// By tokens: sequence-cut with one size, multi-sequence-cut with more.
    Tokens {
        /// Static sizes on the first side, one after another from token 0; the second does the rest. If nothing is left
        /// for the second, the last size may be padded.
        sizes: Vec<u32>,
    },
    /// By output rows, with the first side's tokens at a static size.
    Hybrid {
        /// Output rows of the first side, from row 0; the second does the rest.
        first: u32,
        /// Static size of the first side, in tokens from token 0. Fewer tokens are padded; of more, the second side
        /// also computes the margin for the first side's rows.
        padded_tokens: u32,
    },
}

impl Cut {
    /// Name of the strategy.
    pub fn strategy(&self) -> &'static str {
        match self {
            Self::Whole(Side::First) => "first",
            Self::Whole(Side::Second) => "second",
            Self::Rows { .. } => "row",
            Self::Tokens { sizes } if sizes.len() == 1 => "sequence",
            Self::Tokens { .. } => "multi-sequence",
            Self::Hybrid { .. } => "hybrid",
        }
    }

    /// Whether both sides take part, so that a join has to wait for both.
    pub const fn is_shared(&self) -> bool {
        !matches!(self, Self::Whole(_))
    }

    /// Output rows of the first side if the cut is by rows.
    pub const fn first_rows(&self) -> Option<u32> {
        match self {
            Self::Rows { first } | Self::Hybrid { first, .. } => Some(*first),
            Self::Whole(_) | Self::Tokens { .. } => None,
        }
    }

    /// Returns (output rows, tokens) of each piece of a product of `rows` rows over `tokens` tokens, for the first and
    /// the second side. A first side that has the whole product computes `padded_tokens`.
    pub fn pieces(&self, rows: u32, tokens: u32, padded_tokens: u32) -> [Vec<(u32, u32)>; 2] {
        let mut sides = match self {
            Self::Whole(Side::First) => [vec![(rows, padded_tokens)], Vec::new()],
            Self::Whole(Side::Second) => [Vec::new(), vec![(rows, tokens)]],
            Self::Rows { first } => {
                let rest = rows.saturating_sub(*first);
                [vec![(*first, tokens)], vec![(rest, tokens)]]
            }
            Self::Hybrid {
                first,
                padded_tokens,
            } => {
                let rest = (rows.saturating_sub(*first), tokens);
                let margin = (*first, tokens.saturating_sub(*padded_tokens));
                [vec![(*first, *padded_tokens)], vec![rest, margin]]
            }
            Self::Tokens { sizes } => {
                let done = sizes.iter().copied().fold(0, u32::saturating_add);
                let first = sizes.iter().map(|size| (rows, *size)).collect();
                [first, vec![(rows, tokens.saturating_sub(done))]]
            }
        };
        for side in &mut sides {
            side.retain(|(rows, tokens)| *rows > 0 && *tokens > 0);
        }
        sides
    }

    /// The cut of a product of `rows` rows over `tokens` tokens for the same two devices with their sides exchanged: each
    /// does as much as before. A margin that one side does beside its rows is given to the other.
    #[must_use]
    pub fn mirrored(&self, rows: u32, tokens: u32) -> Self {
        match self {
            Self::Whole(side) => Self::Whole(side.other()),
            Self::Rows { first } | Self::Hybrid { first, .. } => Self::Rows {
                first: rows.saturating_sub(*first),
            },
            Self::Tokens { sizes } => {
                let done = sizes.iter().copied().fold(0, u32::saturating_add);
                match tokens.saturating_sub(done) {
                    0 => Self::Whole(Side::Second),
                    rest => Self::Tokens { sizes: vec![rest] },
                }
            }
        }
    }

    /// Checks that the cut fits a product of `rows` output rows over `tokens` tokens. A side takes whole steps of
    /// `row_step` rows; the last step may be shorter and belongs to the second side.
    pub fn check(&self, rows: u32, tokens: u32, row_step: u32) -> Result<(), CutMisfit> {
        if let Some(first) = self.first_rows() {
            if first == 0 || first >= rows {
                return Err(CutMisfit::Rows { first, rows });
            }
            if row_step == 0 || first % row_step != 0 {
                return Err(CutMisfit::RowStep { first, row_step });
            }
        }
        match self {
            Self::Hybrid {
                padded_tokens: 0, ..
            } => Err(CutMisfit::Tokens {
                sizes: vec![0],
                tokens,
            }),
            Self::Tokens { sizes } => {
                let rest = sizes.split_last().map_or(&[][..], |(_, rest)| rest);
                let before: u64 = rest.iter().copied().map(u64::from).sum();
                match sizes.is_empty() || sizes.contains(&0) || before >= u64::from(tokens) {
                    true => Err(CutMisfit::Tokens {
                        sizes: sizes.clone(),
                        tokens,
                    }),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Whole(side) => format!("whole on the {side}"),
            Self::Rows { first } => format!("{first} rows on the first"),
            Self::Tokens { sizes } => {
                let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
                format!("{} tokens on the first", sizes.join("+"))
            }
            Self::Hybrid {
                first,
                padded_tokens,
            } => format!("{first} rows of {padded_tokens} tokens on the first"),
        };
        f.pad(&text)
    }
}

/// Outputs at whose multiples a matrix is cut between CPU programs and another device. Chosen: eight outputs of any element
/// type, and their scales, are whole words.
pub const DEVICE_STEP: usize = 8;

/// The first outputs of one of a product's matrices, of `width`, that the first side has if it has `first` of all `rows` of
/// the product: each matrix is cut at the same ratio, at a multiple of `step`.
pub const fn matrix_outputs(first: usize, rows: usize, width: usize, step: usize) -> usize {
    if rows == 0 || first >= rows {
        return width;
    }
    width * first / rows / step * step
}

/// A cut that does not fit its product.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CutMisfit {
    /// A side would have no row.
    #[error(
        "expected a row-cut that leaves rows to both sides of {rows}, found {first} on the first"
    )]
    Rows {
        /// Output rows of the first side.
        first: u32,
        /// Output rows of the product.
        rows: u32,
    },
    /// The cut falls inside a head or a tile.
    #[error("expected a row-cut at a multiple of {row_step} rows, found {first}")]
    RowStep {
        /// Output rows of the first side.
        first: u32,
        /// Rows that stay together.
        row_step: u32,
    },
    /// The static sizes are empty, hold a 0, or have one more than the tokens need.
    #[error(
        "expected static sizes above 0 of which all are needed for {tokens} tokens, found {sizes:?}"
    )]
    Tokens {
        /// Static sizes of the first side.
        sizes: Vec<u32>,
        /// Tokens of the call.
        tokens: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(sizes: &[u32]) -> Cut {
        Cut::Tokens {
            sizes: sizes.to_vec(),
        }
    }

    #[test]
    fn each_cut_reads_as_it_is_written() {
        let cuts = [
            (
                Cut::Whole(Side::Second),
                "Whole(Second)",
                "whole on the second",
            ),
            (
                Cut::Rows { first: 512 },
                "Rows(first:512)",
                "512 rows on the first",
            ),
            (
                tokens(&[256]),
                "Tokens(sizes:[256])",
                "256 tokens on the first",
            ),
            (
                tokens(&[512, 32]),
                "Tokens(sizes:[512,32])",
                "512+32 tokens on the first",
            ),
            (
                Cut::Hybrid {
                    first: 768,
                    padded_tokens: 64,
                },
                "Hybrid(first:768,padded_tokens:64)",
                "768 rows of 64 tokens on the first",
            ),
        ];
        for (cut, ron, shown) in cuts {
            assert_eq!(ron::to_string(&cut).unwrap(), ron);
            assert_eq!(ron::from_str::<Cut>(ron).unwrap(), cut);
            assert_eq!(cut.to_string(), shown);
        }
        assert!(ron::from_str::<Cut>("Rows(second:512)").is_err());
    }

    #[test]
    fn a_mirrored_cut_gives_each_device_as_much() {
        let hybrid = |padded_tokens| Cut::Hybrid {
            first: 96,
            padded_tokens,
        };
        let rows = |first| Cut::Rows { first };
        for (cut, mirrored) in [
            (Cut::Whole(Side::Second), Cut::Whole(Side::First)),
            (rows(96), rows(160)),
            (tokens(&[32, 8]), tokens(&[10])),
            (tokens(&[32, 32]), Cut::Whole(Side::Second)),
            (hybrid(64), rows(160)),
            // The margin of 96 rows changes the device.
            (hybrid(32), rows(160)),
        ] {
            assert_eq!(cut.mirrored(256, 50), mirrored, "{cut}");
        }
    }

    #[test]
    fn a_strategy_follows_from_the_cut() {
        let hybrid = Cut::Hybrid {
            first: 256,
            padded_tokens: 32,
        };
        let cuts = [
            Cut::Whole(Side::First),
            Cut::Rows { first: 256 },
            tokens(&[32]),
            tokens(&[64, 32]),
            hybrid,
        ];
        let names: Vec<&str> = cuts.iter().map(Cut::strategy).collect();
        assert_eq!(
            names,
            ["first", "row", "sequence", "multi-sequence", "hybrid"]
        );
        let shared: Vec<bool> = cuts.iter().map(Cut::is_shared).collect();
        assert_eq!(shared, [false, true, true, true, true]);
        assert_eq!(Side::First.other(), Side::Second);
    }

    #[test]
    fn pieces_are_the_whole_product() {
        let hybrid = |padded_tokens| Cut::Hybrid {
            first: 256,
            padded_tokens,
        };
        let cases = [
            (Cut::Whole(Side::First), 31, vec![(1024, 32)], vec![]),
            (Cut::Whole(Side::Second), 31, vec![], vec![(1024, 31)]),
            (
                Cut::Rows { first: 256 },
                32,
                vec![(256, 32)],
                vec![(768, 32)],
            ),
            (
                tokens(&[64, 32]),
                100,
                vec![(1024, 64), (1024, 32)],
                vec![(1024, 4)],
            ),
            (tokens(&[64, 32]), 90, vec![(1024, 64), (1024, 32)], vec![]),
            (hybrid(32), 31, vec![(256, 32)], vec![(768, 31)]),
            (hybrid(32), 40, vec![(256, 32)], vec![(768, 40), (256, 8)]),
        ];
        for (cut, tokens, first, second) in cases {
            assert_eq!(cut.pieces(1024, tokens, 32), [first, second], "{cut}");
        }
    }

    #[test]
    fn a_cut_fits_its_product_or_says_why_not() {
        let rows = |first| Cut::Rows { first };
        assert_eq!(rows(512).check(1024, 1, 256), Ok(()));
        assert_eq!(Cut::Whole(Side::First).check(1024, 1, 256), Ok(()));
        assert_eq!(tokens(&[256, 32]).check(1024, 288, 256), Ok(()));
        assert_eq!(tokens(&[256, 32]).check(1024, 260, 256), Ok(()));
        let hybrid = |padded_tokens| Cut::Hybrid {
            first: 256,
            padded_tokens,
        };
        assert_eq!(hybrid(32).check(1024, 31, 256), Ok(()));
        assert_eq!(hybrid(32).check(1024, 33, 256), Ok(()));
        let why = |cut: Cut, tokens| cut.check(1024, tokens, 256).unwrap_err().to_string();
        insta::assert_snapshot!([
            why(rows(1024), 1),
            why(rows(0), 1),
            why(rows(300), 1),
            why(tokens(&[256, 32]), 256),
            why(tokens(&[]), 287),
            why(hybrid(0), 33),
        ].join("\n"), @"
        expected a row-cut that leaves rows to both sides of 1024, found 1024 on the first
        expected a row-cut that leaves rows to both sides of 1024, found 0 on the first
        expected a row-cut at a multiple of 256 rows, found 300
        expected static sizes above 0 of which all are needed for 256 tokens, found [256, 32]
        expected static sizes above 0 of which all are needed for 287 tokens, found []
        expected static sizes above 0 of which all are needed for 33 tokens, found [0]
        ");
    }
}
