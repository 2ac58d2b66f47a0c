//! What a sampler's restriction knows of tokens to come, for drafts.

use super::Sampler;

impl Sampler {
    /// Lets the restriction look ahead from now on, so that [`forced`](Self::forced) is known.
    pub fn look_ahead(&mut self) {
        if let Some(restriction) = &mut self.restriction {
            restriction.look_ahead();
        }
    }

    /// Tokens that alone may come after the latest one that was chosen, as far as the restriction knows them. The next
    /// choice need not be one of them: they are good for drafts only.
    pub fn forced(&self) -> &[u32] {
        let restriction = self.restriction.as_ref();
        restriction.map_or(&[], |restriction| restriction.forced())
    }

    /// How many of these tokens the restriction allows, one after the other, behind those that were committed; all of them
    /// where it does not know soon.
    pub fn admitted(&mut self, tokens: &[u32]) -> usize {
        if self.forced().starts_with(tokens) {
            return tokens.len();
        }
        // Where more was chosen than committed, it speaks of what comes behind that.
        let restriction = self.restriction.as_mut();
        let restriction = restriction.filter(|_| self.proposed.is_empty());
        restriction.map_or(tokens.len(), |restriction| restriction.admitted(tokens))
    }
}
