//! Drafted tokens: a chain, or a tree of alternative branches.

use crate::acceptance::AcceptanceBucket;

/// The source of a drafted token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DraftSource {
    /// The prompt and the answer so far.
    Context,
    /// Earlier answers.
    History,
    /// The answer that the client predicts.
    Prediction,
    /// A token that the model found likely within the prompt, though the prompt has another one there.
    Calibrated,
    /// The remainder of a draft whose earlier token was rejected.
    Reuse,
    /// A grammar that allows only this token.
    Forced,
}

impl DraftSource {
    /// Every source.
    pub const ALL: [Self; 6] = [
        Self::Context,
        Self::History,
        Self::Prediction,
        Self::Calibrated,
        Self::Reuse,
        Self::Forced,
    ];
}

/// A drafted token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drafted {
    /// The token.
    pub token: u32,
    /// Index of the drafted token before this one; `None`: it follows the answer so far.
    pub parent: Option<u16>,
    /// Cumulative acceptance probability: that this token and all its ancestors are right, 0 to 1.
    pub path_probability: f32,
    pub(crate) bucket: AcceptanceBucket,
}

/// A proposed continuation of an answer. Each token stands behind its parent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draft {
    tokens: Vec<Drafted>,
}

impl Drafted {
    /// Where it comes from.
    pub fn source(&self) -> DraftSource {
        self.bucket.source()
    }
}

impl Draft {
    /// A draft made elsewhere, all of it at probability 1: tokens, each with the index of its parent in the sequence.
    /// Parents precede their children. A token that repeats a sibling is dropped with its descendants.
    pub fn expected(tokens: impl IntoIterator<Item = (u32, Option<u16>)>) -> Self {
        let mut draft = Self::default();
        let mut places: Vec<Option<u16>> = Vec::new();
        for (token, parent) in tokens {
            let parent = parent.map(|parent| places.get(usize::from(parent)).copied().flatten());
            let drafted = |parent| Drafted {
                token,
                parent,
                path_probability: 1.0,
                bucket: AcceptanceBucket::of(DraftSource::Prediction, 1, 1, 1),
            };
            let added = match parent {
                Some(None) => false,
                Some(parent) => draft.push(drafted(parent)),
                None => draft.push(drafted(None)),
            };
            places.push(added.then(|| (draft.len() - 1) as u16));
        }
        draft
    }

    /// The draft pruned of tokens ≥ `vocabulary` and of their descendants.
    pub fn within(&self, vocabulary: u32) -> Self {
        let mut kept = Self::default();
        let mut places: Vec<Option<u16>> = Vec::new();
        for drafted in &self.tokens {
            let place = |at: u16| places.get(usize::from(at)).copied().flatten();
            let parent = drafted.parent.map(place);
            let is_kept = drafted.token < vocabulary && parent != Some(None);
            if is_kept {
                kept.tokens.push(Drafted {
                    parent: parent.flatten(),
                    ..*drafted
                });
            }
            places.push(is_kept.then(|| (kept.tokens.len() - 1) as u16));
        }
        kept
    }

    /// The drafted tokens.
    pub fn tokens(&self) -> &[Drafted] {
        &self.tokens
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the draft is empty.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The first `tokens` tokens. Every prefix of a tree is a tree.
    pub fn leading(&self, tokens: usize) -> Self {
        let tokens = self.tokens.get(..tokens).unwrap_or(&self.tokens);
        Self {
            tokens: tokens.to_vec(),
        }
    }

    /// The same tokens in depth-first order: the first child of a token stands right behind it.
    pub fn depth_first(&self) -> Self {
        let mut ordered = Self::default();
        // Stack of tokens to visit, each with its parent's new index.
        let mut next: Vec<(usize, Option<u16>)> = Vec::new();
        let mut parent = (None, None);
        loop {
            let (old, new) = parent;
            let numbered = self.tokens.iter().enumerate();
            let children = numbered.filter(|(_, drafted)| drafted.parent == old);
            next.extend(children.rev().map(|(at, _)| (at, new)));
            let Some((at, new)) = next.pop() else {
                return ordered;
            };
            ordered
                .tokens
                .extend(self.tokens.get(at).map(|drafted| Drafted {
                    parent: new,
                    ..*drafted
                }));
            parent = (Some(at as u16), Some((ordered.tokens.len() - 1) as u16));
        }
    }

    /// Whether each token follows the one before it.
    pub fn is_chain(&self) -> bool {
        let before = std::iter::once(None).chain((0..).map(Some));
        let mut tokens = self.tokens.iter().zip(before);
        tokens.all(|(drafted, before)| drafted.parent == before)
    }

    /// Expected number of tokens from a verification, the model's own included.
    pub fn expected_tokens(&self) -> f64 {
        let tokens = self.tokens.iter();
        1.0 + tokens
            .map(|drafted| f64::from(drafted.path_probability))
            .sum::<f64>()
    }

    /// Index of the child of `parent` that equals `token`.
    pub fn child(&self, parent: Option<u16>, token: u32) -> Option<u16> {
        let mut tokens = self.tokens.iter();
        let at = tokens.position(|drafted| drafted.parent == parent && drafted.token == token);
        at.map(|at| at as u16)
    }

    /// Tokens drafted directly after `parent`; `None`: after the answer so far.
    pub(crate) fn children(&self, parent: Option<u16>) -> impl Iterator<Item = &Drafted> {
        let tokens = self.tokens.iter();
        tokens.filter(move |drafted| drafted.parent == parent)
    }

    /// Adds a token. Returns false if its parent has this child already, or the draft is full.
    pub(crate) fn push(&mut self, drafted: Drafted) -> bool {
        let is_new = self.child(drafted.parent, drafted.token).is_none();
        let fits = self.tokens.len() < usize::from(u16::MAX);
        if is_new && fits {
            self.tokens.push(drafted);
        }
        is_new && fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(draft: &Draft) -> Vec<(u32, Option<u16>)> {
        let tokens = draft.tokens().iter();
        tokens
            .map(|drafted| (drafted.token, drafted.parent))
            .collect()
    }

    #[test]
    fn depth_first_keeps_the_tree_and_puts_first_children_behind_their_parents() {
        let grown = [
            (1, None),
            (2, None),
            (3, Some(0)),
            (4, Some(1)),
            (5, Some(0)),
            (6, Some(2)),
        ];
        let ordered = Draft::expected(grown).depth_first();
        let expected = [
            (1, None),
            (3, Some(0)),
            (6, Some(1)),
            (5, Some(0)),
            (2, None),
            (4, Some(4)),
        ];
        assert_eq!(shape(&ordered), expected);
        assert_eq!(ordered.depth_first(), ordered);
    }

    #[test]
    fn a_token_out_of_the_vocabulary_goes_with_all_that_follow_it() {
        let tokens = [
            (1, None),
            (90, Some(0)),
            (2, Some(1)),
            (3, Some(0)),
            (4, Some(3)),
        ];
        let kept = Draft::expected(tokens).within(90);
        assert_eq!(shape(&kept), [(1, None), (3, Some(0)), (4, Some(1))]);
        assert!(Draft::expected([(90, None)]).within(90).is_empty());
    }

    #[test]
    fn a_token_stands_once_at_its_place() {
        let tokens = [(1, None), (1, None), (2, Some(1)), (3, Some(0))];
        assert_eq!(shape(&Draft::expected(tokens)), [(1, None), (3, Some(0))]);
    }
}
