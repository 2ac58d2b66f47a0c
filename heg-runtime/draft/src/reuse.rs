//! What is left of tokens that were expected: the rest of a rejected draft (sd.npu §3.4), or of a predicted answer.

use crate::draft::{Draft, Source};
use crate::guess::Guess;

/// Verifications that the rest of a draft waits for its first token. Chosen: what differs from the draft is a word or two.
const WAITS: u32 = 4;

/// Tokens that are expected to come next.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    source: Option<Source>,
    tokens: Vec<u32>,
    /// Tokens of it that came.
    read: usize,
    /// Tokens that come before any of it may.
    before: usize,
    /// Verifications that may still pass before the first token comes.
    waits: u32,
}

impl Rest {
    /// All these tokens are expected.
    pub(crate) fn of(source: Source, tokens: &[u32]) -> Self {
        Self {
            source: Some(source),
            tokens: tokens.to_vec(),
            read: 0,
            before: 0,
            waits: WAITS,
        }
    }

    /// The part of a rejected chain that still made sense to the model: after the first wrong token, the longest run of
    /// tokens that were the likeliest ones, each after those before it, as `likeliest` says of every token of the draft.
    /// It comes after the accepted tokens. None where nothing was rejected, or nothing is left.
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
        let tokens: Vec<u32> = run.iter().map(|drafted| drafted.token).collect();
        (longest > 0).then(|| Self {
            before: accepted,
            ..Self::of(Source::Reuse, &tokens)
        })
    }

    /// Another verification has passed.
    pub(crate) fn wait(&mut self) {
        if self.read == 0 {
            self.waits = self.waits.saturating_sub(1);
        }
        if self.waits == 0 {
            *self = Self::default();
        }
    }

    /// Reads the answer's next token: expected tokens that came are over, and after a wrong one none are expected.
    pub(crate) fn read(&mut self, token: u32) {
        if self.before > 0 {
            self.before -= 1;
            return;
        }
        match self.tokens.get(self.read) {
            Some(expected) if *expected == token => self.read += 1,
            // What was rejected may begin a token later: the corrected one stands before it.
            _ if self.read == 0 && self.source == Some(Source::Reuse) => {}
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
    use crate::acceptance::Kind;
    use crate::draft::Drafted;

    fn chain(tokens: &[u32]) -> Draft {
        let mut draft = Draft::default();
        for (at, token) in tokens.iter().enumerate() {
            draft.push(Drafted {
                token: *token,
                parent: at.checked_sub(1).map(|parent| parent as u16),
                reach: 1.0,
                kind: Kind::of(Source::Context, 1, 1, 1),
            });
        }
        draft
    }

    fn expected(rest: Option<&Rest>) -> Vec<u32> {
        match rest.and_then(Rest::guess) {
            Some(Guess::Expected { tokens, .. }) => tokens.to_vec(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn the_longest_run_that_the_model_agreed_with_is_left() {
        // 3 was wrong; after it, 4 was not what the model would have said, 5 6 7 were, 8 was not, 9 was.
        let draft = chain(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let agrees = [true, true, false, false, true, true, true, false, true];
        let rest = Rest::after(&draft, 2, &agrees);
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
        assert!(Rest::after(&draft, 3, &[]).is_none());
        assert!(Rest::after(&draft, 2, &[]).is_none());
        assert!(Rest::after(&draft, 2, &[true; 3]).is_none());
        assert!(Rest::after(&draft, 0, &[false; 3]).is_none());
    }

    #[test]
    fn the_rest_waits_for_its_first_token_only_so_long() {
        let mut rest = Rest::of(Source::Reuse, &[5, 6]);
        for _ in 1..WAITS {
            rest.wait();
            rest.read(1);
        }
        assert_eq!(expected(Some(&rest)), [5, 6]);
        rest.wait();
        assert_eq!(expected(Some(&rest)), [0; 0]);
        let mut begun = Rest::of(Source::Reuse, &[5, 6]);
        begun.read(5);
        for _ in 0..WAITS {
            begun.wait();
        }
        assert_eq!(expected(Some(&begun)), [6]);
    }

    #[test]
    fn the_rest_ends_with_the_first_wrong_token() {
        let mut rest = Rest::of(Source::Reuse, &[5, 6, 7]);
        rest.read(4);
        assert_eq!(expected(Some(&rest)), [5, 6, 7]);
        rest.read(5);
        assert_eq!(expected(Some(&rest)), [6, 7]);
        rest.read(9);
        assert_eq!(expected(Some(&rest)), [0; 0]);
    }
}
