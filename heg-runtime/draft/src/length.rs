//! How many tokens to draft: those that pay for the rows they take.

use crate::draft::Draft;

/// What a verification of so many rows takes, relative to any other number of rows; the first row is the answer's own
/// last token.
pub trait RowCost {
    /// The cost of a verification.
    fn of_rows(&self, rows: usize) -> f64;
}

impl<F: Fn(usize) -> f64> RowCost for F {
    fn of_rows(&self, rows: usize) -> f64 {
        self(rows)
    }
}

/// The number of leading tokens of a draft with the most tokens expected for their cost (sd.npu §3.4, and
/// E\[tokens | k\] / T(rows)). Of a tree any leading part is a tree.
pub(crate) fn best_length(draft: &Draft, cost: &dyn RowCost) -> usize {
    let mut best = (0, 1.0 / cost.of_rows(1).max(f64::MIN_POSITIVE));
    let mut expected = 1.0;
    for (before, drafted) in draft.tokens().iter().enumerate() {
        expected += f64::from(drafted.reach);
        let tokens = before + 1;
        let rate = expected / cost.of_rows(tokens + 1).max(f64::MIN_POSITIVE);
        if rate > best.1 {
            best = (tokens, rate);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acceptance::Kind;
    use crate::draft::{Drafted, Source};

    fn chain(reaches: &[f32]) -> Draft {
        let mut draft = Draft::default();
        for (at, reach) in reaches.iter().enumerate() {
            draft.push(Drafted {
                token: at as u32,
                parent: at.checked_sub(1).map(|parent| parent as u16),
                reach: *reach,
                kind: Kind::of(Source::Context, 1, 1, 1),
            });
        }
        draft
    }

    #[test]
    fn rows_for_nothing_are_all_used() {
        assert_eq!(best_length(&chain(&[0.5, 0.2, 0.01]), &|_: usize| 1.0), 3);
    }

    #[test]
    fn dear_rows_are_used_for_likely_tokens_only() {
        let cost = |rows: usize| rows as f64;
        assert_eq!(best_length(&chain(&[0.5, 0.4, 0.3]), &cost), 0);
        let step = |rows: usize| if rows <= 4 { 1.0 } else { 1.5 };
        let unlikely = chain(&[0.9, 0.8, 0.5, 0.3, 0.2, 0.1]);
        assert_eq!(best_length(&unlikely, &step), 3);
        let likely = chain(&[0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93]);
        assert_eq!(best_length(&likely, &step), 7);
    }
}
