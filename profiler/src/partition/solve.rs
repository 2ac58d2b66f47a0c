//! The solver of HeteroLLM §4.3 for one product: every cut is priced, and the cheapest wins.
//!
//! Row-cuts are few (a step is hundreds of rows). Multisets of static sizes are many, but all of one total are equal to
//! the second side, so that only the cheapest of each total counts; that one is found as change is made of coins.

use heg_spec::{Cut, Side};

use super::{Company, CutPiece, CutShape, PairLatencies, PartitionError};

/// Rules by which cuts are chosen, beside latencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CutRules<'r> {
    /// Static sizes of the first side, in tokens, ascending.
    pub static_tokens: &'r [u32],
    /// Output rows at whose multiples products are cut; see [`CutShape::row_step`].
    pub row_step: u32,
    /// The side that does what lies between products: a product that is whole there needs no hand-over.
    pub home: Side,
    /// Cost of giving a product, or a part of it, away from home and getting the result back, in µs.
    pub hand_over_us: f64,
}

/// The best cut of a product.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// The cut.
    pub cut: Cut,
    /// Its latency in µs, hand-over included.
    pub latency_us: f64,
}

/// The cheapest cut of a product over `tokens` tokens; of equal ones the first of: whole at home, whole away, by rows, by
/// tokens.
///
/// Errors: [`PartitionError::Unknown`] where no cut has a latency, [`PartitionError::Absurd`] for a latency that none is,
/// [`PartitionError::Empty`], [`PartitionError::HandOver`].
pub fn solve(
    latencies: &impl PairLatencies,
    shape: &CutShape,
    tokens: u32,
    rules: CutRules<'_>,
) -> Result<Solution, PartitionError> {
    let CutShape {
        product,
        rows,
        depth,
        ..
    } = *shape;
    if rows == 0 || depth == 0 || tokens == 0 {
        return Err(PartitionError::Empty {
            product,
            rows,
            depth,
            tokens,
        });
    }
    let found = rules.hand_over_us;
    if !(found.is_finite() && found >= 0.0) {
        return Err(PartitionError::HandOver { found });
    }
    let search = Search {
        latencies,
        shape,
        tokens,
        rules,
    };
    let mut best = None;
    search.whole(&mut best)?;
    search.by_rows(&mut best)?;
    search.by_tokens(&mut best)?;
    best.ok_or(PartitionError::Unknown { product, tokens })
}

struct Search<'s, L> {
    latencies: &'s L,
    shape: &'s CutShape,
    tokens: u32,
    rules: CutRules<'s>,
}

impl<L: PairLatencies> Search<'_, L> {
    /// A piece's latency, if it has one.
    fn piece(
        &self,
        side: Side,
        rows: u32,
        tokens: u32,
        company: Company,
    ) -> Result<Option<f64>, PartitionError> {
        let shape = self.shape;
        let piece = CutPiece {
            shape,
            rows,
            tokens,
        };
        match self.latencies.piece_us(side, piece, company) {
            Some(found) if !(found.is_finite() && found > 0.0) => Err(PartitionError::Absurd {
                product: shape.product,
                rows,
                tokens,
                side,
                found,
            }),
            found => Ok(found),
        }
    }

    /// The smallest static size that has room for all tokens.
    fn padded(&self) -> Option<u32> {
        let sizes = self.rules.static_tokens.iter().copied();
        sizes.filter(|size| *size >= self.tokens).min()
    }

    fn offer(&self, best: &mut Option<Solution>, cut: Cut, pieces_us: f64) {
        let at_home = cut == Cut::Whole(self.rules.home);
        let latency_us = pieces_us
            + if at_home {
                0.0
            } else {
                self.rules.hand_over_us
            };
        if best
            .as_ref()
            .is_none_or(|best| latency_us < best.latency_us)
        {
            *best = Some(Solution { cut, latency_us });
        }
    }

    fn whole(&self, best: &mut Option<Solution>) -> Result<(), PartitionError> {
        let home = self.rules.home;
        for side in [home, home.other()] {
            let tokens = match side {
                Side::First => self.padded(),
                Side::Second => Some(self.tokens),
            };
            let Some(tokens) = tokens else { continue };
            let rows = self.shape.rows;
            if let Some(us) = self.piece(side, rows, tokens, Company::Alone)? {
                self.offer(best, Cut::Whole(side), us);
            }
        }
        Ok(())
    }

    fn by_rows(&self, best: &mut Option<Solution>) -> Result<(), PartitionError> {
        let rows = self.shape.rows;
        let step = self.shape.row_step(self.rules.row_step);
        let sizes = self.rules.static_tokens.iter().copied();
        let smaller = sizes.filter(|size| *size > 0 && *size < self.tokens);
        for size in self.padded().into_iter().chain(smaller) {
            for first in (step..rows).step_by(step as usize) {
                let own = self.piece(Side::First, first, size, Company::Beside)?;
                let others = self.around(first, size)?;
                let (Some(own), Some(others)) = (own, others) else {
                    continue;
                };
                let cut = match size == self.tokens {
                    true => Cut::Rows { first },
                    false => Cut::Hybrid {
                        first,
                        padded_tokens: size,
                    },
                };
                self.offer(best, cut, own.max(others));
            }
        }
        Ok(())
    }

    /// The second side's part where the first has `first` rows of `size` tokens: the other rows, and the margin of these.
    fn around(&self, first: u32, size: u32) -> Result<Option<f64>, PartitionError> {
        let rest = self.shape.rows - first;
        let rows = self.piece(Side::Second, rest, self.tokens, Company::Beside)?;
        if size >= self.tokens {
            return Ok(rows);
        }
        let margin = self.piece(Side::Second, first, self.tokens - size, Company::Beside)?;
        Ok(rows.zip(margin).map(|(rows, margin)| rows + margin))
    }

    fn by_tokens(&self, best: &mut Option<Solution>) -> Result<(), PartitionError> {
        let rows = self.shape.rows;
        let beside = Change::of(self, Company::Beside)?;
        for total in 1..self.tokens {
            let Some(own) = beside.us(total) else {
                continue;
            };
            let rest = self.tokens - total;
            if let Some(others) = self.piece(Side::Second, rows, rest, Company::Beside)? {
                let sizes = beside.sizes(total);
                self.offer(best, Cut::Tokens { sizes }, own.max(others));
            }
        }
        self.first_alone(best)
    }

    /// Several sizes that leave the second side nothing; the last may be padded.
    fn first_alone(&self, best: &mut Option<Solution>) -> Result<(), PartitionError> {
        let alone = Change::of(self, Company::Alone)?;
        for total in 1..self.tokens {
            let Some(own) = alone.us(total) else {
                continue;
            };
            for (size, last) in &alone.coins {
                if total.saturating_add(*size) >= self.tokens {
                    let mut sizes = alone.sizes(total);
                    sizes.push(*size);
                    self.offer(best, Cut::Tokens { sizes }, own + last);
                }
            }
        }
        Ok(())
    }
}

/// The cheapest way for the first side to do each total of static sizes, below a number of tokens.
struct Change {
    /// Sizes with their latencies in µs.
    coins: Vec<(u32, f64)>,
    /// By total: its latency in µs, and the last size of its sum.
    totals: Vec<Option<(f64, u32)>>,
}

impl Change {
    fn of<L: PairLatencies>(
        search: &Search<'_, L>,
        company: Company,
    ) -> Result<Self, PartitionError> {
        let mut coins = Vec::new();
        for size in search.rules.static_tokens.iter().copied() {
            let us = search.piece(Side::First, search.shape.rows, size, company)?;
            coins.extend(us.filter(|_| size > 0).map(|us| (size, us)));
        }
        let mut totals: Vec<Option<(f64, u32)>> = vec![None; search.tokens as usize];
        for total in 1..totals.len() {
            // Large sizes first: of sums that differ by rounding alone, the one of fewest sizes stays.
            for (size, us) in coins.iter().rev() {
                let before = match total.checked_sub(*size as usize) {
                    Some(0) => Some(0.0),
                    Some(rest) => totals.get(rest).copied().flatten().map(|(us, _)| us),
                    None => None,
                };
                let sum = before.map(|before| before + us);
                if let (Some(sum), Some(best)) = (sum, totals.get_mut(total))
                    && best.is_none_or(|(least, _)| sum < least * (1.0 - ROUNDING))
                {
                    *best = Some((sum, *size));
                }
            }
        }
        Ok(Self { coins, totals })
    }

    fn at(&self, total: u32) -> Option<(f64, u32)> {
        self.totals.get(total as usize).copied().flatten()
    }

    fn us(&self, total: u32) -> Option<f64> {
        self.at(total).map(|(us, _)| us)
    }

    /// The sizes of a total, descending.
    fn sizes(&self, total: u32) -> Vec<u32> {
        let mut sizes = Vec::new();
        let mut rest = total;
        while let Some((_, size)) = self.at(rest) {
            sizes.push(size);
            rest = rest.saturating_sub(size);
        }
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes
    }
}

/// Relative difference of two sums of the same latencies. Chosen: some thousand roundings.
const ROUNDING: f64 = 1e-12;

#[cfg(test)]
#[path = "solve_tests.rs"]
mod tests;
