//! Products of many rows.

use super::nibbles::{self, Spread};
use super::operand::{BLOCK, GROUP, Operand, QUADS};
use super::prefetch::prefetch_later;
use super::vector::{Kernels, Vector, finish};
use super::{IntegerProduct, Scaling, Scratch, few_rows};
use std::ops::Range;

/// Vectors of outputs in a tile.
pub(super) const VECTORS: usize = 2;

/// Most rows of a tile: with 32 registers, its totals and sums stay in them.
const TILE_ROWS: usize = 6;

/// Columns of a slice: its weights take 128 KiB of the second-level cache at most. Measured; 1024 to 4096 are alike.
pub(super) const SLICE: usize = 4096;

/// Rows that weights are transposed for: the sums of that many are kept over the slices.
const PASS: usize = 256;

/// Bytes of the transposed weights of a slice, at 64-byte vectors.
pub(super) const WEIGHTS_BYTES: usize = VECTORS * 16 * SLICE;

/// Sums of a pass, at vectors of 16 lanes.
pub(super) const SUMS: usize = PASS * VECTORS * 16;

/// What the tiles of a slice have in common.
pub(super) struct Tile<'a> {
    product: &'a IntegerProduct,
    operand: Operand,
    /// At most a tile's.
    outputs: Range<usize>,
    /// Blocks of columns.
    blocks: Range<usize>,
    /// `[group][quad of columns][vector]`.
    weights: *const i8,
    /// Of weights of half a byte, the scales and centres of the slice.
    spread: Option<Spread>,
    /// Of the rows of the pass.
    sums: *mut f32,
    /// First row of the pass.
    pass: usize,
    /// Weights of the next outputs, to be prefetched, as many lines for each block as bring all of them.
    ahead: Range<*const i8>,
    lines: usize,
}

/// Computes `outputs` of all rows.
///
/// Slices of `VECTORS` vectors of matrix rows are transposed into `weights`, where they stay in the second-level cache
/// while all rows pass.
///
/// # Safety
///
/// As [`integer_product`](super::integer_product), with the instructions of `V`; `scratch` is a panel's.
pub(super) unsafe fn all_rows<V: Kernels<LANES>, const LANES: usize, const DIGITS: usize>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    scratch: Scratch,
) {
    let (width, row_bytes) = (product.form.width, product.row_bytes());
    for pass in (0..product.rows).step_by(PASS) {
        let rows = PASS.min(product.rows - pass);
        let tiles = rows.div_ceil(TILE_ROWS);
        for output in outputs.clone().step_by(VECTORS * LANES) {
            let next = output + VECTORS * LANES..outputs.end.min(output + 2 * VECTORS * LANES);
            let outputs = output..outputs.end.min(output + VECTORS * LANES);
            let bytes = next.len() * row_bytes;
            let lines = bytes.div_ceil(64).div_ceil(tiles * product.form.blocks());
            let start = product.weights.wrapping_add(next.start * row_bytes);
            let mut ahead = start..start.wrapping_add(bytes);
            for slice in (0..width).step_by(SLICE) {
                let columns = slice..width.min(slice + SLICE);
                let mut tile = Tile {
                    product,
                    operand: product.operand(),
                    outputs: outputs.clone(),
                    blocks: columns.start / BLOCK..columns.end.div_ceil(BLOCK),
                    weights: scratch.weights,
                    spread: match &product.scaling {
                        Scaling::Rows(_) => None,
                        Scaling::Groups(groups) => {
                            Some(groups.spread_at(slice, VECTORS * LANES, scratch.spread))
                        }
                    },
                    sums: scratch.sums,
                    pass,
                    ahead: ahead.clone(),
                    lines,
                };
                // SAFETY: passed on; a slice's weights and the sums of a pass fit.
                unsafe { V::pack(product, outputs.clone(), columns, scratch) };
                for index in 0..tiles {
                    let (row, end) = (rows * index / tiles, rows * (index + 1) / tiles);
                    tile.ahead.start = ahead.start;
                    ahead.start = ahead.start.wrapping_add(lines * tile.blocks.len() * 64);
                    let kernel = match end - row {
                        1 => V::tile::<DIGITS, 1>,
                        2 => V::tile::<DIGITS, 2>,
                        3 => V::tile::<DIGITS, 3>,
                        4 => V::tile::<DIGITS, 4>,
                        5 => V::tile::<DIGITS, 5>,
                        _ => V::tile::<DIGITS, 6>,
                    };
                    // SAFETY: as above.
                    unsafe { kernel(&tile, pass + row) };
                }
            }
        }
    }
}

/// Transposes `columns` of the matrix rows `outputs`, at most `VECTORS` vectors of them.
///
/// # Safety
///
/// As [`all_rows`].
#[inline(always)]
pub(super) unsafe fn pack<V: Vector<LANES>, const LANES: usize>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    columns: Range<usize>,
    scratch: Scratch,
) {
    // SAFETY: passed on.
    unsafe {
        match &product.scaling {
            Scaling::Rows(_) => bytes::<V, LANES>(product, outputs, columns, scratch.weights),
            Scaling::Groups(groups) => {
                nibbles::pack::<V, LANES>(product, groups, outputs, columns, scratch);
            }
        }
    }
}

/// As [`pack`], of weights of a byte.
///
/// # Safety
///
/// As [`all_rows`].
#[inline(always)]
unsafe fn bytes<V: Vector<LANES>, const LANES: usize>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    columns: Range<usize>,
    to: *mut i8,
) {
    let width = product.form.width;
    for vector in 0..VECTORS {
        let output = outputs.start + vector * LANES;
        let count = outputs.end.saturating_sub(output).min(LANES);
        let first = product.weights.wrapping_add(output * width);
        // Whole blocks: zeros behind the last column.
        let end = columns.end.next_multiple_of(BLOCK);
        for column in (columns.start..end).step_by(LANES * 4) {
            // SAFETY: `transposed` reads what exists; a slice's weights fit.
            unsafe {
                let weights = few_rows::transposed::<V, LANES>(first, width, count, column);
                let quad = (column - columns.start) / 4;
                for (index, quads) in weights.into_iter().enumerate() {
                    let place = ((quad + index) * VECTORS + vector) * LANES * 4;
                    quads.weights().store(to.add(place));
                }
            }
        }
    }
}

/// How weights of one form turn integer totals into sums. A tile is compiled for each form, as its registers are scarce.
pub(super) trait Form {
    /// A group's total to begin with, of the offset that the operand has for bytes.
    ///
    /// # Safety
    ///
    /// The caller has the instructions of `V`.
    unsafe fn begin<V: Vector<LANES>, const LANES: usize>(&self, total: V, offset: i32) -> V;

    /// `sums` and a group's total, scaled.
    ///
    /// # Safety
    ///
    /// As above, and the operand has the place.
    unsafe fn add<V: Vector<LANES>, const LANES: usize>(
        &self,
        operand: &Operand,
        place: Place,
        total: V,
        sums: V::Sums,
    ) -> V::Sums;
}

/// Place of a total: block, row of the operand, group of the block, vector of outputs.
pub(super) type Place = (usize, usize, usize, usize);

/// Weights of a byte, whose scales come last.
struct Bytes;

impl Form for Bytes {
    #[inline(always)]
    unsafe fn begin<V: Vector<LANES>, const LANES: usize>(&self, total: V, offset: i32) -> V {
        // SAFETY: passed on.
        unsafe { total.offset(offset) }
    }

    #[inline(always)]
    unsafe fn add<V: Vector<LANES>, const LANES: usize>(
        &self,
        operand: &Operand,
        (block, row, group, _): Place,
        total: V,
        sums: V::Sums,
    ) -> V::Sums {
        // SAFETY: passed on.
        unsafe { total.add_scaled(*operand.scales(block, row).add(group), sums) }
    }
}

/// Computes `ROWS` rows from `row` on over a slice.
///
/// # Safety
///
/// As [`all_rows`], with the weights of the slice transposed.
#[inline(always)]
pub(super) unsafe fn tile<
    V: Vector<LANES>,
    const LANES: usize,
    const DIGITS: usize,
    const ROWS: usize,
>(
    tile: &Tile<'_>,
    row: usize,
) {
    // SAFETY: passed on.
    unsafe {
        match &tile.spread {
            None => of_form::<V, Bytes, LANES, DIGITS, ROWS>(tile, &Bytes, row),
            Some(spread) => of_form::<V, Spread, LANES, DIGITS, ROWS>(tile, spread, row),
        }
    }
}

/// As [`tile`], of weights of a form.
///
/// # Safety
///
/// As [`tile`].
#[inline(always)]
unsafe fn of_form<
    V: Vector<LANES>,
    F: Form,
    const LANES: usize,
    const DIGITS: usize,
    const ROWS: usize,
>(
    tile: &Tile<'_>,
    form: &F,
    row: usize,
) {
    let stride = VECTORS * LANES;
    // SAFETY: the operand has these rows and blocks, the pass their sums, and the weights those of the slice's blocks.
    unsafe {
        let kept = tile.sums.add((row - tile.pass) * stride);
        let mut sums = [[V::no_sums(); VECTORS]; ROWS];
        if tile.blocks.start > 0 {
            for (index, sums) in sums.as_flattened_mut().iter_mut().enumerate() {
                *sums = V::load_sums(kept.add(index * LANES), LANES);
            }
        }
        let mut weights = tile.weights;
        let mut ahead = tile.ahead.start;
        for block in tile.blocks.clone() {
            for _ in 0..tile.lines {
                if ahead < tile.ahead.end {
                    prefetch_later(ahead);
                }
                ahead = ahead.wrapping_add(64);
            }
            for group in 0..BLOCK / GROUP {
                let place = (block, row, group, 0);
                let totals = group_totals::<V, F, LANES, DIGITS, ROWS>(tile, form, place, weights);
                weights = weights.add(GROUP * stride);
                for (index, totals) in totals.into_iter().enumerate() {
                    for (vector, total) in totals.into_iter().enumerate() {
                        let place = (block, row + index, group, vector);
                        let sum = &mut sums[index][vector];
                        *sum = form.add::<V, LANES>(&tile.operand, place, total, *sum);
                    }
                }
            }
        }
        let last = tile.blocks.end == tile.product.form.blocks();
        for (index, sums) in sums.into_iter().enumerate() {
            for (vector, sums) in sums.into_iter().enumerate() {
                let output = tile.outputs.start + vector * LANES;
                if !last {
                    V::store_sums(sums, kept.add((index * VECTORS + vector) * LANES), LANES);
                } else if output < tile.outputs.end {
                    let count = LANES.min(tile.outputs.end - output);
                    finish::<V, LANES>(tile.product, row + index, output, count, sums);
                }
            }
        }
    }
}

/// Totals of one group.
///
/// # Safety
///
/// As [`tile`].
#[inline(always)]
unsafe fn group_totals<
    V: Vector<LANES>,
    F: Form,
    const LANES: usize,
    const DIGITS: usize,
    const ROWS: usize,
>(
    tile: &Tile<'_>,
    form: &F,
    (block, row, group, _): Place,
    weights: *const i8,
) -> [[V; VECTORS]; ROWS] {
    // SAFETY: the operand has the block and rows, the weights the group.
    unsafe {
        let digits = tile.operand.digits(block, row).add(group * GROUP);
        let mut totals = [[V::zero(); VECTORS]; ROWS];
        if DIGITS == 2 {
            add_dots::<V, LANES, DIGITS, ROWS>(&mut totals, weights, digits);
            totals = totals.map(|totals| totals.map(|total| total.times_base()));
        }
        for (index, totals) in totals.iter_mut().enumerate() {
            let offset = *tile.operand.offsets(block, row + index).add(group);
            *totals = totals.map(|total| form.begin::<V, LANES>(total, offset));
        }
        let digits = digits.add((DIGITS - 1) * BLOCK);
        add_dots::<V, LANES, DIGITS, ROWS>(&mut totals, weights, digits);
        totals
    }
}

/// Adds the products of a group's weights with one digit of every row.
///
/// # Safety
///
/// As [`tile`]; `digits` are those of the first row.
#[inline(always)]
unsafe fn add_dots<V: Vector<LANES>, const LANES: usize, const DIGITS: usize, const ROWS: usize>(
    totals: &mut [[V; VECTORS]; ROWS],
    weights: *const i8,
    digits: *const i8,
) {
    for quad in 0..QUADS {
        // SAFETY: passed on.
        unsafe {
            let weights = weights.add(quad * VECTORS * LANES * 4);
            let weights = [V::load(weights), V::load(weights.add(LANES * 4))];
            for (index, totals) in totals.iter_mut().enumerate() {
                let digits = V::splat(digits.add(index * DIGITS * BLOCK + quad * 4));
                for (total, weights) in totals.iter_mut().zip(weights) {
                    *total = total.dot(weights, digits);
                }
            }
        }
    }
}
