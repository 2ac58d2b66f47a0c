//! Restrictions: what an answer may be, beyond what the model likes to say.
//!
//! Only the interface, which `Sampler` drives; it depends on nothing. `grammar` has the one implementation.

use super::Result;

/// Holds one answer to a form, token by token.
///
/// It is asked and told in turns: `restrict` before a token is chosen, `chosen` after, `undo` where that token was given up
/// with the kernels that led to it. None takes longer than a bounded time, for others wait: what takes longer is an error.
pub trait Restriction: Send {
    /// Forbids tokens by setting their logits, one a token of the vocabulary, to minus infinity.
    ///
    /// # Errors
    /// `Restriction` if it cannot go on. The answer is not complete then.
    fn restrict(&mut self, logits: &mut [f32]) -> Result<()>;

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// `Restriction` if the token was forbidden, or it cannot go on.
    fn chosen(&mut self, token: u32) -> Result<GrammarState>;

    /// Takes back the token that was chosen last.
    ///
    /// # Errors
    /// `Restriction` if it cannot go on.
    fn undo(&mut self) -> Result<()>;
}

/// What may follow a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum GrammarState {
    /// More tokens.
    Open,
    /// Nothing but an end-of-sequence token: the answer is complete without it too.
    Complete,
}
