//! The order in which a work item processes positions: at once for a sequence; for a tree, first the context, then the
//! part of the tree that each chain sees.

use super::tree::Branch;
use super::{AttentionCall, BLOCK};
use heg_spec::Sight;
use std::iter;
use std::ops::Range;

/// A run of an item's tokens with consecutive positions, and the positions that they attend to.
pub(super) struct Stage {
    /// The tokens, relative to the item's first.
    pub(super) tokens: Range<usize>,
    /// Position of the first token.
    pub(super) position: usize,
    /// Positions to process, before the window of each token is applied.
    pub(super) seen: Range<usize>,
    /// For a chain of a tree, the branch that ends with its last token.
    pub(super) branch: Option<Branch>,
}

/// The stages of an item with these tokens. Each token sees positions in ascending order.
pub(super) fn stages<'a>(
    call: &'a AttentionCall<'a>,
    tokens: Range<usize>,
    window: usize,
) -> impl Iterator<Item = Stage> + use<'a> {
    let first_seen = move |position: usize| (position + 1).saturating_sub(window);
    // Positions in whole blocks that every token of a tree sees.
    let shared = if call.position + call.rows <= window {
        call.position / BLOCK * BLOCK
    } else {
        0
    };
    let (position, end) = (call.position + tokens.start, call.position + tokens.end);
    let (position, seen) = match call.tree {
        None if call.attributes.sight == Sight::Whole => (position, 0..call.position + call.rows),
        None => (position, first_seen(position)..end),
        // Wherever they stand, their windows reach all of the context.
        Some(_) => (call.position, 0..shared),
    };
    let first = Stage {
        tokens: 0..tokens.len(),
        position,
        seen,
        branch: None,
    };
    let first_token = tokens.start;
    let chains = call.tree.into_iter().flat_map(move |tree| {
        let of_tree = tree.chains(tokens.clone());
        of_tree.map(move |chain| (tree.branch(chain.end - 1), chain))
    });
    let last = chains.map(move |(branch, chain)| {
        let end = call.position + branch.len();
        let position = end - chain.len();
        Stage {
            tokens: chain.start - first_token..chain.end - first_token,
            position,
            seen: first_seen(position).max(shared)..end,
            branch: Some(branch),
        }
    });
    iter::once(first).chain(last)
}
