//! Looks ahead in the grammar of one answer: which tokens alone may come next.
//!
//! It is a matcher of its own, with its own states and limits, so that masks are what they are without it: how far it sees
//! changes drafts, and no answer.

use std::panic::AssertUnwindSafe;

use llguidance::Matcher;
use llguidance::panic_utils::catch_unwind;

/// Follows an answer's matcher, as long as it can.
pub(super) struct Scout(Option<Matcher>);

impl Scout {
    /// A scout where a matcher is, which has computed a mask: from there the library's limits hold.
    pub(super) fn at(matcher: &Matcher) -> Self {
        Self(Some(matcher.deep_clone()))
    }

    /// Takes the token that the matcher took. What goes wrong leaves the scout without a view, and hurts nobody.
    pub(super) fn take(&mut self, token: u32) {
        if let Some(matcher) = &mut self.0 {
            let _ = matcher.consume_token(token);
        }
    }

    /// How many of these tokens may come next, one after the other; all of them where it cannot see that.
    pub(super) fn admitted(&mut self, tokens: &[u32]) -> usize {
        let Some(matcher) = &mut self.0 else {
            return tokens.len();
        };
        let count = matcher
            .tok_env()
            .map_or(0, |tokens| tokens.tok_trie().vocab_size());
        let known = tokens.iter().take_while(|token| (**token as usize) < count);
        // A token that does not exist is an error to the library.
        let known = &tokens[..known.count()];
        matcher.validate_tokens(known).unwrap_or(tokens.len())
    }

    /// Takes it back.
    pub(super) fn undo(&mut self) {
        if let Some(matcher) = &mut self.0 {
            let _ = matcher.rollback(1);
        }
    }

    /// Sees nothing from now on.
    pub(super) fn give_up(&mut self) {
        self.0 = None;
    }

    /// Tokens in which the bytes that alone may come next are likely written: the longest from the left. Without the last
    /// one, of which what comes then may make a longer one.
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
