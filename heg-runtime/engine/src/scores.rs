//! Log probabilities of a prompt's tokens, assembled from the rows of its chunks.
//!
//! Chunks may end in any order, and run again after a lane was lost: each row counts once.

use heg_text::TokenLogProbs;

/// A row of the prompt, by position, and the log probabilities of the token behind it.
pub(super) type Score = (u32, TokenLogProbs);

/// The known log probabilities of a prompt's tokens. The first one has no row before it.
#[derive(Debug)]
pub(super) struct PromptScores(Vec<Option<TokenLogProbs>>);

impl PromptScores {
    /// Starts with no log probabilities of a prompt of `prompt_tokens` tokens.
    pub(super) fn new(prompt_tokens: u32) -> Self {
        Self(vec![None; prompt_tokens.saturating_sub(1) as usize])
    }

    /// Takes in the log probabilities that a lane computed.
    pub(super) fn add(&mut self, scores: Vec<Score>) {
        for (row, score) in scores {
            if let Some(known) = self.0.get_mut(row as usize) {
                *known = Some(score);
            }
        }
    }

    /// Rows whose log probabilities are not known.
    pub(super) fn missing(&self) -> Vec<u32> {
        let rows = (0..).zip(&self.0);
        rows.filter_map(|(row, score)| score.is_none().then_some(row))
            .collect()
    }

    /// Returns the log probabilities of all tokens but the first, if every row is known.
    pub(super) fn whole(self) -> Option<Vec<TokenLogProbs>> {
        self.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use heg_text::log_probabilities;

    use super::*;

    #[test]
    fn chunks_come_in_any_order_and_twice() {
        let score = |row: u32| (row, log_probabilities(&[0.0; 9], row + 1, 0));
        let mut scores = PromptScores::new(5);
        scores.add(vec![score(2), score(3), score(4)]);
        assert_eq!(scores.missing(), [0, 1]);
        scores.add(vec![score(0), score(1), score(2)]);
        assert!(scores.missing().is_empty());
        let tokens = scores.whole().unwrap();
        let tokens: Vec<u32> = tokens.iter().map(|token| token.token.token).collect();
        assert_eq!(tokens, [1, 2, 3, 4]);
        assert_eq!(PromptScores::new(1).whole(), Some(Vec::new()));
        assert_eq!(PromptScores::new(2).whole(), None);
    }
}
