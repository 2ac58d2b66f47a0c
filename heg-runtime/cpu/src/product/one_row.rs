//! The product of one row, at the rate that memory is read at.

use super::operand::{BLOCK, GROUP};
use super::prefetch::prefetch;
use super::vector::{Vector, finish};
use super::{IntegerProduct, Scaling, Scratch, nibbles};
use std::ops::Range;

/// Vectors whose groups are summed at once.
const UNIT: usize = 8;

/// Columns of a slice: the totals of a vector's matrix rows over them stay in the first-level cache (16 KiB at 64-byte
/// vectors).
const SLICE: usize = 8192;

/// Bytes of totals that are parked at once.
pub(super) const PARKED_BYTES: usize = SLICE / GROUP * 16 * size_of::<i32>();

/// Bytes between what is read and what is prefetched: measured, best of 4 to 32 KiB.
pub(super) const AHEAD: usize = 8192;

/// Computes `outputs` of a call of one row, with weights of either size.
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
    // SAFETY: passed on.
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
/// Matrix rows are read as they lie in the file. A group's total is the sum over neighbouring lanes, so totals of as many
/// groups as there are lanes come out of one tree of additions; they are parked until as many matrix rows are read, and
/// then transposed, for a sum over groups has one order.
///
/// # Safety
///
/// As [`integer_product`](super::integer_product); `parked` has [`PARKED_BYTES`].
#[inline(always)]
unsafe fn one_row<V: Vector<LANES>, const LANES: usize, const DIGITS: usize>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    parked: *mut i8,
) {
    let width = product.form.width;
    let unit = UNIT * LANES * 4;
    for output in outputs.clone().step_by(LANES) {
        let count = LANES.min(outputs.end - output);
        // SAFETY: rows of `outputs` and columns of the width are read; a slice parks one vector for each matrix row and
        // unit of columns.
        unsafe {
            let mut sums = V::no_sums();
            for slice in (0..width).step_by(SLICE) {
                let end = width.min(slice + SLICE);
                for index in 0..count {
                    let weights = product.weights.add((output + index) * width);
                    let mut to = parked.add(index * LANES * 4);
                    for column in (slice..end).step_by(unit) {
                        let totals = match column + unit <= end {
                            true => totals::<V, LANES, DIGITS, true>(product, weights, column),
                            false => totals::<V, LANES, DIGITS, false>(product, weights, column),
                        };
                        totals.store(to);
                        to = to.wrapping_add(LANES * LANES * 4);
                    }
                }
                sums = sum::<V, LANES>(product, slice..end, parked, sums);
            }
            finish::<V, LANES>(product, 0, output, count, sums);
        }
    }
}

/// Totals of one matrix row's groups in the unit of columns from `column` on; `WHOLE`: all of them exist.
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
    // SAFETY: columns below the width are read, of operands those of a block that has one of these.
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
            let weights = match WHOLE {
                true => V::load(weights.add(from)),
                false => V::load_first(weights.add(from), left.min(LANES * 4)),
            };
            let weights = weights.weights();
            let digits = digits.add(from / BLOCK * DIGITS * BLOCK + from % BLOCK);
            if DIGITS == 2 {
                *part = part.dot(weights, V::load(digits)).times_base();
            }
            *part = part.dot(weights, V::load(digits.add((DIGITS - 1) * BLOCK)));
        }
        V::totals(parts)
    }
}

/// `sums` and the parked totals of `columns`, scaled, in the order of groups.
///
/// # Safety
///
/// As [`one_row`], which parked totals of these columns.
#[inline(always)]
unsafe fn sum<V: Vector<LANES>, const LANES: usize>(
    product: &IntegerProduct,
    columns: Range<usize>,
    parked: *mut i8,
    mut sums: V::Sums,
) -> V::Sums {
    let operand = product.operand();
    let unit = UNIT * LANES * 4;
    // SAFETY: the groups of `columns` have totals, scales and offsets.
    unsafe {
        for (index, column) in columns.clone().step_by(unit).enumerate() {
            let from = parked.add(index * LANES * LANES * 4);
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
