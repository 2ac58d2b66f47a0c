//! Restrictions: which tokens an answer may have, whatever the model prefers.
//!
//! Only the interface, which `Sampler` drives; it depends on nothing. `grammar` has the one implementation.

use super::Result;

/// Keeps one answer to a format, token by token.
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

    /// Begins to look ahead, for drafts: [`forced`](Self::forced) will be asked.
    fn look_ahead(&mut self) {}

    /// Tokens that alone may come after the latest one that was chosen, as far as that is known; drafts are made of them, and
    /// nothing else.
    fn forced(&self) -> &[u32] {
        &[]
    }

    /// How many of these tokens may come next, one after the other; all of them where that is not known soon. They are
    /// drafted, and none of them is chosen.
    fn admitted(&mut self, tokens: &[u32]) -> usize {
        tokens.len()
    }
}

/// The state of an answer's grammar after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum GrammarState {
    /// More tokens must, or may, follow.
    Open,
    /// Only an end-of-sequence token may follow: the answer is complete without it too.
    Complete,
}
