//! A way in which an answer may go on: a match in an automaton, or tokens that are expected.

use crate::acceptance::Kind;
use crate::automaton::{Automaton, Match};
use crate::draft::Source;

/// Shorter matches that are looked at beside the longest.
const SHORTER: usize = 2;

/// What the next drafted tokens are taken from.
#[derive(Clone, Copy)]
pub(crate) enum Guess<'a> {
    /// What came after a run of tokens before.
    Matched {
        source: Source,
        texts: &'a Automaton,
        at: Match,
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

impl<'a> Guess<'a> {
    /// A match in texts; the longest suffix of it that anything came after.
    pub(crate) fn matched(source: Source, texts: &'a Automaton, mut at: Match) -> Option<Self> {
        while at.length > 0 {
            if texts.continuations(at).next().is_some() {
                return Some(Self::Matched { source, texts, at });
            }
            at = texts.shorter(at)?;
        }
        None
    }

    /// It, and what shorter matches say, which is something else at times.
    pub(crate) fn and_shorter(self) -> impl Iterator<Item = Self> {
        let guesses = std::iter::successors(Some(self), |guess| guess.shorter());
        guesses.take(1 + SHORTER)
    }

    fn shorter(self) -> Option<Self> {
        match self {
            Self::Matched { source, texts, at } => Self::matched(source, texts, texts.shorter(at)?),
            Self::Expected { .. } => None,
        }
    }

    /// The tokens that may come next, the likeliest first: the most frequent, then the latest.
    pub(crate) fn next(self) -> Vec<Next<'a>> {
        match self {
            Self::Matched { source, texts, at } => {
                let all = texts.count(at);
                let mut next: Vec<Next<'a>> = texts
                    .continuations(at)
                    .map(|came| Next {
                        token: came.token,
                        kind: Kind::of(source, at.length, came.count, all),
                        then: Self::Matched {
                            source,
                            texts,
                            at: came.after(at),
                        },
                        rank: (came.count, came.seen),
                    })
                    .collect();
                next.sort_by_key(|next| std::cmp::Reverse(next.rank));
                next
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
        }
    }
}
