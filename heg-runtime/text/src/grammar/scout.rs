//! Looks ahead in the grammar of one answer for the tokens that must come next.
//!
//! It has a matcher of its own, with its own states and limits, so that the masks are the same without it: its findings
//! change drafts, and no answer.

use std::panic::AssertUnwindSafe;

use llguidance::Matcher;
use llguidance::panic_utils::catch_unwind;

/// Follows an answer's matcher for as long as it can.
pub(super) struct Scout(Option<Matcher>);

impl Scout {
    /// Creates a scout at the state of a matcher that has computed a mask: from there the library's limits hold.
    pub(super) fn at(matcher: &Matcher) -> Self {
        Self(Some(matcher.deep_clone()))
    }

    /// Takes the token that the matcher took. After an error the scout sees nothing, which harms nobody.
    pub(super) fn take(&mut self, token: u32) {
        if let Some(matcher) = &mut self.0 {
            let _ = matcher.consume_token(token);
        }
    }

    /// Returns the number of these tokens that may come next, one after the other; all of them if the scout cannot
    /// tell.
    pub(super) fn admitted(&mut self, tokens: &[u32]) -> usize {
        let Some(matcher) = &mut self.0 else {
            return tokens.len();
        };
        let count = matcher
            .tok_env()
            .map_or(0, |tokens| tokens.tok_trie().vocab_size());
        let known = tokens.iter().take_while(|token| (**token as usize) < count);
        // The library treats an unknown token as an error.
        let known = &tokens[..known.count()];
        matcher.validate_tokens(known).unwrap_or(tokens.len())
    }

    /// Takes back the latest token.
    pub(super) fn undo(&mut self) {
        if let Some(matcher) = &mut self.0 {
            let _ = matcher.rollback(1);
        }
    }

    /// Makes the scout see nothing from now on.
    pub(super) fn give_up(&mut self) {
        self.0 = None;
    }

    /// Returns the likely tokens of the bytes that must come next: from the left, the longest that match. The last
    /// token is left out, since the bytes after it may make it a longer one.
    pub(super) fn forced(&mut self) -> Vec<u32> {
        let Some(matcher) = &mut self.0 else {
            return Vec::new();
        };
        let look = || {
            let bytes = matcher.compute_ff_bytes();
            let (mut tokens, fixed) = matcher.tok_env()?.tokenize_bytes_marker(&bytes);
            tokens.truncate(fixed.max(tokens.len().saturating_sub(1)));
            Ok(tokens)
        };
        catch_unwind(AssertUnwindSafe(look)).unwrap_or_default()
    }
}
