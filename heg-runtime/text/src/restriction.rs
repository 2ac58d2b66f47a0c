//! Restrictions: the tokens that an answer may have, whatever the model prefers.
//!
//! Only the interface, which `Sampler` drives; it depends on nothing. `grammar` has the one implementation.

use super::Result;

/// Restricts one answer to a format, token by token.
///
/// The calls take turns: `restrict` before a token is chosen, `chosen` after, `undo` if that token was given up
/// together with the kernels that led to it. Each call takes a bounded time, since other requests wait; a call that
/// takes longer is an error.
pub trait Restriction: Send {
    /// Forbids tokens by setting their logits to minus infinity; there is one logit for each token of the vocabulary.
    ///
    /// # Errors
    /// `Restriction` if it cannot go on. The answer is not complete then.
    fn restrict(&mut self, logits: &mut [f32]) -> Result<()>;

    /// Takes the chosen token.
    ///
    /// # Errors
    /// `Restriction` if the token was forbidden, or the restriction cannot go on.
    fn chosen(&mut self, token: u32) -> Result<GrammarState>;

    /// Takes back the latest token.
    ///
    /// # Errors
    /// `Restriction` if it cannot go on.
    fn undo(&mut self) -> Result<()>;

    /// Turns looking ahead on, for drafts, which will ask for the [`forced`](Self::forced) tokens.
    fn look_ahead(&mut self) {}

    /// Returns the tokens that must come after the latest one, as far as they are known. They are used for drafts only.
    fn forced(&self) -> &[u32] {
        &[]
    }

    /// Returns the number of these tokens that may come next, one after the other; all of them if that is not known
    /// soon. They are drafted tokens, and none of them is chosen yet.
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
    /// Only an end-of-sequence token may follow; the answer is complete without it too.
    Complete,
}
