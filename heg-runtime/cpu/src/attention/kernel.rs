//! The attention kernel: one work item, block by block.

use super::block::{Bf16, Element, F32, HeadRows, transpose, transpose_steps, widen};
use super::integers::round_query;
use super::next::Next;
use super::scratch::STRIP;
use super::softmax::{Strip, weigh};
use super::stage::{Stage, stages};
use super::tile::{Products, Start, TILE_ROWS, compute, steps};
use super::tree::Branch;
use super::{AttentionCall, AttentionScratch, BLOCK, KvElement, Shape};
use crate::lanes::{Kernel, LANES, Lanes};
use heg_spec::Sight;
use std::f32::consts::LOG2_E;
use std::marker::PhantomData;
use std::ops::Range;

/// A work item. Query rows are numbered by key/value head, then token, then query head.
pub(super) struct Item<'a> {
    call: &'a AttentionCall<'a>,
    kv_heads: Range<usize>,
    /// Tokens, relative to the call's first.
    tokens: Range<usize>,
    pub(super) shape: Shape,
    /// Number of tokens that a row sees, its own included.
    window: usize,
    pub(super) scratch: &'a mut AttentionScratch,
}

impl<'a> Item<'a> {
    pub(super) fn new(
        call: &'a AttentionCall<'a>,
        kv_heads: Range<usize>,
        tokens: Range<usize>,
        scratch: &'a mut AttentionScratch,
    ) -> Self {
        let window = call.attributes.window;
        Self {
            call,
            kv_heads,
            tokens,
            shape: Shape::of(&call.attributes),
            window: window.map_or(usize::MAX, |window| window.max(1) as usize),
            scratch,
        }
    }
}

impl Kernel for Item<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        if self.tokens.is_empty() {
            return;
        }
        // SAFETY: the caller of `attend` has the rows, and scratch memory has room for an item of the call.
        unsafe {
            self.start::<L>();
            for stage in stages(self.call, self.tokens.clone(), self.window) {
                self.attend_stage::<L>(&stage);
            }
            self.finish::<L>();
        }
    }
}

/// A query row.
struct QueryRow {
    /// Index within the item.
    number: usize,
    /// Token, relative to the call's first.
    token: usize,
    /// First element in a row of all heads.
    first: usize,
}

/// A block of one key/value head.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// Index of the key/value head within the item.
    head: usize,
    /// Position of the block's first token.
    start: usize,
    /// Values, in place, gathered or widened; unused where they are in pairs.
    pub(super) values: HeadRows,
    /// Element type of the values.
    pub(super) element: KvElement,
    /// Whether all tokens of values that are integers are there, and sums of weights times their scales are finite.
    pub(super) is_plain: bool,
}

// Query, key, value and output rows are those of the item, which the caller of `attend` has; scratch memory has room
// for the item's query rows, a strip of scores and a block of keys and values.
impl Item<'_> {
    /// Processes the positions of a stage.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    unsafe fn attend_stage<L: Lanes>(&mut self, stage: &Stage) {
        let seen = stage.seen.clone();
        for block in seen.start / BLOCK..seen.end.div_ceil(BLOCK) {
            let within = seen.start.max(block * BLOCK)..seen.end.min((block + 1) * BLOCK);
            for head in 0..self.kv_heads.len() {
                // SAFETY: `head` is one of the item's, and `within` are positions of one block that the stage sees.
                unsafe { self.attend_block::<L>(stage, head, within.clone()) };
            }
        }
    }

    /// Index of a token's first query row. Head and token are relative to the item's first.
    fn first_row(&self, head: usize, token: usize) -> usize {
        (head * self.tokens.len() + token) * self.shape.group
    }

    /// All query rows in order.
    fn query_rows(&self) -> impl Iterator<Item = QueryRow> + use<> {
        let (group, head_dim) = (self.shape.group, self.shape.head_dim);
        let (kv_heads, tokens) = (self.kv_heads.clone(), self.tokens.clone());
        let tokens =
            kv_heads.flat_map(move |kv_head| tokens.clone().map(move |token| (kv_head, token)));
        let rows = tokens.flat_map(move |(kv_head, token)| {
            let heads = kv_head * group..(kv_head + 1) * group;
            heads.map(move |head| (token, head * head_dim))
        });
        let rows = rows.enumerate();
        rows.map(|(number, (token, first))| QueryRow {
            number,
            token,
            first,
        })
    }

    /// Scales the queries and resets the softmax state.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    unsafe fn start<L: Lanes>(&mut self) {
        let (head_dim, width) = (self.shape.head_dim, self.shape.width);
        let attributes = &self.call.attributes;
        let factor = match attributes.softcap {
            Some(cap) => attributes.scale / cap,
            None => attributes.scale * LOG2_E,
        };
        for row in self.query_rows() {
            // SAFETY: the caller of `attend` has the query rows; `queries`, `sums`, `totals` and `largest` have each
            // query row of an item.
            unsafe {
                let at = row.token * self.call.query_stride + row.first;
                let query = self.call.query.add(at);
                let scaled = self.scratch.queries.start().add(row.number * width);
                let sums = self.scratch.sums.start().add(row.number * width);
                if self.call.element == KvElement::I8 {
                    let unit = round_query(query, head_dim, scaled.cast());
                    *self.scratch.units.start().add(row.number) = unit * factor;
                }
                for first in (0..head_dim).step_by(LANES) {
                    if self.call.element != KvElement::I8 {
                        let lanes = L::load_first(query.add(first), LANES.min(head_dim - first));
                        lanes.mul(L::splat(factor)).store(scaled.add(first));
                    }
                    L::splat(0.0).store(sums.add(first));
                }
                L::splat(0.0).store(self.scratch.totals.start().add(row.number * LANES));
                *self.scratch.largest.start().add(row.number) = f32::NEG_INFINITY;
            }
        }
    }

    /// Writes sums divided by totals to the output rows.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    unsafe fn finish<L: Lanes>(&mut self) {
        let (head_dim, width) = (self.shape.head_dim, self.shape.width);
        for row in self.query_rows() {
            // SAFETY: the caller of `attend` has the output rows; `sums` and `totals` have each query row of an item.
            unsafe {
                let at = row.token * self.call.out_stride + row.first;
                let out = self.call.out.add(at);
                let sums = self.scratch.sums.start().add(row.number * width);
                let totals = self.scratch.totals.start().add(row.number * LANES);
                let total = L::splat(L::load(totals).sum());
                for first in (0..head_dim).step_by(LANES) {
                    let lanes = L::load(sums.add(first)).div(total);
                    lanes.store_first(out.add(first), LANES.min(head_dim - first));
                }
            }
        }
    }

    /// Processes a block for the rows of a stage that see any of it. `seen` are the positions of the block that at
    /// least one of them sees.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    unsafe fn attend_block<L: Lanes>(&mut self, stage: &Stage, head: usize, seen: Range<usize>) {
        let start = seen.start / BLOCK * BLOCK;
        // Rows see the block from its first token on, until their window has passed its last.
        let past_position = (start + BLOCK - 1).saturating_add(self.window);
        let past_tokens = past_position.saturating_sub(stage.position);
        let past = stage.tokens.start + past_tokens.min(stage.tokens.len());
        let from = match self.call.attributes.sight {
            Sight::Causal => stage.tokens.start + start.saturating_sub(stage.position),
            Sight::Whole => stage.tokens.start,
        };
        let rows = self.first_row(head, from)..self.first_row(head, past);
        // SAFETY: the item has these rows, and `block` has transposed all tokens of the block that they see.
        unsafe {
            let (block, mut next) = self.block::<L>(stage, head, seen, rows.len());
            for first in rows.clone().step_by(STRIP) {
                let rows = first..rows.end.min(first + STRIP);
                self.attend_strip::<L>(stage, block, rows, &mut next);
            }
        }
    }

    /// Converts the `seen` keys and values of a block to the form that tiles of `rows` rows read. Starts the prefetch of the
    /// part of the next block that the stage sees.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    unsafe fn block<L: Lanes>(
        &mut self,
        stage: &Stage,
        head: usize,
        seen: Range<usize>,
        rows: usize,
    ) -> (Block, Next) {
        let element = self.call.element;
        let start = seen.start / BLOCK * BLOCK;
        let visible = seen.start - start..seen.end - start;
        let keys = self.head_rows(self.call.keys, head, start);
        let values = self.head_rows(self.call.values, head, start);
        let steps = match element {
            KvElement::I8 => self.integer_steps::<L>(rows, &visible),
            _ => self.float_steps::<L>(rows, &visible),
        };
        let next_tokens = stage.seen.end.saturating_sub(start + BLOCK).min(BLOCK);
        let is_last = head + 1 == self.kv_heads.len();
        let ahead = [keys, values].map(|rows| rows.from(BLOCK));
        let mut next = Next::new(element, ahead, is_last, next_tokens, steps);
        let [keys, values] = match &stage.branch {
            // SAFETY: the caller of `attend` has the keys and values of all positions that a row sees, and `gathered`
            // has two blocks of them.
            Some(branch) if seen.end > self.call.position => unsafe {
                self.gather(head, seen, branch)
            },
            _ => [keys, values],
        };
        let block = Block {
            head,
            start,
            values,
            element,
            is_plain: false,
        };
        // SAFETY: the rows of `visible` tokens are readable.
        let block = unsafe {
            match element {
                KvElement::F32 => self.convert::<L, F32>(block, keys, visible, rows, &mut next),
                KvElement::Bf16 => self.convert::<L, Bf16>(block, keys, visible, rows, &mut next),
                KvElement::I8 => Block {
                    is_plain: self.pair::<L>([keys, values], visible, &mut next),
                    ..block
                },
            }
        };
        (block, next)
    }

    /// Number of prefetch steps of a block of floats.
    fn float_steps<L: Lanes>(&self, rows: usize, visible: &Range<usize>) -> usize {
        let Shape {
            head_dim, width, ..
        } = self.shape;
        transpose_steps(self.call.element.head_bytes(head_dim), visible)
            + steps::<L>(rows, visible.len().div_ceil(LANES), head_dim)
            + steps::<L>(rows, width / LANES, visible.len())
    }

    /// Transposes the `visible` keys of a block, and widens its values if `rows` rows make that worthwhile.
    ///
    /// # Safety
    ///
    /// Rows of the `visible` tokens are readable.
    #[inline(always)]
    unsafe fn convert<L: Lanes, E: Element>(
        &mut self,
        block: Block,
        keys: HeadRows,
        visible: Range<usize>,
        rows: usize,
        next: &mut Next,
    ) -> Block {
        let width = self.shape.width;
        // SAFETY: the rows are readable; `keys` and `values` in scratch memory have a block of `width` elements.
        unsafe {
            transpose::<L, E>(keys, visible.clone(), self.scratch.keys.start(), next);
            if rows <= TILE_ROWS && self.shape.head_dim == width {
                return block;
            }
            let to = self.scratch.values.start();
            widen::<L, E>(block.values, visible, to, width);
            Block {
                element: KvElement::F32,
                values: HeadRows {
                    start: to.cast_const().cast(),
                    stride_bytes: width * size_of::<f32>(),
                    len: width,
                },
                ..block
            }
        }
    }

    /// Copies keys and values of the `seen` positions of a block to where they are in order of position.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(never)]
    unsafe fn gather(&mut self, head: usize, seen: Range<usize>, branch: &Branch) -> [HeadRows; 2] {
        let start = seen.start / BLOCK * BLOCK;
        let stride_bytes = self.call.element.head_bytes(self.shape.width);
        let half_bytes = BLOCK * stride_bytes;
        let gathered: *mut u8 = self.scratch.gathered.start().cast();
        for position in seen {
            let row = branch.row(position, self.call.position);
            let to = gathered.wrapping_add((position - start) * stride_bytes);
            let keys = self.head_rows(self.call.keys, head, row);
            let values = self.head_rows(self.call.values, head, row);
            // SAFETY: both halves of the memory have room for a block, and the row is one that the last token sees.
            unsafe {
                let bytes = self.call.element.head_bytes(keys.len);
                to.copy_from_nonoverlapping(keys.start, bytes);
                to.add(half_bytes)
                    .copy_from_nonoverlapping(values.start, bytes);
            }
        }
        [0, half_bytes].map(|half| HeadRows {
            start: gathered.wrapping_add(half).cast_const(),
            stride_bytes,
            len: self.shape.head_dim,
        })
    }

    /// A head's rows from `position` on.
    fn head_rows(&self, rows: *const u8, head: usize, position: usize) -> HeadRows {
        let head_bytes = self.call.element.head_bytes(self.shape.head_dim);
        let head_start = (self.kv_heads.start + head) * head_bytes;
        HeadRows {
            start: rows.wrapping_add(position * self.call.kv_stride_bytes + head_start),
            stride_bytes: self.call.kv_stride_bytes,
            len: self.shape.head_dim,
        }
    }

    /// Processes a block for a strip of query rows that see some of it.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    unsafe fn attend_strip<L: Lanes>(
        &mut self,
        stage: &Stage,
        block: Block,
        rows: Range<usize>,
        next: &mut Next,
    ) {
        let mut visible = [const { 0..0 }; STRIP];
        for (row, tokens) in rows.clone().zip(&mut visible) {
            *tokens = self.visible(stage, block, row);
        }
        let visible = &visible[..rows.len()];
        // SAFETY: rows of a strip are at most `STRIP`, for which `scores` and `factors` have room, and `largest` and
        // `totals` have every query row.
        unsafe {
            for (tile, visible) in visible.chunks(TILE_ROWS).enumerate() {
                let row = tile * TILE_ROWS;
                match self.call.element {
                    KvElement::I8 => self.score_integers::<L>(rows.start, row, visible, next),
                    _ => self.score::<L>(rows.start, row, visible, next),
                }
            }
            let strip = Strip {
                scores: self.scratch.scores.start(),
                largest: self.scratch.largest.start().add(rows.start),
                totals: self.scratch.totals.start().add(rows.start * LANES),
                factors: self.scratch.factors.start(),
            };
            let softcap = self.call.attributes.softcap.map(|cap| cap * LOG2_E);
            weigh::<L>(strip, visible, softcap);
            for (tile, visible) in visible.chunks(TILE_ROWS).enumerate() {
                self.add::<L>(block, rows.start, tile * TILE_ROWS, visible, next);
            }
        }
    }

    /// Tokens of the block that a query row sees.
    fn visible(&self, stage: &Stage, block: Block, row: usize) -> Range<usize> {
        let token = row / self.shape.group - block.head * self.tokens.len();
        let end = match self.call.attributes.sight {
            Sight::Causal => stage.position + (token - stage.tokens.start) + 1,
            Sight::Whole => self.call.position + self.call.rows,
        };
        let start = end.saturating_sub(self.window);
        start.saturating_sub(block.start)..(end - block.start).min(BLOCK)
    }

    /// Computes scores of a tile's rows with all tokens that any of them sees. The tile begins with row `row` of the
    /// strip, and the strip with query row `first`.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    unsafe fn score<L: Lanes>(
        &mut self,
        first: usize,
        row: usize,
        visible: &[Range<usize>],
        next: &mut Next,
    ) {
        let (Some(first_row), Some(last_row)) = (visible.first(), visible.last()) else {
            return;
        };
        let first_token = first_row.start / LANES * LANES;
        let vectors = (last_row.end - first_token).div_ceil(LANES);
        let width = self.shape.width;
        // SAFETY: `queries` has the rows, `keys` the block and `scores` the strip; vectors begin below the block's end.
        unsafe {
            let keys = self.scratch.keys.start().add(first_token);
            let products = Products {
                factors: self.scratch.queries.start().add((first + row) * width),
                factors_stride: width,
                terms: keys.cast_const().cast(),
                terms_stride_bytes: BLOCK * size_of::<f32>(),
                count: self.shape.head_dim,
                start: Start::Zero,
                sums: self.scratch.scores.start().add(row * BLOCK + first_token),
                sums_stride: BLOCK,
                element: PhantomData::<F32>,
            };
            compute::<L, _>(products, visible.len(), vectors, next);
        }
    }
}
