//! Products of a few rows.

use super::operand::{BLOCK, GROUP, Operand, QUADS};
use super::vector::{Kernels, Vector, finish};
use super::{IntegerProduct, Scaling, Scratch, nibbles};
use crate::prefetch::prefetch;
use std::ops::Range;

/// Most rows for which this kernel is the fastest: measured.
pub(super) const MOST: usize = 8;

/// Prefetch distance in columns of every matrix row: measured, best of 128 to 2048.
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
        // SAFETY: the caller has the instructions of `V`, and `kernel` is the one for the product's number of rows.
        unsafe { kernel(product, output..outputs.end.min(output + LANES), scratch) };
    }
}

/// Computes at most `LANES` outputs of all `ROWS` rows of the call, for weights of either size.
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
    // SAFETY: the product has `ROWS` rows and these outputs, and scratch memory is a panel's.
    unsafe {
        match &product.scaling {
            Scaling::Rows(_) => few_rows::<V, LANES, DIGITS, ROWS>(product, outputs),
            Scaling::Groups(groups) => {
                nibbles::few_rows::<V, LANES, DIGITS, ROWS>(product, groups, outputs, scratch);
            }
        }
    }
}

/// Computes at most `LANES` outputs of all `ROWS` rows of the call.
///
/// One vector of each of `LANES` matrix rows is transposed in registers, so that each lane adds up one matrix row.
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
    // SAFETY: rows of `outputs` and columns below the width are read, and the operand blocks of these columns.
    unsafe {
        let first = product.weights.add(outputs.start * width);
        let mut sums = [V::no_sums(); ROWS];
        for column in (0..width).step_by(LANES * 4) {
            let next = if column + AHEAD < width {
                first.wrapping_add(column + AHEAD)
            } else {
                first.wrapping_add(LANES * width + column + AHEAD - width)
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
            // Not a loop, which would move the weights through memory.
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
        // SAFETY: the operand has this group of `ROWS` rows, and `dots` reads a group of digits.
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

/// Adds the products of a group's weights and digits to `total`.
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
        // SAFETY: `digits` has the four bytes of each quad of a group.
        total = unsafe { total.dot(*weights, V::splat(digits.add(quad * 4))) };
    }
    total
}

/// One vector of each of `count` matrix rows from byte `at` on, transposed. No result depends on lanes behind `count`
/// or bytes behind the end of a row.
///
/// # Safety
///
/// `first` has `count` matrix rows of `row_bytes` bytes.
#[inline(always)]
pub(super) unsafe fn transposed<V: Vector<LANES>, const LANES: usize>(
    first: *const i8,
    row_bytes: usize,
    count: usize,
    at: usize,
) -> [V; LANES] {
    let left = row_bytes.saturating_sub(at).min(LANES * 4);
    // SAFETY: only existing bytes of the first `count` rows are read.
    unsafe {
        let rows = if count == LANES && left == LANES * 4 {
            let mut rows = [V::zero(); LANES];
            for (index, row) in rows.iter_mut().enumerate() {
                *row = V::load(first.add(index * row_bytes + at));
            }
            rows
        } else {
            // A separate array, since this one is kept in memory.
            let mut rows = [V::zero(); LANES];
            for (index, row) in rows.iter_mut().enumerate().take(count) {
                let from = first.wrapping_add(index * row_bytes + at);
                *row = V::load_first(from, left);
            }
            rows
        };
        V::transpose(rows)
    }
}
