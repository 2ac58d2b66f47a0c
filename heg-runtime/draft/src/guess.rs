//! A way in which an answer may go on: a match in an automaton, what a model found likely, or tokens that are expected.

use crate::acceptance::Kind;
use crate::automaton::{Automaton, Match};
use crate::calibrated::{Calibrated, Place};
use crate::draft::Source;

/// Shorter matches that are looked at beside the longest.
const SHORTER: usize = 2;

/// Texts that tokens are drafted from.
#[derive(Clone, Copy)]
pub(crate) struct Texts<'a> {
    pub(crate) source: Source,
    pub(crate) automaton: &'a Automaton,
    /// Whether what came most often goes first, rather than what came last.
    pub(crate) by_frequency: bool,
}

/// What the next drafted tokens are taken from.
#[derive(Clone, Copy)]
pub(crate) enum Guess<'a> {
    /// What came after a run of tokens before.
    Matched { texts: Texts<'a>, at: Match },
    /// What the model found likely after a token of the prompt, which stands behind `read` others that turned out right
    /// or are assumed to.
    Likely {
        prompt: &'a Calibrated,
        at: Place,
        read: u32,
    },
    /// These tokens, after `read` others of them that turned out right or are assumed to.
    Expected {
        source: Source,
        tokens: &'a [u32],
        read: u32,
    },
}

/// A token that may come next.
pub(crate) struct Next<'a> {
    pub(crate) token: u32,
    pub(crate) kind: Kind,
    /// How the answer goes on after it.
    pub(crate) then: Guess<'a>,
    /// What it is ranked by among those that may come.
    rank: (u32, u32),
}

impl<'a> Texts<'a> {
    /// A match in these texts; the longest suffix of it that anything came after.
    pub(crate) fn matched(self, mut at: Match) -> Option<Guess<'a>> {
        while at.length > 0 {
            if self.automaton.continuations(at).next().is_some() {
                return Some(Guess::Matched { texts: self, at });
            }
            at = self.automaton.shorter(at)?;
        }
        None
    }

    /// What came after a match.
    fn after(self, at: Match) -> impl Iterator<Item = Next<'a>> {
        let all = self.automaton.count(at);
        self.automaton.continuations(at).map(move |came| {
            let (count, all) = match self.by_frequency {
                true => (came.count, all),
                false => (1, 1),
            };
            Next {
                token: came.token,
                kind: Kind::of(self.source, at.length, count, all),
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
    /// It, and what shorter matches say, which is something else at times.
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

    /// The tokens that may come next, the likeliest first: the most frequent, then the latest.
    pub(crate) fn next(self) -> Vec<Next<'a>> {
        let mut next: Vec<Next<'a>> = match self {
            Self::Matched { texts, at } => texts.after(at).collect(),
            Self::Likely { prompt, at, read } => {
                let likely = prompt.after(at, read);
                let next = likely.map(|(token, probability, kind, at)| Next {
                    token,
                    kind,
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
                    kind: Kind::of(source, read, 1, 1),
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
