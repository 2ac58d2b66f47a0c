//! What is scored: tokens, and the position from which on they are predicted.

use heg_artifacts::manifest::Manifest;

use crate::error::RuntimeError;

/// Tokens of one document, checked against a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    tokens: Vec<u32>,
    from: usize,
}

impl Passage {
    /// Tokens whose predictions from position `from` on are scored. The first token has nothing before it, so 0 is
    /// taken for 1.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::NothingToScore`] where no token stands at `from` or behind it, [`RuntimeError::Context`] and
    /// [`RuntimeError::PassageToken`] where the model cannot read the tokens.
    pub fn new(tokens: Vec<u32>, from: usize, manifest: &Manifest) -> Result<Self, RuntimeError> {
        let (vocab, context) = (manifest.model.vocab, manifest.model.context_tokens as usize);
        let from = from.max(1);
        if from >= tokens.len() {
            return Err(RuntimeError::NothingToScore {
                from,
                tokens: tokens.len(),
            });
        }
        if tokens.len() > context {
            return Err(RuntimeError::Context {
                asked: tokens.len(),
                context,
            });
        }
        let wrong = tokens.iter().position(|token| *token >= vocab);
        if let Some(position) = wrong {
            return Err(RuntimeError::PassageToken {
                position,
                found: tokens[position],
                vocab,
            });
        }
        Ok(Self { tokens, from })
    }

    /// The tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Position of the first token that is scored; at least 1.
    pub fn from(&self) -> usize {
        self.from
    }

    /// Number of tokens that are scored.
    pub fn scored(&self) -> usize {
        self.tokens.len() - self.from
    }
}
