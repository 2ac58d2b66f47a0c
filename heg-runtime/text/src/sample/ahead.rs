//! The sampler's view of its restriction's coming tokens, for drafts.

use super::Sampler;

impl Sampler {
    /// Makes the restriction look ahead from now on, so that the [`forced`](Self::forced) tokens are known.
    pub fn look_ahead(&mut self) {
        if let Some(restriction) = &mut self.restriction {
            restriction.look_ahead();
        }
    }

    /// Returns the tokens that must come after the latest choice, as far as the restriction knows them. The next choice
    /// need not be one of them, so they are good for drafts only.
    pub fn forced(&self) -> &[u32] {
        let restriction = self.restriction.as_ref();
        restriction.map_or(&[], |restriction| restriction.forced())
    }

    /// Returns the number of these tokens that the restriction allows, one after the other, after the committed tokens;
    /// all of them if it does not know soon.
    pub fn admitted(&mut self, tokens: &[u32]) -> usize {
        if self.forced().starts_with(tokens) {
            return tokens.len();
        }
        // If some choices are not committed, the restriction's answer is about the tokens after those.
        let restriction = self.restriction.as_mut();
        let restriction = restriction.filter(|_| self.proposed.is_empty());
        restriction.map_or(tokens.len(), |restriction| restriction.admitted(tokens))
    }
}
