//! Products of a few rows with 4-bit weights.

use super::super::chunk::{Form, Place};
use super::super::few_rows::{dots, transposed};
use super::super::operand::{BLOCK, GROUP, Operand, QUADS};
use super::super::vector::{Vector, finish};
use super::super::{IntegerProduct, Scratch};
use super::{Grouped, SLICE, Spread};
use crate::prefetch::prefetch;
use std::ops::Range;

/// Prefetch distance in bytes of every matrix row. Chosen: as for 8-bit weights.
const AHEAD: usize = 512;

/// Computes at most `LANES` outputs of all `ROWS` rows of the call, as [`super::super::few_rows`] does.
///
/// # Safety
///
/// As [`integer_product`](super::super::integer_product); the call has `ROWS` rows, and `scratch` is a panel's.
#[inline(always)]
pub(in super::super) unsafe fn few_rows<
    V: Vector<LANES>,
    const LANES: usize,
    const DIGITS: usize,
    const ROWS: usize,
>(
    product: &IntegerProduct,
    groups: &Grouped,
    outputs: Range<usize>,
    scratch: Scratch,
) {
    let (width, row_bytes) = (product.form.width, product.row_bytes());
    let (operand, count) = (product.operand(), outputs.len());
    // SAFETY: rows of `outputs` and columns below the width are read, and the operand blocks of these columns.
    unsafe {
        let first = product.weights.add(outputs.start * row_bytes);
        let flipped = groups.flipped::<V, LANES>();
        let mut sums = [V::no_sums(); ROWS];
        for slice in (0..width).step_by(SLICE) {
            let columns = slice..width.min(slice + SLICE);
            let spread = groups.spread_at(slice, LANES, scratch.spread);
            groups.fill::<V, LANES>(product, outputs.clone(), &columns, spread);
            for column in columns.step_by(LANES * 8) {
                let at = column / 2;
                if at.is_multiple_of(64) {
                    let next = if at + AHEAD < row_bytes {
                        first.wrapping_add(at + AHEAD)
                    } else {
                        first.wrapping_add(LANES * row_bytes + at + AHEAD - row_bytes)
                    };
                    for index in 0..LANES {
                        prefetch(next.wrapping_add(index * row_bytes));
                    }
                }
                let bytes = transposed::<V, LANES>(first, row_bytes, count, at);
                let (quads, _) = bytes.as_chunks::<{ QUADS / 2 }>();
                // Not a loop, which would move the weights through memory.
                let group = column / GROUP;
                let left = (width - column) / GROUP;
                let (operand, spread, sums) = (&operand, &spread, &mut sums);
                let add = add_group::<V, LANES, DIGITS, ROWS>;
                add(operand, spread, group, &quads[0], flipped, sums);
                if left > 1 {
                    add(operand, spread, group + 1, &quads[1], flipped, sums);
                }
                if let Some(quads) = quads.get(2)
                    && left > 2
                {
                    add(operand, spread, group + 2, quads, flipped, sums);
                }
                if let Some(quads) = quads.get(3)
                    && left > 3
                {
                    add(operand, spread, group + 3, quads, flipped, sums);
                }
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            finish::<V, LANES>(product, row, outputs.start, count, sums);
        }
    }
}

/// Adds a group of columns to the sums of all rows.
///
/// # Safety
///
/// The operand has the group and `ROWS` rows, and the scales and centres of the group are spread.
#[inline(always)]
unsafe fn add_group<
    V: Vector<LANES>,
    const LANES: usize,
    const DIGITS: usize,
    const ROWS: usize,
>(
    operand: &Operand,
    spread: &Spread,
    group: usize,
    bytes: &[V; QUADS / 2],
    flipped: V,
    sums: &mut [V::Sums; ROWS],
) {
    let (block, group) = (group / 2, group % 2);
    // SAFETY: the operand has the group of `ROWS` rows, and the group's scales and centres are spread.
    unsafe {
        let mut weights = [V::zero(); QUADS];
        for quad in 0..QUADS / 2 {
            let [low, high] = bytes[quad].nibbles(flipped);
            weights[quad] = low;
            weights[QUADS / 2 + quad] = high;
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            let digits = operand.digits(block, row).add(group * GROUP);
            let mut total = V::zero();
            if DIGITS == 2 {
                total = dots(total, &weights, digits).times_base();
            }
            total = spread.begin::<V, LANES>(total, *operand.offsets(block, row).add(group));
            total = dots(total, &weights, digits.add((DIGITS - 1) * BLOCK));
            let place = Place {
                block,
                row,
                group,
                vector: 0,
            };
            *sums = spread.add::<V, LANES>(operand, place, total, *sums);
        }
    }
}
