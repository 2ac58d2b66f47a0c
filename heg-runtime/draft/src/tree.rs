//! Draft trees, grown best first over all sources.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::acceptance::AcceptanceBucket;
use crate::draft::{Draft, Drafted};
use crate::guess::{Guess, Next};

/// Alternatives considered after one token.
const BRANCHES: usize = 4;

/// A candidate for the tree.
struct Branch<'a> {
    parent: Option<u16>,
    next: Next<'a>,
    /// Acceptance probability given that the parent is right.
    probability: f32,
    path_probability: f32,
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
        self.path_probability.total_cmp(&other.path_probability)
    }
}

/// Grows a tree of at most `tokens_max` tokens, always adding the candidate with the highest path probability.
/// `probability` is the acceptance rate of a bucket.
pub(crate) fn grow(
    guesses: &[Guess<'_>],
    tokens_max: usize,
    probability: impl Fn(AcceptanceBucket) -> f32,
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
        // A sibling that is already in the tree takes its share of the probability: this token is right only if that is
        // wrong.
        let parent_probability = branch
            .parent
            .map_or(1.0, |at| draft.tokens()[at as usize].path_probability);
        let siblings = draft
            .children(branch.parent)
            .map(|drafted| drafted.path_probability);
        let taken = siblings.sum::<f32>() / parent_probability.max(f32::MIN_POSITIVE);
        let path_probability = parent_probability * branch.probability * (1.0 - taken).max(0.0);
        if path_probability < branch.path_probability
            && branches
                .peek()
                .is_some_and(|other| other.path_probability > path_probability)
        {
            branch.path_probability = path_probability;
            branches.push(branch);
            continue;
        }
        let drafted = Drafted {
            token: branch.next.token,
            parent: branch.parent,
            path_probability,
            bucket: branch.next.bucket,
        };
        if draft.push(drafted) {
            let at = (draft.len() - 1) as u16;
            branches.extend(branches_of(
                branch.next.then,
                Some(at),
                path_probability,
                &probability,
            ));
        }
    }
    draft
}

/// Candidates for the children of `parent`, from one guess; `path_probability` is the parent's.
fn branches_of<'a>(
    guess: Guess<'a>,
    parent: Option<u16>,
    path_probability: f32,
    probability: &impl Fn(AcceptanceBucket) -> f32,
) -> impl Iterator<Item = Branch<'a>> {
    guess.next().into_iter().take(BRANCHES).map(move |next| {
        let probability = probability(next.bucket);
        Branch {
            parent,
            next,
            probability,
            path_probability: path_probability * probability,
        }
    })
}
