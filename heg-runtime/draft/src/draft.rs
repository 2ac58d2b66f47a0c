//! Drafted tokens: one after the other, or several ways to go on, as a tree.

use crate::acceptance::Kind;

/// Where a drafted token comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// The prompt and the answer so far.
    Context,
    /// Earlier answers.
    History,
    /// What the client expects the answer to be.
    Prediction,
    /// What the model found likely within the prompt, though it did not stand there.
    Calibrated,
    /// The rest of a draft that was rejected at an earlier token.
    Reuse,
    /// A grammar that allows nothing else.
    Forced,
}

impl Source {
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
    /// The drafted token before it, by its place in the draft; none where it follows the answer so far.
    pub parent: Option<u16>,
    /// How likely it and all tokens before it are right.
    pub reach: f32,
    pub(crate) kind: Kind,
}

/// Tokens that an answer may go on with. Each stands after the one that it follows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draft {
    tokens: Vec<Drafted>,
}

impl Draft {
    /// The drafted tokens.
    pub fn tokens(&self) -> &[Drafted] {
        &self.tokens
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing is drafted.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The first so many tokens. Of a tree any leading part is a tree.
    pub fn leading(&self, tokens: usize) -> Self {
        let tokens = self.tokens.get(..tokens).unwrap_or(&self.tokens);
        Self {
            tokens: tokens.to_vec(),
        }
    }

    /// Tokens that a verification is expected to give, the model's own included.
    pub fn expected_tokens(&self) -> f64 {
        let reaches = self.tokens.iter().map(|drafted| f64::from(drafted.reach));
        1.0 + reaches.sum::<f64>()
    }

    /// The token drafted after `parent` that equals the model's.
    pub fn child(&self, parent: Option<u16>, token: u32) -> Option<u16> {
        let mut tokens = self.tokens.iter();
        let at = tokens.position(|drafted| drafted.parent == parent && drafted.token == token);
        at.map(|at| at as u16)
    }

    /// Tokens drafted after the answer so far, or after a drafted token.
    pub(crate) fn children(&self, parent: Option<u16>) -> impl Iterator<Item = &Drafted> {
        let tokens = self.tokens.iter();
        tokens.filter(move |drafted| drafted.parent == parent)
    }

    /// Adds a token; false where that place has it already, or the draft is full.
    pub(crate) fn push(&mut self, drafted: Drafted) -> bool {
        let is_new = self.child(drafted.parent, drafted.token).is_none();
        let fits = self.tokens.len() < usize::from(u16::MAX);
        if is_new && fits {
            self.tokens.push(drafted);
        }
        is_new && fits
    }
}
