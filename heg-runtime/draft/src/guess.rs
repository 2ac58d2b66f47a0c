//! One predictor of the next tokens: a match in an automaton, tokens that the model found likely, or an expected
//! sequence.

use crate::acceptance::AcceptanceBucket;
use crate::automaton::{Automaton, Match};
use crate::calibrated::{Calibrated, Place};
use crate::draft::DraftSource;

/// Shorter matches considered besides the longest.
const SHORTER: usize = 2;

/// An automaton to draft from.
#[derive(Clone, Copy)]
pub(crate) struct Texts<'a> {
    pub(crate) source: DraftSource,
    pub(crate) automaton: &'a Automaton,
    /// Whether continuations are ranked by frequency rather than by recency.
    pub(crate) by_frequency: bool,
}

/// A predictor of the next tokens, at its current position.
#[derive(Clone, Copy)]
pub(crate) enum Guess<'a> {
    /// The continuations of an earlier occurrence.
    Matched { texts: Texts<'a>, at: Match },
    /// The tokens that the model found likely at a place of the prompt. `read` counts the tokens of this path that are
    /// accepted or assumed to be.
    Likely {
        prompt: &'a Calibrated,
        at: Place,
        read: u32,
    },
    /// An expected sequence. `read` counts its tokens that are accepted or assumed to be.
    Expected {
        source: DraftSource,
        tokens: &'a [u32],
        read: u32,
    },
}

/// A candidate for the next token.
pub(crate) struct Next<'a> {
    pub(crate) token: u32,
    pub(crate) bucket: AcceptanceBucket,
    /// The predictor after this token.
    pub(crate) then: Guess<'a>,
    /// Rank among the candidates: frequency, then recency.
    rank: (u32, u32),
}

impl<'a> Texts<'a> {
    /// The longest suffix of a match that has a continuation.
    pub(crate) fn matched(self, mut at: Match) -> Option<Guess<'a>> {
        while at.length > 0 {
            if self.automaton.continuations(at).next().is_some() {
                return Some(Guess::Matched { texts: self, at });
            }
            at = self.automaton.shorter(at)?;
        }
        None
    }

    /// Candidates after a match.
    fn after(self, at: Match) -> impl Iterator<Item = Next<'a>> {
        let all = self.automaton.count(at);
        self.automaton.continuations(at).map(move |came| {
            let (count, all) = if self.by_frequency {
                (came.count, all)
            } else {
                (1, 1)
            };
            Next {
                token: came.token,
                bucket: AcceptanceBucket::of(self.source, at.length, count, all),
                then: Guess::Matched {
                    texts: self,
                    at: came.after(at),
                },
                rank: (count, came.seen),
            }
        })
    }
}

impl<'a> Guess<'a> {
    /// This guess, then those of up to [`SHORTER`] shorter matches, which sometimes predict another token.
    pub(crate) fn and_shorter(self) -> impl Iterator<Item = Self> {
        let guesses = std::iter::successors(Some(self), |guess| guess.shorter());
        guesses.take(1 + SHORTER)
    }

    fn shorter(self) -> Option<Self> {
        match self {
            Self::Matched { texts, at } => texts.matched(texts.automaton.shorter(at)?),
            Self::Likely { .. } | Self::Expected { .. } => None,
        }
    }

    /// Candidates for the next token, likeliest first: by frequency, then by recency.
    pub(crate) fn next(self) -> Vec<Next<'a>> {
        let mut next: Vec<Next<'a>> = match self {
            Self::Matched { texts, at } => texts.after(at).collect(),
            Self::Likely { prompt, at, read } => {
                let likely = prompt.after(at, read);
                let next = likely.map(|(token, probability, bucket, at)| Next {
                    token,
                    bucket,
                    then: Self::Likely {
                        prompt,
                        at,
                        read: read + 1,
                    },
                    rank: (u32::from(probability), 0),
                });
                next.collect()
            }
            Self::Expected {
                source,
                tokens,
                read,
            } => {
                let split = tokens.split_first();
                let next = split.map(|(token, rest)| Next {
                    token: *token,
                    bucket: AcceptanceBucket::of(source, read, 1, 1),
                    then: Self::Expected {
                        source,
                        tokens: rest,
                        read: read + 1,
                    },
                    rank: (1, 0),
                });
                next.into_iter().collect()
            }
        };
        next.sort_by_key(|next| std::cmp::Reverse(next.rank));
        next
    }
}
