//! Keys and values of the next block, prefetched line by line while this one is computed: a core has only a few lines under
//! way, so a burst of them would stop it, and nothing would be read while it computes.

use super::KvElement;
use super::block::HeadRows;
use crate::prefetch::prefetch_later;
use std::ops::Range;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Keys and values of the next block that are not prefetched yet.
pub(super) struct Next {
    keys: HeadRows,
    values: HeadRows,
    /// Bytes per row.
    row_bytes: usize,
    /// Tokens left to prefetch; the first may be partly done.
    tokens: Range<usize>,
    /// Byte offset to continue from in the first token's row.
    byte: usize,
    /// Lines of keys, and as many of values, in all.
    lines: usize,
    /// Number of steps in all.
    steps: usize,
    /// Steps made times lines, less lines prefetched times steps.
    due: usize,
}

impl Next {
    /// Prefetches the first `tokens` tokens of both, spread over `steps` steps. `is_last`: the item has no head behind
    /// this one.
    pub(super) fn new(
        element: KvElement,
        [keys, values]: [HeadRows; 2],
        is_last: bool,
        tokens: usize,
        steps: usize,
    ) -> Self {
        let row_bytes = match (element, is_last) {
            // The line with the scales is that of the next head's elements.
            (KvElement::I8, false) => keys.len,
            _ => element.head_bytes(keys.len),
        };
        Self {
            keys,
            values,
            row_bytes,
            tokens: 0..tokens,
            byte: 0,
            lines: tokens * row_bytes.div_ceil(LINE_BYTES),
            steps: steps.max(1),
            due: 0,
        }
    }

    /// Prefetches the lines of one step.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        self.due += self.lines;
        while self.due >= self.steps {
            self.due -= self.steps;
            self.line();
        }
    }

    /// Prefetches a line of keys and one of values.
    #[inline(always)]
    fn line(&mut self) {
        if self.tokens.is_empty() {
            return;
        }
        for rows in [self.keys, self.values] {
            let row = self.tokens.start * rows.stride_bytes;
            prefetch_later(rows.start.wrapping_add(row + self.byte));
        }
        self.byte += LINE_BYTES;
        if self.byte >= self.row_bytes {
            self.byte = 0;
            self.tokens.start += 1;
        }
    }
}
