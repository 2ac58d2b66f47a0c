//! New tokens as a tree: alternative continuations of a sequence, verified in one call.
//!
//! Keys and values of the new tokens are stored in the order of the call, but a token's position is its depth: one
//! behind its parent. It sees the context, and of the call only its own branch: its ancestors. A run of tokens that
//! follow each other in both orders is a *chain*.

use std::ops::Range;

/// Most tokens of a tree.
pub const TREE_TOKENS_MAX: usize = 64;

/// The new tokens of a sequence, as a tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree<'a> {
    follows: &'a [u16],
}

impl<'a> Tree<'a> {
    /// `follows` has, for each token but the first, the index of the earlier token that it follows.
    pub(crate) fn new(follows: &'a [u16]) -> Self {
        Self { follows }
    }

    /// The parent of a token.
    fn before(self, token: usize) -> Option<usize> {
        let at = token.checked_sub(1)?;
        let before = self.follows.get(at).map(|before| usize::from(*before));
        // Parents are earlier tokens, so every branch ends.
        before.filter(|before| *before < token)
    }

    /// The chains of `tokens`, in order.
    pub(super) fn chains(
        self,
        tokens: Range<usize>,
    ) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let mut first = tokens.start;
        std::iter::from_fn(move || {
            let chain = first
                ..(first + 1..tokens.end)
                    .find(|token| self.before(*token) != Some(token - 1))
                    .unwrap_or(tokens.end);
            first = chain.end;
            (!chain.is_empty()).then_some(chain)
        })
    }

    /// The branch that ends with `token`.
    pub(super) fn branch(self, token: usize) -> Branch {
        let mut branch = Branch {
            tokens: [0; TREE_TOKENS_MAX],
            len: 0,
        };
        let mut at = Some(token);
        while let (Some(token), true) = (at, branch.len < TREE_TOKENS_MAX) {
            branch.tokens[branch.len] = token;
            branch.len += 1;
            at = self.before(token);
        }
        branch.tokens[..branch.len].reverse();
        branch
    }
}

/// The path from the root of a tree to a token, in order, inclusive.
pub(super) struct Branch {
    tokens: [usize; TREE_TOKENS_MAX],
    len: usize,
}

impl Branch {
    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The row of keys and values for a position; `first` is the position of the tree's first token.
    pub(super) fn row(&self, position: usize, first: usize) -> usize {
        let at = position.checked_sub(first);
        let token = at.and_then(|at| self.tokens[..self.len].get(at));
        token.map_or(position, |token| first + token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_and_ways_are_those_of_the_tree() {
        // 0 ─ 1 ─ 2 ─ 3
        //     │   └─ 4
        //     └─ 5 ─ 6
        let tree = Tree::new(&[0, 1, 2, 2, 1, 5]);
        let chains: Vec<_> = tree.chains(0..7).collect();
        assert_eq!(chains, [0..4, 4..5, 5..7]);
        let chains: Vec<_> = tree.chains(1..6).collect();
        assert_eq!(chains, [1..4, 4..5, 5..6]);
        let branch = tree.branch(6);
        assert_eq!(branch.tokens[..branch.len()], [0, 1, 5, 6]);
        let rows: Vec<_> = (99..104)
            .map(|position| branch.row(position, 100))
            .collect();
        assert_eq!(rows, [99, 100, 101, 105, 106]);
    }
}
