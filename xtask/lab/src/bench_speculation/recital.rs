//! Known answers: a model of random weights gives them instead of its own, at the cost of its own.

use heg_text::{GrammarState, Restriction, TextError};

/// Restricts an answer to these tokens.
pub(super) struct Recital {
    tokens: Vec<u32>,
    said: usize,
}

impl Recital {
    pub(super) fn new(tokens: &[u32]) -> Self {
        Self {
            tokens: tokens.to_vec(),
            said: 0,
        }
    }
}

impl Restriction for Recital {
    /// Raises the next token above all others.
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), TextError> {
        let next = self.tokens.get(self.said).copied().unwrap_or(0);
        if let Some(logit) = logits.get_mut(next as usize) {
            *logit = f32::INFINITY;
        }
        Ok(())
    }

    fn chosen(&mut self, _: u32) -> Result<GrammarState, TextError> {
        self.said += 1;
        Ok(match self.said >= self.tokens.len() {
            true => GrammarState::Complete,
            false => GrammarState::Open,
        })
    }

    fn undo(&mut self) -> Result<(), TextError> {
        self.said = self.said.saturating_sub(1);
        Ok(())
    }
}
