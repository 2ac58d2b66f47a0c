//! The order in which a work item takes positions in: all at once, or for a tree the context first, and then what each of
//! its chains sees of the tree.

use super::tree::Way;
use super::{AttentionCall, BLOCK};
use std::iter;
use std::ops::Range;

/// Tokens of an item whose positions follow each other, and what they take in.
pub(super) struct Stage {
    /// The tokens, counted from the item's first.
    pub(super) tokens: Range<usize>,
    /// Position of the first.
    pub(super) position: usize,
    /// The positions that are taken in, as far as a token's window has them.
    pub(super) seen: Range<usize>,
    /// For a chain of a tree, the way to its last token.
    pub(super) way: Option<Way>,
}

/// All that an item of these tokens takes in, in ascending order for each token.
pub(super) fn stages<'a>(
    call: &'a AttentionCall<'a>,
    tokens: Range<usize>,
    window: usize,
) -> impl Iterator<Item = Stage> + use<'a> {
    let first_seen = move |position: usize| (position + 1).saturating_sub(window);
    // The blocks that every token of a tree sees all of.
    let shared = match call.position + call.rows <= window {
        true => call.position / BLOCK * BLOCK,
        false => 0,
    };
    let (position, end) = (call.position + tokens.start, call.position + tokens.end);
    let (position, seen) = match call.tree {
        None => (position, first_seen(position)..end),
        // Wherever they stand: their windows reach all of the context.
        Some(_) => (call.position, 0..shared),
    };
    let first = Stage {
        tokens: 0..tokens.len(),
        position,
        seen,
        way: None,
    };
    let first_token = tokens.start;
    let chains = call.tree.into_iter().flat_map(move |tree| {
        let chains = tree.chains(tokens.clone());
        chains.map(move |chain| (tree.way(chain.end - 1), chain))
    });
    let chains = chains.map(move |(way, chain)| {
        let end = call.position + way.len();
        let position = end - chain.len();
        Stage {
            tokens: chain.start - first_token..chain.end - first_token,
            position,
            seen: first_seen(position).max(shared)..end,
            way: Some(way),
        }
    });
    iter::once(first).chain(chains)
}
