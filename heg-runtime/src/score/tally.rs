//! Sums over scored tokens, and their means.

use std::iter::Sum;

use serde::Serialize;

use heg_text::{LogSoftmax, most_likely};

/// The sums so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    tokens: u64,
    nll: f64,
    compared: u64,
    same: u64,
    kl: f64,
}

/// Means over all scored tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Scores {
    /// Number of scored tokens.
    pub tokens: u64,
    /// Mean negative log likelihood of a token, in nats.
    pub nll: f64,
    /// exp(`nll`).
    pub perplexity: f64,
    /// Share of positions where both models find the same token most likely; `None` without another model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top1: Option<f64>,
    /// Mean KL(other model ‖ this one), in nats; `None` without another model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
}

impl Tally {
    /// Adds a row of logits and the token that followed.
    pub fn add(&mut self, logits: &[f32], next: u32) {
        self.count(LogSoftmax::of(logits), next);
    }

    /// Adds a row as [`add`](Self::add) does, with the other model's row for the same position.
    pub fn add_against(&mut self, logits: &[f32], reference: &[f32], next: u32) {
        let (ours, theirs) = (LogSoftmax::of(logits), LogSoftmax::of(reference));
        self.count(ours, next);
        self.compared += 1;
        self.same += u64::from(most_likely(logits) == most_likely(reference));
        let vocab = logits.len().min(reference.len()) as u32;
        self.kl += divergence(theirs, ours, vocab);
    }

    fn count(&mut self, softmax: LogSoftmax<'_>, next: u32) {
        self.tokens += 1;
        self.nll -= softmax.at(next);
    }

    /// Returns the number of tokens so far.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns the sum of KL(other model ‖ this one), in nats.
    pub fn kl_sum(&self) -> f64 {
        self.kl
    }

    /// Returns the means; NaN before the first token.
    pub fn scores(&self) -> Scores {
        let nll = self.nll / self.tokens as f64;
        let mean = |sum: f64| (self.compared > 0).then(|| sum / self.compared as f64);
        Scores {
            tokens: self.tokens,
            nll,
            perplexity: nll.exp(),
            top1: mean(self.same as f64),
            kl: mean(self.kl),
        }
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |all, part| Self {
            tokens: all.tokens + part.tokens,
            nll: all.nll + part.nll,
            compared: all.compared + part.compared,
            same: all.same + part.same,
            kl: all.kl + part.kl,
        })
    }
}

/// KL(`p` ‖ `q`) in nats, over `vocab` tokens.
fn divergence(p: LogSoftmax<'_>, q: LogSoftmax<'_>, vocab: u32) -> f64 {
    let terms = (0..vocab).map(|token| {
        let expected = p.at(token);
        match expected.exp() {
            // An impossible token adds nothing, even if the other model finds it impossible too.
            0.0 => 0.0,
            share => share * (expected - q.at(token)),
        }
    });
    terms.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shifted logits of the given probabilities.
    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln() + 3.0).collect()
    }

    #[test]
    fn figures_of_two_tokens_worked_by_hand() {
        let mut tally = Tally::default();
        let (q, p) = (logits(&[0.5, 0.25, 0.25]), logits(&[0.25, 0.5, 0.25]));
        tally.add_against(&q, &p, 1);
        tally.add_against(&q, &q, 0);
        let found = tally.scores();
        let near = |found: f64, expected: f64| (found - expected).abs() < 1e-6;
        assert_eq!((found.tokens, found.top1), (2, Some(0.5)));
        assert!(near(found.nll, 1.5 * 2_f64.ln()), "{found:?}");
        assert!(near(found.perplexity, 8_f64.sqrt()), "{found:?}");
        // 0.25 ln(0.25 / 0.5) + 0.5 ln(0.5 / 0.25), over two tokens.
        assert!(near(found.kl.unwrap(), 0.125 * 2_f64.ln()), "{found:?}");
    }

    #[test]
    fn the_sum_of_two_tallies_has_the_means_of_all_tokens() {
        let (q, p) = (logits(&[0.5, 0.25, 0.25]), logits(&[0.25, 0.5, 0.25]));
        let mut parts = [Tally::default(); 2];
        parts[0].add_against(&q, &p, 1);
        parts[1].add_against(&q, &q, 0);
        parts[1].add(&q, 2);
        let mut all = parts[0];
        all.add_against(&q, &q, 0);
        all.add(&q, 2);
        let sum: Tally = parts.into_iter().sum();
        assert_eq!((sum.scores(), sum.kl_sum()), (all.scores(), all.kl_sum()));
    }

    #[test]
    fn what_cannot_be_adds_nothing() {
        let mut tally = Tally::default();
        let row = [0.0, f32::NEG_INFINITY, 1.0];
        tally.add_against(&row, &row, 2);
        assert_eq!((tally.scores().kl, tally.tokens()), (Some(0.0), 1));
    }
}
