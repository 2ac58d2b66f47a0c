//! The product of one row with 4-bit weights, at the rate of reading memory.

use super::super::chunk::{Form, Place};
use super::super::one_row::AHEAD;
use super::super::operand::{BLOCK, GROUP};
use super::super::vector::{Vector, finish};
use super::super::{IntegerProduct, Scratch};
use super::{Grouped, SLICE, Spread};
use crate::prefetch::prefetch;
use std::ops::Range;

/// Computes `outputs` of a call of one row, as [`super::super::one_row`] does: for each matrix row the totals of as
/// many groups as there are lanes are buffered, and then transposed.
///
/// # Safety
///
/// As [`integer_product`](super::super::integer_product); `scratch` is a panel's.
#[inline(always)]
pub(in super::super) unsafe fn one_row<
    V: Vector<LANES>,
    const LANES: usize,
    const DIGITS: usize,
>(
    product: &IntegerProduct,
    groups: &Grouped,
    outputs: Range<usize>,
    scratch: Scratch,
) {
    let (width, row_bytes) = (product.form.width, product.row_bytes());
    let (unit, buffered) = (LANES * GROUP, scratch.weights);
    for output in outputs.clone().step_by(LANES) {
        let count = LANES.min(outputs.end - output);
        // SAFETY: rows of `outputs` and columns below the width are read; a slice buffers one vector per matrix row and
        // unit of columns.
        unsafe {
            let flipped = groups.flipped::<V, LANES>();
            let mut sums = V::no_sums();
            for slice in (0..width).step_by(SLICE) {
                let columns = slice..width.min(slice + SLICE);
                let spread = groups.spread_at(slice, LANES, scratch.spread);
                groups.fill::<V, LANES>(product, output..output + count, &columns, spread);
                for index in 0..count {
                    let weights = product.weights.add((output + index) * row_bytes);
                    let mut to = buffered.add(index * LANES * 4);
                    for column in columns.clone().step_by(unit) {
                        let totals = if column + unit <= columns.end {
                            totals::<V, LANES, DIGITS, true>(product, weights, column, flipped)
                        } else {
                            totals::<V, LANES, DIGITS, false>(product, weights, column, flipped)
                        };
                        totals.store(to);
                        to = to.wrapping_add(LANES * LANES * 4);
                    }
                }
                sums = sum::<V, LANES>(product, columns, buffered, &spread, sums);
            }
            finish::<V, LANES>(product, 0, output, count, sums);
        }
    }
}

/// Totals of one matrix row's groups in the unit of columns from `column` on. `WHOLE`: the row has all of them.
///
/// # Safety
///
/// `weights` is a matrix row of the product's width.
#[inline(always)]
unsafe fn totals<V: Vector<LANES>, const LANES: usize, const DIGITS: usize, const WHOLE: bool>(
    product: &IntegerProduct,
    weights: *const i8,
    column: usize,
    flipped: V,
) -> V {
    let digits = product.operand().digits(column / BLOCK, 0);
    // SAFETY: bytes of the row are read, and operand blocks that have any of their columns.
    unsafe {
        let weights = weights.add(column / 2);
        let mut parts = [V::zero(); 4];
        for (index, part) in parts.iter_mut().enumerate() {
            let from = index * LANES * 4;
            let left = ((product.form.width - column) / 2).saturating_sub(from);
            if !WHOLE && left == 0 {
                break;
            }
            if from.is_multiple_of(64) {
                prefetch(weights.wrapping_add(from + AHEAD));
            }
            let bytes = if WHOLE {
                V::load(weights.add(from))
            } else {
                V::load_first(weights.add(from), left.min(LANES * 4))
            };
            let [low, high] = bytes.nibbles(flipped);
            let first = digits.add(place::<DIGITS>(from * 2));
            let second = digits.wrapping_add(place::<DIGITS>(from * 2 + LANES * 4));
            for digit in 0..DIGITS {
                let second = if WHOLE || left > LANES * 2 {
                    V::load(second.add(digit * BLOCK))
                } else {
                    V::zero()
                };
                let [even, odd] = V::sixteens(V::load(first.add(digit * BLOCK)), second);
                if digit > 0 {
                    *part = part.times_base();
                }
                *part = part.dot(low, even).dot(high, odd);
            }
        }
        V::totals_of_fours(parts)
    }
}

/// Offset of a column's digit from the row's first, in an operand of one row.
const fn place<const DIGITS: usize>(column: usize) -> usize {
    column / BLOCK * DIGITS * BLOCK + column % BLOCK
}

/// Adds the buffered totals of `columns` to `sums`, scaled, in the order of groups.
///
/// # Safety
///
/// As [`one_row`], which buffered the totals of these columns.
#[inline(always)]
unsafe fn sum<V: Vector<LANES>, const LANES: usize>(
    product: &IntegerProduct,
    columns: Range<usize>,
    buffered: *mut i8,
    spread: &Spread,
    mut sums: V::Sums,
) -> V::Sums {
    let operand = product.operand();
    let unit = LANES * GROUP;
    for (index, column) in columns.clone().step_by(unit).enumerate() {
        // SAFETY: the groups of `columns` have totals, and the operand has them.
        unsafe {
            let from = buffered.add(index * LANES * LANES * 4);
            let mut rows = [V::zero(); LANES];
            for (row, totals) in rows.iter_mut().enumerate() {
                *totals = V::load(from.add(row * LANES * 4));
            }
            let count = (columns.end - column).min(unit) / GROUP;
            for (index, totals) in V::transpose(rows).into_iter().enumerate() {
                if index < count {
                    let group = column / GROUP + index;
                    let (block, group) = (group / 2, group % 2);
                    let offset = *operand.offsets(block, 0).add(group);
                    let totals = spread.begin::<V, LANES>(totals, offset);
                    let place = Place {
                        block,
                        row: 0,
                        group,
                        vector: 0,
                    };
                    sums = spread.add::<V, LANES>(&operand, place, totals, sums);
                }
            }
        }
    }
    sums
}
