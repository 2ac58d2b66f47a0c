//! Causal attention over rows of the KV cache, where they lie.
//!
//! One order of arithmetic holds for all forms, so that the result of a query row does not depend on the rows beside it,
//! on how work is cut, nor on the instruction set:
//! - The context is cut into blocks of [`BLOCK`] tokens at absolute positions, and the softmax is an online one over them
//!   in ascending order. A block that a row sees nothing of is skipped.
//! - A score is the sum over dimensions in ascending order; lanes are tokens, so keys of a block are transposed first.
//! - A block's weights are added up lane by lane, and lanes at the end of all blocks.
//! - Values are added up over tokens in ascending order; lanes are dimensions.
//! - A token that a row does not see is selected away or not read at all, so it may hold anything, NaN included.
//!
//! Tokens that are a tree are no exception: a block that holds any of them is gathered for each of the tree's chains, so
//! that every key stands where its position has it.
//!
//! The query heads of a key/value head are rows beside each other, so a block is read and transposed once for them all.

#![allow(unsafe_code, reason = "kernels read rows of the KV cache by pointer")]

mod block;
mod item;
mod kernel;
mod scratch;
mod softmax;
mod stage;
#[cfg(test)]
mod tests;
mod tile;
mod tree;

pub(crate) use item::{WorkItem, WorkItems};
pub(crate) use scratch::AttentionScratch;
pub use tree::TREE_TOKENS_MAX;
pub(crate) use tree::Tree;

use crate::Isa;
use crate::lanes::{self, LANES};
use heg_artifacts::program::Attention;
use std::ops::Range;

/// Tokens of a block. Chosen: four vectors of scores, which with four query rows make a register tile of AVX-512.
const BLOCK: usize = 64;

/// Attention of tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionCall<'a> {
    /// Attributes of the step.
    pub(crate) attributes: Attention,
    /// Query rows, all heads of a token in one.
    pub(crate) query: *const f32,
    /// Elements from a query row to the next.
    pub(crate) query_stride: usize,
    /// Output rows, all heads of a token in one.
    pub(crate) out: *mut f32,
    /// Elements from an output row to the next.
    pub(crate) out_stride: usize,
    /// Tokens of the sequence in this call.
    pub(crate) rows: usize,
    /// Position of the first of them.
    pub(crate) position: usize,
    /// How they follow each other, where that is not one after the other.
    pub(crate) tree: Option<Tree<'a>>,
    /// Key rows of the sequence from position 0 on, all heads of a token in one.
    pub(crate) keys: *const u8,
    /// Value rows, like the key rows.
    pub(crate) values: *const u8,
    /// Bytes from a key or value row to the next.
    pub(crate) kv_stride_bytes: usize,
    /// Element type of keys and values.
    pub(crate) element: KvElement,
}

// SAFETY: the pointers are only followed in `attend`, whose callers vouch for what threads do at the same time.
unsafe impl Send for AttentionCall<'_> {}
// SAFETY: see above.
unsafe impl Sync for AttentionCall<'_> {}

/// Element types of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KvElement {
    /// 32-bit floats.
    F32,
    /// bfloat16, widened when read.
    Bf16,
}

impl KvElement {
    /// Bytes of an element.
    const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Sizes that follow from attributes.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Query heads of a key/value head.
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

/// Computes the output rows `rows` of the call for the query heads of `kv_heads`.
///
/// # Safety
///
/// - `isa` is available.
/// - The call's pointers hold what it says: `rows` query and output rows of `heads · head_dim` elements, and key and
///   value rows of `kv_heads · head_dim` elements for all positions before `position + rows` that a row's window reaches.
///   Pointers are aligned to their elements.
/// - `kv_heads` and `rows` are those of one of the call's [`WorkItems`], or lie within them, and no other thread writes
///   the same heads of the same output rows, or keys and values that the rows see.
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
    // SAFETY: the caller's.
    unsafe { lanes::run(isa, item) }
}
