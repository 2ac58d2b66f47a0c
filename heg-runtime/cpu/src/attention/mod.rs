//! Attention over rows of the KV cache, read in place.
//!
//! All forms share one order of arithmetic, so the result of a query row depends neither on the rows beside it, nor on
//! how work is cut, nor on the instruction set:
//! - The context is cut into blocks of [`BLOCK`] tokens at absolute positions, with an online softmax over them in
//!   ascending order. A row skips a block if it sees nothing of it.
//! - A score is a sum over dimensions in ascending order; lanes are tokens, so a block's keys are transposed first.
//! - Weights are added up lane by lane, and across lanes after the last block.
//! - Values are added up over tokens in ascending order; lanes are dimensions.
//! - If keys and values are integers, queries are rounded to integers of 16 bits, a head at a time. Sums of products are exact
//!   then, and a score is the sum over groups of a head, in ascending order, of each such sum times its key's scale. Weights
//!   that were added to the total are multiplied by the scales of a group of values, and rounded to integers likewise, a block
//!   at a time; each block adds its exact sum times the unit of its weights.
//! - A token that a row does not see is masked or not read at all, so it may hold anything, NaN included.
//!
//! This holds for token trees, too: a block with tokens of the tree is gathered for each of the tree's chains, so that
//! every key stands at its position.
//!
//! The query heads of a key/value head are adjacent rows, so a block is read and transposed once for all of them.

#![allow(unsafe_code, reason = "kernels read rows of the KV cache by pointer")]

mod block;
mod integers;
mod item;
mod kernel;
mod next;
mod pairs;
mod scratch;
mod softmax;
mod stage;
#[cfg(test)]
mod tests;
mod tile;
mod tree;
mod values;

pub(crate) use item::{AttentionItem, AttentionItems};
pub(crate) use scratch::AttentionScratch;
pub use tree::TREE_TOKENS_MAX;
pub(crate) use tree::Tree;

use crate::Isa;
use crate::lanes::{self, LANES};
use crate::rows;
use heg_artifacts::program::Attention;
use std::ops::Range;

/// Tokens per block. Chosen: four vectors of scores, which with four query rows make a register tile of AVX-512.
const BLOCK: usize = 64;

/// All tokens of a block.
const WHOLE: Range<usize> = 0..BLOCK;

/// Attention for the new tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionCall<'a> {
    /// Attributes of the step.
    pub(crate) attributes: Attention,
    /// First query row; a row has all heads of a token.
    pub(crate) query: *const f32,
    /// Elements from one query row to the next.
    pub(crate) query_stride: usize,
    /// First output row; a row has all heads of a token.
    pub(crate) out: *mut f32,
    /// Elements from one output row to the next.
    pub(crate) out_stride: usize,
    /// Number of new tokens.
    pub(crate) rows: usize,
    /// Position of the first new token.
    pub(crate) position: usize,
    /// Tree of the new tokens; `None`: they are a sequence.
    pub(crate) tree: Option<Tree<'a>>,
    /// Key row of position 0; a row has all heads of a token, in elements of `element`.
    pub(crate) keys: *const u8,
    /// Value row of position 0, likewise.
    pub(crate) values: *const u8,
    /// Bytes from one key or value row to the next.
    pub(crate) kv_stride_bytes: usize,
    /// Element type of keys and values.
    pub(crate) element: KvElement,
}

// SAFETY: only `attend` follows the pointers, whose callers exclude conflicting accesses by other threads.
unsafe impl Send for AttentionCall<'_> {}
// SAFETY: only `attend` follows the pointers, whose callers exclude conflicting accesses by other threads.
unsafe impl Sync for AttentionCall<'_> {}

/// Element types of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KvElement {
    /// 32-bit floats.
    F32,
    /// bfloat16, widened on load.
    Bf16,
    /// 8-bit integers, with the scales of its groups behind each head.
    I8,
}

impl KvElement {
    /// Bytes of a head.
    const fn head_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => head_dim * size_of::<f32>(),
            Self::Bf16 => head_dim * size_of::<u16>(),
            Self::I8 => rows::head_bytes(head_dim),
        }
    }
}

/// Sizes derived from the attributes.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Query heads per key/value head.
    group: usize,
    /// Elements of a head.
    head_dim: usize,
    /// Elements of a head in scratch memory: a multiple of [`LANES`].
    width: usize,
}

impl Shape {
    fn of(attributes: &Attention) -> Self {
        let head_dim = attributes.head_dim as usize;
        Self {
            group: (attributes.heads / attributes.kv_heads.max(1)) as usize,
            head_dim,
            width: head_dim.next_multiple_of(LANES),
        }
    }
}

/// Computes output rows `rows` of the call, for the query heads of `kv_heads`.
///
/// # Safety
///
/// - The machine has `isa`.
/// - The call's pointers have `rows` query and output rows of `heads · head_dim` elements, and key and value rows of
///   `kv_heads · head_dim` elements for all positions before `position + rows` that a row's window reaches. Pointers
///   are aligned to their elements. A row that sees the whole text has no window, and the call no tree.
/// - `kv_heads` and `rows` are those of one of the call's [`AttentionItems`], or lie within them. No other thread
///   writes the same heads of the same output rows, or keys and values that the rows see.
/// - A tree has `rows` tokens, at most [`TREE_TOKENS_MAX`].
/// - `scratch` was allocated for the call's attributes.
pub(crate) unsafe fn attend(
    isa: Isa,
    call: &AttentionCall<'_>,
    kv_heads: Range<usize>,
    rows: Range<usize>,
    scratch: &mut AttentionScratch,
) {
    let item = kernel::Item::new(call, kv_heads, rows, scratch);
    // SAFETY: the caller has the instructions, and the call's rows and scratch memory are what `Item` needs.
    unsafe { lanes::run(isa, item) }
}
