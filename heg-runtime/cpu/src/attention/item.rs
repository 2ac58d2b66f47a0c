//! Division of a call into work items for threads.

use super::{AttentionCall, Shape};
use heg_artifacts::program::Attention;
use std::ops::Range;

/// Most elements of queries in an item's scratch memory, unless one token has more; sums take as many. Chosen: both
/// stay in a level-2 cache of 512 KiB, and packing a block costs a fiftieth of its products.
const ITEM_ELEMENTS: usize = 32 * 1024;

/// Calls of at most this many query rows per key/value head are bound by reading the context. Chosen.
const FEW_QUERY_ROWS: usize = 32;

/// Fewest bytes of each context row that an item of such a call reads, if there are enough heads for all threads.
/// Measured: contexts of 2048 tokens with heads of 128 bytes took 0.60, 0.43, 0.30 and 0.26 ms by 1, 2, 4 and 8 heads,
/// while heads of 512 bytes were as fast alone.
const PIECE_BYTES: usize = 1024;

/// Items per thread in a long chunk. Chosen: their lengths differ up to twofold.
const ITEMS_PER_THREAD: usize = 4;

/// Granularity of items of a long chunk, in tokens. Chosen.
const TOKENS_STEP: usize = 16;

/// A part of a call that one thread computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttentionItem {
    /// Key/value heads, with their query heads.
    pub(crate) kv_heads: Range<usize>,
    /// Tokens, relative to the call's first.
    pub(crate) rows: Range<usize>,
}

/// The work items of a part of a call, the longest first.
#[derive(Debug, Clone)]
pub(crate) struct AttentionItems {
    part: AttentionItem,
    kv_heads_step: usize,
    rows_step: usize,
}

impl AttentionItems {
    /// Divides `part` among `threads` threads.
    pub(crate) fn of(call: &AttentionCall<'_>, part: AttentionItem, threads: usize) -> Self {
        let (kv_heads, rows) = (part.kv_heads.len(), part.rows.len());
        let shape = Shape::of(&call.attributes);
        let most_rows = most_rows(shape);
        let (kv_heads_step, rows_step) = if rows * shape.group <= FEW_QUERY_ROWS {
            let heads = PIECE_BYTES.div_ceil(call.element.head_bytes(shape.head_dim).max(1));
            let fair = kv_heads / threads.max(1);
            let fit = most_rows / rows.max(1);
            (heads.min(fair).min(fit).max(1), most_rows)
        } else {
            let cuts = (ITEMS_PER_THREAD * threads).div_ceil(kv_heads.max(1));
            let rows = rows.div_ceil(cuts.max(1));
            (1, rows.next_multiple_of(TOKENS_STEP).min(most_rows))
        };
        Self {
            part,
            kv_heads_step,
            rows_step,
        }
    }

    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        self.head_steps() * self.row_steps()
    }

    /// The item at `index`.
    pub(crate) fn get(&self, index: usize) -> AttentionItem {
        let AttentionItem { kv_heads, rows } = &self.part;
        // Later rows see more tokens.
        let row = rows.start + (self.row_steps() - 1 - index / self.head_steps()) * self.rows_step;
        let head = kv_heads.start + (index % self.head_steps()) * self.kv_heads_step;
        AttentionItem {
            kv_heads: head..(head + self.kv_heads_step).min(kv_heads.end),
            rows: row..(row + self.rows_step).min(rows.end),
        }
    }

    fn head_steps(&self) -> usize {
        self.part.kv_heads.len().div_ceil(self.kv_heads_step)
    }

    fn row_steps(&self) -> usize {
        self.part.rows.len().div_ceil(self.rows_step)
    }
}

/// Most tokens of an item with one key/value head.
fn most_rows(shape: Shape) -> usize {
    (ITEM_ELEMENTS / (shape.group * shape.width).max(1)).max(1)
}

/// Most query rows of an item of calls with these attributes.
pub(super) fn most_query_rows(attributes: &Attention) -> usize {
    let shape = Shape::of(attributes);
    most_rows(shape) * shape.group
}
