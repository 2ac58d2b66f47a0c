//! Draft trees: the likeliest tokens first, from whatever source.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::acceptance::Kind;
use crate::draft::{Draft, Drafted};
use crate::guess::{Guess, Next};

/// Ways to go on that are looked at after one token.
const BRANCHES: usize = 4;

/// A token that may join the tree.
struct Branch<'a> {
    parent: Option<u16>,
    next: Next<'a>,
    /// How likely the token is after its parent.
    probability: f32,
    reach: f32,
}

impl PartialEq for Branch<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Branch<'_> {}

impl PartialOrd for Branch<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Branch<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.reach.total_cmp(&other.reach)
    }
}

/// A tree of at most so many tokens, by the likelihood of each kind of token.
pub(crate) fn grow(
    guesses: &[Guess<'_>],
    tokens_max: usize,
    probability: impl Fn(Kind) -> f32,
) -> Draft {
    let mut draft = Draft::default();
    let mut branches = BinaryHeap::new();
    for guess in guesses {
        for guess in guess.and_shorter() {
            branches.extend(branches_of(guess, None, 1.0, &probability));
        }
    }
    while draft.len() < tokens_max {
        let Some(mut branch) = branches.pop() else {
            break;
        };
        // Where others of the same place stand in the tree already, it is right only where they are wrong.
        let parent_reach = branch
            .parent
            .map_or(1.0, |at| draft.tokens()[at as usize].reach);
        let siblings = draft.children(branch.parent).map(|drafted| drafted.reach);
        let taken = siblings.sum::<f32>() / parent_reach.max(f32::MIN_POSITIVE);
        let reach = parent_reach * branch.probability * (1.0 - taken).max(0.0);
        if reach < branch.reach && branches.peek().is_some_and(|other| other.reach > reach) {
            branch.reach = reach;
            branches.push(branch);
            continue;
        }
        let drafted = Drafted {
            token: branch.next.token,
            parent: branch.parent,
            reach,
            kind: branch.next.kind,
        };
        if draft.push(drafted) {
            let at = (draft.len() - 1) as u16;
            branches.extend(branches_of(branch.next.then, Some(at), reach, &probability));
        }
    }
    draft
}

/// What may come after a token of the tree, by one guess.
fn branches_of<'a>(
    guess: Guess<'a>,
    parent: Option<u16>,
    reach: f32,
    probability: &impl Fn(Kind) -> f32,
) -> impl Iterator<Item = Branch<'a>> {
    guess.next().into_iter().take(BRANCHES).map(move |next| {
        let probability = probability(next.kind);
        Branch {
            parent,
            next,
            probability,
            reach: reach * probability,
        }
    })
}
