//! The input of scoring: tokens, and the position of the first prediction that counts.

use heg_artifacts::manifest::Manifest;

use crate::error::RuntimeError;
use heg_exec::ExecError;

/// The tokens of one document, checked against a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    tokens: Vec<u32>,
    from: usize,
}

impl Passage {
    /// Creates a passage whose predictions are scored from position `from` on. The first token has nothing before it,
    /// so 0 is taken for 1.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::NothingToScore`] if no token stands at `from` or after it, [`ExecError::Context`] and
    /// [`RuntimeError::PassageToken`] if the model cannot read the tokens.
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
            return Err(ExecError::Context {
                asked: tokens.len(),
                context,
            }
            .into());
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

    /// Returns the tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the position of the first scored token; at least 1.
    pub fn from(&self) -> usize {
        self.from
    }

    /// Returns the number of scored tokens.
    pub fn scored(&self) -> usize {
        self.tokens.len() - self.from
    }
}
