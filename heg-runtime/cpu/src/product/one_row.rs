//! The product of one row, at the rate of reading memory.

use super::operand::{BLOCK, GROUP};
use super::vector::{Vector, finish};
use super::{IntegerProduct, Scaling, Scratch, nibbles};
use crate::prefetch::prefetch;
use std::ops::Range;

/// Vectors whose groups are summed together.
const UNIT: usize = 8;

/// Columns per slice: the totals of a vector of matrix rows over a slice stay in the first-level cache (16 KiB with
/// 64-byte vectors).
const SLICE: usize = 8192;

/// Bytes of buffered totals.
pub(super) const BUFFERED_BYTES: usize = SLICE / GROUP * 16 * size_of::<i32>();

/// Prefetch distance in bytes: measured, best of 4 to 32 KiB.
pub(super) const AHEAD: usize = 8192;

/// Computes `outputs` of a call of one row, for weights of either size.
///
/// # Safety
///
/// As [`integer_product`](super::integer_product), with the instructions of `V`; `scratch` is a panel's.
#[inline(always)]
pub(super) unsafe fn any_weights<V: Vector<LANES>, const LANES: usize, const DIGITS: usize>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    scratch: Scratch,
) {
    // SAFETY: the operand has one row, the matrix these outputs, and scratch memory is a panel's.
    unsafe {
        match &product.scaling {
            Scaling::Rows(_) => one_row::<V, LANES, DIGITS>(product, outputs, scratch.weights),
            Scaling::Groups(groups) => {
                nibbles::one_row::<V, LANES, DIGITS>(product, groups, outputs, scratch);
            }
        }
    }
}

/// Computes `outputs` of a call of one row.
///
/// Matrix rows are read in the order of the file. A group's total is a sum over neighbouring lanes, so one tree of
/// additions gives the totals of as many groups as there are lanes. They are buffered until as many matrix rows are
/// read, and then transposed, because a sum over groups has one order.
///
/// # Safety
///
/// As [`integer_product`](super::integer_product); `buffered` has [`BUFFERED_BYTES`].
#[inline(always)]
unsafe fn one_row<V: Vector<LANES>, const LANES: usize, const DIGITS: usize>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    buffered: *mut i8,
) {
    let width = product.form.width;
    let unit = UNIT * LANES * 4;
    for output in outputs.clone().step_by(LANES) {
        let count = LANES.min(outputs.end - output);
        // SAFETY: rows of `outputs` and columns below the width are read; a slice buffers one vector per matrix row and
        // unit of columns.
        unsafe {
            let mut sums = V::no_sums();
            for slice in (0..width).step_by(SLICE) {
                let end = width.min(slice + SLICE);
                for index in 0..count {
                    let weights = product.weights.add((output + index) * width);
                    let mut to = buffered.add(index * LANES * 4);
                    for column in (slice..end).step_by(unit) {
                        let totals = if column + unit <= end {
                            totals::<V, LANES, DIGITS, true>(product, weights, column)
                        } else {
                            totals::<V, LANES, DIGITS, false>(product, weights, column)
                        };
                        totals.store(to);
                        to = to.wrapping_add(LANES * LANES * 4);
                    }
                }
                sums = sum::<V, LANES>(product, slice..end, buffered, sums);
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
) -> V {
    let digits = product.operand().digits(column / BLOCK, 0);
    // SAFETY: columns below the width are read, and operand blocks that have any of them.
    unsafe {
        let weights = weights.add(column);
        let mut parts = [V::zero(); UNIT];
        for (index, part) in parts.iter_mut().enumerate() {
            let from = index * LANES * 4;
            let left = product.form.width.saturating_sub(column + from);
            if !WHOLE && left == 0 {
                break;
            }
            if from.is_multiple_of(BLOCK) {
                prefetch(weights.wrapping_add(from + AHEAD));
            }
            let bytes = if WHOLE {
                V::load(weights.add(from))
            } else {
                V::load_first(weights.add(from), left.min(LANES * 4))
            };
            let weights = bytes.weights();
            let digits = digits.add(from / BLOCK * DIGITS * BLOCK + from % BLOCK);
            if DIGITS == 2 {
                *part = part.dot(weights, V::load(digits)).times_base();
            }
            *part = part.dot(weights, V::load(digits.add((DIGITS - 1) * BLOCK)));
        }
        V::totals(parts)
    }
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
    mut sums: V::Sums,
) -> V::Sums {
    let operand = product.operand();
    let unit = UNIT * LANES * 4;
    // SAFETY: the groups of `columns` have totals, scales and offsets.
    unsafe {
        for (index, column) in columns.clone().step_by(unit).enumerate() {
            let from = buffered.add(index * LANES * LANES * 4);
            let mut rows = [V::zero(); LANES];
            for (row, totals) in rows.iter_mut().enumerate() {
                *totals = V::load(from.add(row * LANES * 4));
            }
            let groups = (columns.end - column).min(unit).div_ceil(GROUP);
            let (scales, offsets) = (
                operand.scales(column / BLOCK, 0),
                operand.offsets(column / BLOCK, 0),
            );
            for (group, totals) in V::transpose(rows).into_iter().enumerate() {
                if group < groups {
                    let totals = totals.offset(*offsets.add(group));
                    sums = totals.add_scaled(*scales.add(group), sums);
                }
            }
        }
    }
    sums
}
