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

    /// The part of a rejected draft that the model still agreed with: of what stands deeper than the first wrong token, the
    /// longest run of tokens that were each the likeliest after those before it, on any branch. `accepted` is the number
    /// of accepted tokens, `likeliest` has an entry per token of the draft. `None` if nothing was rejected, or no such run
    /// exists.
    pub(crate) fn after(draft: &Draft, accepted: usize, likeliest: &[bool]) -> Option<Self> {
        let tokens = draft.tokens();
        // For each token, its depth, and the length of the run that ends with it.
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(tokens.len());
        let mut longest = (0, 0);
        for (at, drafted) in tokens.iter().enumerate() {
            let parent = drafted
                .parent
                .and_then(|parent| places.get(usize::from(parent)));
            let (depth, before) = parent.map_or((0, 0), |(depth, run)| (depth + 1, *run));
            let agrees = depth > accepted && likeliest.get(at).copied().unwrap_or(false);
            let run = if agrees { before + 1 } else { 0 };
            if run > longest.0 {
                longest = (run, at);
            }
            places.push((depth, run));
        }
        let (length, end) = longest;
        let way = std::iter::successors(tokens.get(end), |drafted| {
            tokens.get(usize::from(drafted.parent?))
        });
        let mut run: Vec<u32> = way.take(length).map(|drafted| drafted.token).collect();
        run.reverse();
        (length > 0).then(|| Self {
            before: accepted,
            ..Self::of(DraftSource::Reuse, run.into())
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

    /// 0 ─ 1 ─ 2 ─ 3 and 0 ─ 4 ─ 5 ─ 6 ─ 7: 1 was wrong, and so was 4. The model agreed with 3 and with 6 7 where they stand.
    #[test]
    fn a_run_is_left_of_any_branch_of_a_tree() {
        let parents = [
            None,
            Some(0),
            Some(1),
            Some(2),
            Some(0),
            Some(4),
            Some(5),
            Some(6),
        ];
        let draft = Draft::expected((10..).zip(parents));
        let mut agrees = [false, false, false, true, false, false, true, true];
        let rest = Remainder::after(&draft, 1, &agrees);
        assert_eq!(expected(rest.as_ref()), [16, 17]);
        // Of two as long the first; and one that begins where the first wrong token stands is none.
        agrees = [false, true, true, true, false, true, true, false];
        let rest = Remainder::after(&draft, 1, &agrees);
        assert_eq!(expected(rest.as_ref()), [12, 13]);
        assert!(Remainder::after(&draft, 4, &[true; 8]).is_none());
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
