//! Memory that a thread computes in.

use super::{BLOCK, Shape, item::most_query_rows};
use crate::lanes::LANES;
use heg_artifacts::program::Attention;

/// Query rows that the softmax takes at once: factors of as many rows make one vector.
pub(super) const STRIP: usize = LANES;

/// Scratch memory of one thread, for the largest work item of all steps that it was allocated for.
pub(crate) struct AttentionScratch {
    /// Keys of a block, transposed: `[head_dim, BLOCK]`.
    pub(super) keys: Floats,
    /// Values of a block: `[BLOCK, width]`.
    pub(super) values: Floats,
    /// Keys of a block that holds tokens of a tree, then its values, as elements of the cache: `[2, BLOCK, width]`.
    pub(super) gathered: Floats,
    /// Scores of a strip, then weights: `[STRIP, BLOCK]`.
    pub(super) scores: Floats,
    /// Factors on what a strip's rows have so far: `[STRIP]`.
    pub(super) factors: Floats,
    /// Scaled queries: `[query rows, width]`.
    pub(super) queries: Floats,
    /// Weighted sums of values so far: `[query rows, width]`.
    pub(super) sums: Floats,
    /// Sums of weights so far, lane by lane: `[query rows, LANES]`.
    pub(super) totals: Floats,
    /// Largest scores so far: `[query rows]`.
    pub(super) largest: Floats,
}

impl AttentionScratch {
    /// Memory for work items of all steps with these attributes.
    pub(crate) fn new<'a>(steps: impl IntoIterator<Item = &'a Attention>) -> Self {
        let (mut width, mut query_rows, mut elements) = (0, 0, 0);
        for attributes in steps {
            let shape = Shape::of(attributes);
            let rows = most_query_rows(attributes);
            width = shape.width.max(width);
            query_rows = rows.max(query_rows);
            elements = (rows * shape.width).max(elements);
        }
        Self {
            keys: Floats::new(width * BLOCK),
            values: Floats::new(BLOCK * width),
            gathered: Floats::new(2 * BLOCK * width),
            scores: Floats::new(STRIP * BLOCK),
            factors: Floats::new(STRIP),
            queries: Floats::new(elements),
            sums: Floats::new(elements),
            totals: Floats::new(query_rows * LANES),
            largest: Floats::new(query_rows),
        }
    }
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

/// f32 elements from the start of a cache line on.
pub(super) struct Floats(Vec<Line>);

impl Floats {
    fn new(len: usize) -> Self {
        Self(vec![Line([0.0; LANES]); len.div_ceil(LANES)])
    }

    /// The first element.
    pub(super) fn start(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}
