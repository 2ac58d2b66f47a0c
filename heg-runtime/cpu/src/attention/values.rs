//! Weighted values of a tile, added to the sums of its rows.

use super::block::{Bf16, Element, F32, I8};
use super::integers::scale_weights;
use super::kernel::{Block, Item};
use super::tile::{Products, Start, TILE_ROWS, sum_products, sum_rows};
use super::{BLOCK, KvElement};
use crate::lanes::{LANES, Lanes};
use crate::rows::CACHE_GROUP;
use std::ops::Range;

// As in `kernel`: values are those of the item's positions, and scratch memory has room for a strip.
impl Item<'_> {
    /// Adds the weighted values of a tile, which are integers, group by group.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    pub(super) unsafe fn add_scaled_values<L: Lanes>(
        &mut self,
        block: Block,
        first: usize,
        row: usize,
        visible: &[Range<usize>],
    ) {
        let all = self.shape.width / LANES;
        for group in 0..self.shape.head_dim.div_ceil(CACHE_GROUP) {
            let start = group * CACHE_GROUP / LANES;
            let part = start..all.min(start + CACHE_GROUP / LANES);
            // SAFETY: `scores` has the strip, `scaled_weights` a tile, and `value_scales` all groups.
            unsafe {
                let weights = self.scratch.scores.start().add(row * BLOCK);
                let scales = self.scratch.value_scales.start().add(group * BLOCK);
                let scaled = self.scratch.scaled_weights.start();
                scale_weights::<L>(weights, visible, scales, scaled);
                self.add_part::<L>(block, (scaled, part), first, row, visible);
            }
        }
    }

    /// Adds the vectors `part` of the values of a tile, times `weights` of `[rows, BLOCK]`.
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    pub(super) unsafe fn add_part<L: Lanes>(
        &mut self,
        block: Block,
        (weights, part): (*const f32, Range<usize>),
        first: usize,
        row: usize,
        visible: &[Range<usize>],
    ) {
        // SAFETY: the caller has weights of the tile, and values in the block's element type.
        unsafe {
            let weighted = (weights, part);
            match block.element {
                KvElement::F32 => self.add_values::<L, F32>(block, weighted, first, row, visible),
                KvElement::Bf16 => self.add_values::<L, Bf16>(block, weighted, first, row, visible),
                KvElement::I8 => self.add_values::<L, I8>(block, weighted, first, row, visible),
            }
        }
    }

    /// Adds a part of the weighted values of a tile; `first` and `row` as for [`score`](Self::score).
    ///
    /// # Safety
    ///
    /// As [`attend`](super::attend).
    #[inline(always)]
    unsafe fn add_values<L: Lanes, E: Element>(
        &mut self,
        block: Block,
        (weights, part): (*const f32, Range<usize>),
        first: usize,
        row: usize,
        visible: &[Range<usize>],
    ) {
        let (Some(first_row), Some(last_row)) = (visible.first(), visible.last()) else {
            return;
        };
        let width = self.shape.width;
        let column = part.start * LANES;
        // SAFETY: `visible` tokens lie in the block, whose values are there; `factors` has the strip, `weights` the tile, and
        // `sums` the rows.
        unsafe {
            let mut factors = [0.0; TILE_ROWS];
            let of_tile = self.scratch.factors.start().add(row);
            of_tile.copy_to_nonoverlapping(factors.as_mut_ptr(), visible.len());
            let factors = factors.as_mut_ptr();
            let sums = self
                .scratch
                .sums
                .start()
                .add((first + row) * width + column);
            let values = block.values;
            let values_start = values.start.add(column * E::BYTES);
            let products = |row: usize, tokens: &Range<usize>| Products {
                factors: weights.add(row * BLOCK + tokens.start),
                factors_stride: BLOCK,
                terms: values_start.add(tokens.start * values.stride_bytes),
                terms_stride_bytes: values.stride_bytes,
                count: tokens.len(),
                start: Start::Scaled(factors.add(row).cast_const()),
                sums: sums.add(row * width),
                sums_stride: width,
            };
            // Tokens seen by all rows are added to all at once; those before and behind, row by row.
            let common = last_row.start..first_row.end.max(last_row.start);
            for (row, tokens) in visible.iter().enumerate() {
                let before = tokens.start..tokens.end.min(common.start);
                if !before.is_empty() {
                    sum_rows::<L, E, 1>(products(row, &before), part.len());
                    *factors.add(row) = 1.0;
                }
            }
            sum_products::<L, E>(products(0, &common), visible.len(), part.len());
            for (row, tokens) in visible.iter().enumerate() {
                let behind = common.end..tokens.end;
                if !behind.is_empty() {
                    *factors.add(row) = 1.0;
                    sum_rows::<L, E, 1>(products(row, &behind), part.len());
                }
            }
        }
    }
}
