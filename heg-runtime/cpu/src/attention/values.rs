//! Weighted values of a tile, added to the sums of its rows.

use super::block::{Bf16, Element, F32};
use super::integers::round_weights;
use super::kernel::{Block, Item};
use super::next::Next;
use super::pairs::{PairProducts, WeightedValues};
use super::tile::{Products, Start, TILE_ROWS, compute, compute_rows};
use super::{BLOCK, KvElement, WHOLE};
use crate::lanes::{LANES, Lanes};
use crate::rows::CACHE_GROUP;
use std::marker::PhantomData;
use std::ops::Range;

// As in `kernel`: values are those of the item's positions, and scratch memory has room for a strip.
impl Item<'_> {
    /// Adds the weighted values of a tile; `first` and `row` as for [`score`](Self::score).
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    pub(super) unsafe fn add<L: Lanes>(
        &mut self,
        block: Block,
        first: usize,
        row: usize,
        visible: &[Range<usize>],
        next: &mut Next,
    ) {
        // SAFETY: the caller has values in the block's element type.
        unsafe {
            match block.element {
                KvElement::F32 => self.add_values::<L, F32>(block, first, row, visible, next),
                KvElement::Bf16 => self.add_values::<L, Bf16>(block, first, row, visible, next),
                KvElement::I8 => self.add_integers::<L>(block, first, row, visible, next),
            }
        }
    }

    /// [`add`](Self::add) of values that are floats.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    unsafe fn add_values<L: Lanes, E: Element>(
        &mut self,
        block: Block,
        first: usize,
        row: usize,
        visible: &[Range<usize>],
        next: &mut Next,
    ) {
        let (Some(first_row), Some(last_row)) = (visible.first(), visible.last()) else {
            return;
        };
        let width = self.shape.width;
        let vectors = width / LANES;
        // SAFETY: `visible` tokens lie in the block, whose values are there; `factors` and `scores` have the strip, and `sums`
        // the rows.
        unsafe {
            let mut factors = [0.0; TILE_ROWS];
            let of_tile = self.scratch.factors.start().add(row);
            of_tile.copy_to_nonoverlapping(factors.as_mut_ptr(), visible.len());
            let factors = factors.as_mut_ptr();
            let sums = self.scratch.sums.start().add((first + row) * width);
            let weights = self.scratch.scores.start().add(row * BLOCK).cast_const();
            let values = block.values;
            let products = |row: usize, tokens: &Range<usize>| Products {
                factors: weights.add(row * BLOCK + tokens.start),
                factors_stride: BLOCK,
                terms: values.start.add(tokens.start * values.stride_bytes),
                terms_stride_bytes: values.stride_bytes,
                count: tokens.len(),
                start: Start::Scaled(factors.add(row).cast_const()),
                sums: sums.add(row * width),
                sums_stride: width,
                element: PhantomData::<E>,
            };
            // Tokens seen by all rows are added to all at once; those before and behind, row by row.
            let common = last_row.start..first_row.end.max(last_row.start);
            for (row, tokens) in visible.iter().enumerate() {
                let before = tokens.start..tokens.end.min(common.start);
                if !before.is_empty() {
                    compute_rows::<L, _, 1>(products(row, &before), vectors, next);
                    *factors.add(row) = 1.0;
                }
            }
            compute::<L, _>(products(0, &common), visible.len(), vectors, next);
            for (row, tokens) in visible.iter().enumerate() {
                let behind = common.end..tokens.end;
                if !behind.is_empty() {
                    *factors.add(row) = 1.0;
                    compute_rows::<L, _, 1>(products(row, &behind), vectors, next);
                }
            }
        }
    }

    /// Adds the weighted values of a tile, which are integers, group by group.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    pub(super) unsafe fn add_integers<L: Lanes>(
        &mut self,
        block: Block,
        first: usize,
        row: usize,
        visible: &[Range<usize>],
        next: &mut Next,
    ) {
        let (Some(first_row), Some(last_row)) = (visible.first(), visible.last()) else {
            return;
        };
        // A weight of a token that a row does not see is zero.
        let pairs = first_row.start / 2..last_row.end.div_ceil(2);
        let is_plain = block.is_plain && visible.iter().all(|tokens| *tokens == WHOLE);
        let width = self.shape.width;
        for column in (0..self.shape.head_dim).step_by(CACHE_GROUP) {
            let mut units = [0.0; TILE_ROWS];
            // SAFETY: `scores` has the strip, `weights` a tile, `value_scales` all groups, `factors` the strip, and `values`
            // pairs of the visible tokens; `sums` has the rows.
            unsafe {
                let weights = self.scratch.scores.start().add(row * BLOCK);
                let scales = column / CACHE_GROUP * BLOCK;
                let scales = self.scratch.value_scales.start().add(scales);
                let rounded: *mut i16 = self.scratch.weights.start().cast();
                let totals = self.scratch.totals.start().add((first + row) * LANES);
                for ((row, tokens), unit) in visible.iter().enumerate().zip(&mut units) {
                    let (weights, rounded) = (weights.add(row * BLOCK), rounded.add(row * BLOCK));
                    *unit = if is_plain {
                        round_weights::<L>(weights, &WHOLE, scales, None, rounded)
                    } else {
                        let total = Some(totals.add(row * LANES));
                        round_weights::<L>(weights, tokens, scales, total, rounded)
                    };
                }
                let values = self.scratch.values.start().cast::<i16>();
                let products = PairProducts {
                    factors: rounded.add(2 * pairs.start).cast_const(),
                    factors_stride: BLOCK,
                    terms: values.add(2 * (pairs.start * width + column)).cast_const(),
                    terms_stride: 2 * width,
                    count: pairs.len(),
                    sink: WeightedValues {
                        sums: self
                            .scratch
                            .sums
                            .start()
                            .add((first + row) * width + column),
                        stride: width,
                        factors: self.scratch.factors.start().add(row).cast_const(),
                        units: units.as_ptr(),
                    },
                };
                let columns = CACHE_GROUP.min(width - column);
                compute::<L, _>(products, visible.len(), columns / LANES, next);
            }
        }
    }
}
