//! The unread remainder of an expected sequence: of a rejected draft (sd.npu §3.4), or of a predicted answer.

use std::sync::Arc;

use crate::draft::{Draft, DraftSource};
use crate::guess::Guess;

/// Verifications for which a remainder waits for its first token. Chosen: the answer differs from the draft by a word
/// or two.
const WAITS: u32 = 4;

/// Tokens expected next.
#[derive(Debug, Default)]
pub(crate) struct Remainder {
    source: Option<DraftSource>,
    tokens: Arc<[u32]>,
    /// Tokens already read.
    read: usize,
    /// Tokens of the answer to skip before the first expected one.
    before: usize,
    /// Verifications left to wait for the first token.
    waits: u32,
}

impl Remainder {
    /// Expects all of `tokens`.
    pub(crate) fn of(source: DraftSource, tokens: Arc<[u32]>) -> Self {
        Self {
            source: Some(source),
            tokens,
            read: 0,
            before: 0,
            waits: WAITS,
        }
    }

    /// The part of a rejected chain that the model still agreed with: behind the first wrong token, the longest run of
    /// tokens that were each the likeliest after those before it. `accepted` is the number of accepted tokens,
    /// `likeliest` has an entry per token of the draft. `None` if nothing was rejected, or no such run exists.
    pub(crate) fn after(draft: &Draft, accepted: usize, likeliest: &[bool]) -> Option<Self> {
        let rest = draft.tokens().get(accepted + 1..)?;
        let agree = likeliest.get(accepted + 1..)?;
        let runs = agree.split(|agrees| !agrees);
        let (longest, end) = runs
            .scan(0, |end, run| {
                *end += run.len() + 1;
                Some((run.len(), *end - 1))
            })
            .max_by_key(|(length, end)| (*length, usize::MAX - end))?;
        let run = rest.get(end - longest..end)?;
        let tokens: Arc<[u32]> = run.iter().map(|drafted| drafted.token).collect();
        (longest > 0).then(|| Self {
            before: accepted,
            ..Self::of(DraftSource::Reuse, tokens)
        })
    }

    /// Counts another verification.
    pub(crate) fn wait(&mut self) {
        if self.read == 0 {
            self.waits = self.waits.saturating_sub(1);
        }
        if self.waits == 0 {
            *self = Self::default();
        }
    }

    /// Reads the next token of the answer: a token that matches is consumed, and a wrong one ends the expectation.
    pub(crate) fn read(&mut self, token: u32) {
        if self.before > 0 {
            self.before -= 1;
            return;
        }
        match self.tokens.get(self.read) {
            Some(expected) if *expected == token => self.read += 1,
            // A rejected run may begin a token later, behind the corrected one.
            _ if self.read == 0 && self.source == Some(DraftSource::Reuse) => {}
            _ => *self = Self::default(),
        }
    }

    pub(crate) fn guess(&self) -> Option<Guess<'_>> {
        let tokens = self.tokens.get(self.read..)?;
        let source = self.source.filter(|_| !tokens.is_empty())?;
        Some(Guess::Expected {
            source,
            tokens,
            read: self.read as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acceptance::AcceptanceBucket;
    use crate::draft::Drafted;

    fn chain(tokens: &[u32]) -> Draft {
        let mut draft = Draft::default();
        for (at, token) in tokens.iter().enumerate() {
            draft.push(Drafted {
                token: *token,
                parent: at.checked_sub(1).map(|parent| parent as u16),
                path_probability: 1.0,
                bucket: AcceptanceBucket::of(DraftSource::Context, 1, 1, 1),
            });
        }
        draft
    }

    fn expected(rest: Option<&Remainder>) -> Vec<u32> {
        match rest.and_then(Remainder::guess) {
            Some(Guess::Expected { tokens, .. }) => tokens.to_vec(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn the_longest_run_that_the_model_agreed_with_is_left() {
        // 3 was wrong; behind it the model agreed with 5 6 7 and with 9, but not with 4 and 8.
        let draft = chain(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let agrees = [true, true, false, false, true, true, true, false, true];
        let rest = Remainder::after(&draft, 2, &agrees);
        assert_eq!(expected(rest.as_ref()), [5, 6, 7]);
        // The accepted tokens come first, then the corrected one.
        let mut rest = rest.unwrap();
        for token in [1, 5, 40] {
            rest.read(token);
        }
        assert_eq!(expected(Some(&rest)), [5, 6, 7]);
    }

    #[test]
    fn nothing_is_left_of_a_draft_that_was_right_or_wholly_wrong() {
        let draft = chain(&[1, 2, 3]);
        assert!(Remainder::after(&draft, 3, &[]).is_none());
        assert!(Remainder::after(&draft, 2, &[]).is_none());
        assert!(Remainder::after(&draft, 2, &[true; 3]).is_none());
        assert!(Remainder::after(&draft, 0, &[false; 3]).is_none());
    }

    #[test]
    fn the_rest_waits_for_its_first_token_only_so_long() {
        let mut rest = Remainder::of(DraftSource::Reuse, [5, 6].into());
        for _ in 1..WAITS {
            rest.wait();
            rest.read(1);
        }
        assert_eq!(expected(Some(&rest)), [5, 6]);
        rest.wait();
        assert_eq!(expected(Some(&rest)), [0; 0]);
        let mut begun = Remainder::of(DraftSource::Reuse, [5, 6].into());
        begun.read(5);
        for _ in 0..WAITS {
            begun.wait();
        }
        assert_eq!(expected(Some(&begun)), [6]);
    }

    #[test]
    fn the_rest_ends_with_the_first_wrong_token() {
        let mut rest = Remainder::of(DraftSource::Reuse, [5, 6, 7].into());
        rest.read(4);
        assert_eq!(expected(Some(&rest)), [5, 6, 7]);
        rest.read(5);
        assert_eq!(expected(Some(&rest)), [6, 7]);
        rest.read(9);
        assert_eq!(expected(Some(&rest)), [0; 0]);
    }
}
