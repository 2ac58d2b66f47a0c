//! Products of a few rows.

use super::operand::{BLOCK, GROUP, Operand, QUADS};
use super::prefetch::prefetch;
use super::vector::{Kernels, Vector, finish};
use super::{IntegerProduct, Scaling, Scratch, nibbles};
use std::ops::Range;

/// Most rows for which this is the fastest kernel: measured.
pub(super) const MOST: usize = 8;

/// Columns between what is read and what is prefetched in every matrix row: measured, best of 128 to 2048.
const AHEAD: usize = 512;

/// Computes `outputs` of all rows, at most [`MOST`].
///
/// # Safety
///
/// As [`integer_product`](super::integer_product), with the instructions of `V`; `scratch` is a panel's.
pub(super) unsafe fn all_rows<V: Kernels<LANES>, const LANES: usize, const DIGITS: usize>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    scratch: Scratch,
) {
    let kernel = match product.rows {
        1 => V::few_rows::<DIGITS, 1>,
        2 => V::few_rows::<DIGITS, 2>,
        3 => V::few_rows::<DIGITS, 3>,
        4 => V::few_rows::<DIGITS, 4>,
        5 => V::few_rows::<DIGITS, 5>,
        6 => V::few_rows::<DIGITS, 6>,
        7 => V::few_rows::<DIGITS, 7>,
        _ => V::few_rows::<DIGITS, 8>,
    };
    for output in outputs.clone().step_by(LANES) {
        // SAFETY: passed on.
        unsafe { kernel(product, output..outputs.end.min(output + LANES), scratch) };
    }
}

/// Computes at most `LANES` outputs of `ROWS` rows, all of the call, with weights of either size.
///
/// # Safety
///
/// As [`all_rows`]; the call has `ROWS` rows.
#[inline(always)]
pub(super) unsafe fn any_weights<
    V: Vector<LANES>,
    const LANES: usize,
    const DIGITS: usize,
    const ROWS: usize,
>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    scratch: Scratch,
) {
    // SAFETY: passed on.
    unsafe {
        match &product.scaling {
            Scaling::Rows(_) => few_rows::<V, LANES, DIGITS, ROWS>(product, outputs),
            Scaling::Groups(groups) => {
                nibbles::few_rows::<V, LANES, DIGITS, ROWS>(product, groups, outputs, scratch);
            }
        }
    }
}

/// Computes at most `LANES` outputs of `ROWS` rows, all of the call.
///
/// Of as many matrix rows as there are lanes, a vector each is transposed in registers, so that a lane's total is that of
/// one matrix row.
///
/// # Safety
///
/// As [`integer_product`](super::integer_product); the call has `ROWS` rows.
#[inline(always)]
unsafe fn few_rows<V: Vector<LANES>, const LANES: usize, const DIGITS: usize, const ROWS: usize>(
    product: &IntegerProduct,
    outputs: Range<usize>,
) {
    let (width, operand) = (product.form.width, product.operand());
    let count = outputs.len();
    // SAFETY: rows of `outputs` and columns of the width are read, and of the operands their blocks.
    unsafe {
        let first = product.weights.add(outputs.start * width);
        let mut sums = [V::no_sums(); ROWS];
        for column in (0..width).step_by(LANES * 4) {
            let next = match column + AHEAD < width {
                true => first.wrapping_add(column + AHEAD),
                false => first.wrapping_add(LANES * width + column + AHEAD - width),
            };
            if column.is_multiple_of(BLOCK) {
                for index in 0..LANES {
                    prefetch(next.wrapping_add(index * width));
                }
            }
            let mut weights = transposed::<V, LANES>(first, width, count, column);
            for weights in &mut weights {
                *weights = weights.weights();
            }
            let (groups, _) = weights.as_chunks();
            let (group, sums) = (column / GROUP, &mut sums);
            add_group::<V, LANES, DIGITS, ROWS>(&operand, group, &groups[0], sums);
            // No loop: its weights would go through memory.
            if let Some(weights) = groups.get(1) {
                add_group::<V, LANES, DIGITS, ROWS>(&operand, group + 1, weights, sums);
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
/// The operand has the group and `ROWS` rows.
#[inline(always)]
unsafe fn add_group<
    V: Vector<LANES>,
    const LANES: usize,
    const DIGITS: usize,
    const ROWS: usize,
>(
    operand: &Operand,
    group: usize,
    weights: &[V; QUADS],
    sums: &mut [V::Sums; ROWS],
) {
    let (block, group) = (group / 2, group % 2);
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: passed on.
        unsafe {
            let digits = operand.digits(block, row).add(group * GROUP);
            let mut total = V::zero();
            if DIGITS == 2 {
                total = dots(total, weights, digits).times_base();
            }
            total = total.offset(*operand.offsets(block, row).add(group));
            total = dots(total, weights, digits.add((DIGITS - 1) * BLOCK));
            let scale = *operand.scales(block, row).add(group);
            *sums = total.add_scaled(scale, *sums);
        }
    }
}

/// `total` and the products of a group's weights and digits.
///
/// # Safety
///
/// `digits` has a group.
#[inline(always)]
pub(super) unsafe fn dots<V: Vector<LANES>, const LANES: usize>(
    mut total: V,
    weights: &[V; QUADS],
    digits: *const i8,
) -> V {
    for (quad, weights) in weights.iter().enumerate() {
        // SAFETY: passed on.
        total = unsafe { total.dot(*weights, V::splat(digits.add(quad * 4))) };
    }
    total
}

/// A vector each of `count` matrix rows from byte `at` on, transposed. What lanes behind `count` and bytes behind the last
/// of a row have, no result depends on.
///
/// # Safety
///
/// `first` has `count` matrix rows of `row_bytes`.
#[inline(always)]
pub(super) unsafe fn transposed<V: Vector<LANES>, const LANES: usize>(
    first: *const i8,
    row_bytes: usize,
    count: usize,
    at: usize,
) -> [V; LANES] {
    let left = row_bytes.saturating_sub(at).min(LANES * 4);
    // SAFETY: only bytes of rows below the count are read.
    unsafe {
        let rows = match count == LANES && left == LANES * 4 {
            true => {
                let mut rows = [V::zero(); LANES];
                for (index, row) in rows.iter_mut().enumerate() {
                    *row = V::load(first.add(index * row_bytes + at));
                }
                rows
            }
            // An array of its own: this one is in memory.
            false => {
                let mut rows = [V::zero(); LANES];
                for (index, row) in rows.iter_mut().enumerate().take(count) {
                    let from = first.wrapping_add(index * row_bytes + at);
                    *row = V::load_first(from, left);
                }
                rows
            }
        };
        V::transpose(rows)
    }
}
