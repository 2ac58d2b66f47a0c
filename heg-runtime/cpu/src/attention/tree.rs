//! New tokens that are a tree: several ways in which a sequence may go on, verified in one call.
//!
//! Keys and values of the new tokens lie behind each other, in the order of the call, but a token's position is the one
//! that it has on its own way: behind the token that it follows. It sees the context, and of the call those tokens alone
//! that its way leads through. Tokens that follow each other are a *chain* of the tree.

use std::ops::Range;

/// Tokens of a tree at most.
pub const TREE_TOKENS_MAX: usize = 64;

/// The new tokens of a sequence, as a tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree<'a> {
    follows: &'a [u16],
}

impl<'a> Tree<'a> {
    /// `follows` has for each token but the first the number of the earlier one that it follows.
    pub(crate) fn new(follows: &'a [u16]) -> Self {
        Self { follows }
    }

    /// The token that a token follows.
    fn before(self, token: usize) -> Option<usize> {
        let at = token.checked_sub(1)?;
        let before = self.follows.get(at).map(|before| usize::from(*before));
        // Each is an earlier one, so that every way ends.
        before.filter(|before| *before < token)
    }

    /// The chains of a part of the tokens, in order.
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

    /// The way to a token.
    pub(super) fn way(self, token: usize) -> Way {
        let mut way = Way {
            tokens: [0; TREE_TOKENS_MAX],
            len: 0,
        };
        let mut at = Some(token);
        while let (Some(token), true) = (at, way.len < TREE_TOKENS_MAX) {
            way.tokens[way.len] = token;
            way.len += 1;
            at = self.before(token);
        }
        way.tokens[..way.len].reverse();
        way
    }
}

/// The tokens of a tree that lead to one of them, in order, itself the last.
pub(super) struct Way {
    tokens: [usize; TREE_TOKENS_MAX],
    len: usize,
}

impl Way {
    /// Their number.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The row of keys and values of a position, where the tree's first token has the position `first`.
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
        let way = tree.way(6);
        assert_eq!(way.tokens[..way.len()], [0, 1, 5, 6]);
        let rows: Vec<_> = (99..104).map(|position| way.row(position, 100)).collect();
        assert_eq!(rows, [99, 100, 101, 105, 106]);
    }
}
