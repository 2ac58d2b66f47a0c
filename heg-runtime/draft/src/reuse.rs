//! What is left of tokens that were expected: the rest of a rejected draft (sd.npu §3.4), or of a predicted answer.

use crate::draft::{Draft, Source};
use crate::guess::Guess;

/// Tokens that are expected to come next.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    source: Option<Source>,
    tokens: Vec<u32>,
    /// Tokens of it that came.
    read: usize,
}

impl Rest {
    /// All these tokens are expected.
    pub(crate) fn of(source: Source, tokens: &[u32]) -> Self {
        Self {
            source: Some(source),
            tokens: tokens.to_vec(),
            read: 0,
        }
    }

    /// The part of a rejected chain that still made sense to the model: after the first wrong token, the longest run of
    /// tokens that were the likeliest ones, each after those before it. None where nothing was rejected, or nothing is
    /// left.
    pub(crate) fn after(draft: &Draft, accepted: usize, likeliest: &[u32]) -> Option<Self> {
        // The token at `accepted` was wrong; those after it stand beside what the model would have said there.
        let rest = draft.tokens().get(accepted + 1..)?;
        let agree: Vec<bool> = rest
            .iter()
            .zip(likeliest)
            .map(|(drafted, likeliest)| drafted.token == *likeliest)
            .collect();
        let runs = agree.split(|agrees| !agrees);
        let (longest, end) = runs
            .scan(0, |end, run| {
                *end += run.len() + 1;
                Some((run.len(), *end - 1))
            })
            .max_by_key(|(length, end)| (*length, usize::MAX - end))?;
        let run = rest.get(end - longest..end)?;
        (longest > 0).then(|| Self {
            source: Some(Source::Reuse),
            tokens: run.iter().map(|drafted| drafted.token).collect(),
            read: 0,
        })
    }

    /// Reads the answer's next token: expected tokens that came are over, and after a wrong one none are expected.
    pub(crate) fn read(&mut self, token: u32) {
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
        let rest = Rest::after(&draft, 2, &[40, 5, 6, 7, 80, 9]);
        assert_eq!(expected(rest.as_ref()), [5, 6, 7]);
    }

    #[test]
    fn nothing_is_left_of_a_draft_that_was_right_or_wholly_wrong() {
        let draft = chain(&[1, 2, 3]);
        assert!(Rest::after(&draft, 3, &[]).is_none());
        assert!(Rest::after(&draft, 2, &[]).is_none());
        assert!(Rest::after(&draft, 0, &[20, 30]).is_none());
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
