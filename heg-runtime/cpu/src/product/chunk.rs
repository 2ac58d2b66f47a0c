//! Products of many rows.

use super::nibbles::{self, Spread};
use super::operand::{BLOCK, GROUP, GROUPS, Operand, QUADS};
use super::vector::{Kernels, Vector, finish};
use super::{IntegerProduct, Scaling, Scratch, few_rows};
use crate::prefetch::prefetch_later;
use std::marker::PhantomData;
use std::ops::Range;

/// Vectors of outputs per tile.
pub(super) const VECTORS: usize = 2;

/// Most rows of a tile: its totals and sums fit in 32 registers.
const TILE_ROWS: usize = 6;

/// Columns per slice, with tiles in vectors: its weights take at most 16 KiB, so that they stay in the first-level cache while
/// all rows are multiplied. Measured: 256 tokens by a layer of the 1B shape take 43.1, 40.8, 38.3 and 37.9 ms by slices of
/// 4096, 2048, 1024 and 512.
const SLICE: usize = 512;

/// Most columns per slice.
pub(super) const MOST_COLUMNS: usize = 1024;

/// Rows per pass over transposed weights, whose sums are kept from slice to slice.
const PASS: usize = 256;

/// Bytes of the transposed weights of a slice, at 64-byte vectors.
pub(super) const WEIGHTS_BYTES: usize = VECTORS * 16 * MOST_COLUMNS;

/// Bytes of two units' totals in tile registers: see `amx::many_rows`.
pub(super) const TOTALS_BYTES: usize = 2 * 4 * 1024;

/// Sums of a pass, at vectors of 16 lanes.
pub(super) const SUMS: usize = PASS * VECTORS * 16;

/// The common arguments of a slice's tiles.
pub(super) struct Slice<'a> {
    pub(super) product: &'a IntegerProduct,
    pub(super) operand: Operand,
    /// Outputs, at most those of a tile.
    pub(super) outputs: Range<usize>,
    /// Blocks of columns.
    pub(super) blocks: Range<usize>,
    /// Transposed weights, `[group][quad of columns][vector]`.
    pub(super) weights: *const i8,
    /// Scales and centres of the slice, for 4-bit weights.
    pub(super) spread: Option<Spread>,
    /// Sums of the rows of the pass.
    sums: *mut f32,
    /// First row of the pass.
    pass: usize,
    /// Totals of two units, if tiles are in registers of their own: see `amx::many_rows`.
    pub(super) totals: *mut i8,
    /// Weights of the next outputs, to prefetch: `lines` cache lines per block cover all of them.
    ahead: Range<*const i8>,
    lines: usize,
}

/// How a slice is multiplied.
pub(super) trait Tiling {
    /// Outputs of a tile.
    const OUTPUTS: usize;

    /// Most rows of a tile.
    const ROWS: usize;

    /// Columns of a slice, at most [`MOST_COLUMNS`].
    const COLUMNS: usize;

    /// [`pack`].
    ///
    /// # Safety
    ///
    /// As [`pack`].
    unsafe fn pack(
        product: &IntegerProduct,
        outputs: Range<usize>,
        columns: Range<usize>,
        scratch: Scratch,
    );

    /// Computes `rows` of a pass over a slice, tile by tile.
    ///
    /// # Safety
    ///
    /// As [`all_rows`], after the weights of the slice were packed.
    unsafe fn multiply(slice: &mut Slice<'_>, rows: Range<usize>);
}

/// Tiles in vectors of `V`.
pub(super) struct Vectors<V, const LANES: usize, const DIGITS: usize>(PhantomData<V>);

impl<V: Kernels<LANES>, const LANES: usize, const DIGITS: usize> Tiling
    for Vectors<V, LANES, DIGITS>
{
    const OUTPUTS: usize = VECTORS * LANES;
    const ROWS: usize = TILE_ROWS;
    const COLUMNS: usize = SLICE;

    unsafe fn pack(
        product: &IntegerProduct,
        outputs: Range<usize>,
        columns: Range<usize>,
        scratch: Scratch,
    ) {
        // SAFETY: the contract is the same.
        unsafe { V::pack(product, outputs, columns, scratch) }
    }

    unsafe fn multiply(slice: &mut Slice<'_>, rows: Range<usize>) {
        let (first, rows) = (rows.start, rows.len());
        let tiles = rows.div_ceil(TILE_ROWS);
        for index in 0..tiles {
            let (row, end) = (rows * index / tiles, rows * (index + 1) / tiles);
            let kernel = match end - row {
                1 => V::tile::<DIGITS, 1>,
                2 => V::tile::<DIGITS, 2>,
                3 => V::tile::<DIGITS, 3>,
                4 => V::tile::<DIGITS, 4>,
                5 => V::tile::<DIGITS, 5>,
                _ => V::tile::<DIGITS, 6>,
            };
            // SAFETY: the contract is the same, and the kernel is the one of this number of rows.
            unsafe { kernel(slice, first + row) };
            slice.prefetched(slice.blocks.len());
        }
    }
}

/// Computes `outputs` of all rows.
///
/// Slices of `VECTORS` vectors of matrix rows are transposed into scratch memory, where they stay in the first-level
/// cache while all rows are multiplied.
///
/// # Safety
///
/// As [`integer_product`](super::integer_product), with the instructions of `T`; `scratch` is a panel's.
pub(super) unsafe fn all_rows<T: Tiling>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    scratch: Scratch,
) {
    let (width, row_bytes) = (product.form.width, product.row_bytes());
    for pass in (0..product.rows).step_by(PASS) {
        let rows = PASS.min(product.rows - pass);
        let tiles = rows.div_ceil(T::ROWS);
        for output in outputs.clone().step_by(T::OUTPUTS) {
            let next = output + T::OUTPUTS..outputs.end.min(output + 2 * T::OUTPUTS);
            let outputs = output..outputs.end.min(output + T::OUTPUTS);
            let bytes = next.len() * row_bytes;
            let lines = bytes.div_ceil(64).div_ceil(tiles * product.form.blocks());
            let start = product.weights.wrapping_add(next.start * row_bytes);
            let mut ahead = start..start.wrapping_add(bytes);
            for slice in (0..width).step_by(T::COLUMNS) {
                let columns = slice..width.min(slice + T::COLUMNS);
                let mut multiplied = Slice {
                    product,
                    operand: product.operand(),
                    outputs: outputs.clone(),
                    blocks: columns.start / BLOCK..columns.end.div_ceil(BLOCK),
                    weights: scratch.weights,
                    spread: match &product.scaling {
                        Scaling::Rows(_) => None,
                        Scaling::Groups(groups) => {
                            Some(groups.spread_at(slice, T::OUTPUTS, scratch.spread))
                        }
                    },
                    sums: scratch.sums,
                    pass,
                    totals: scratch.totals,
                    ahead: ahead.clone(),
                    lines,
                };
                // SAFETY: scratch memory holds a slice of weights for `VECTORS` vectors, `columns` is at most a slice, and
                // the sums of a pass fit.
                unsafe {
                    T::pack(product, outputs.clone(), columns, scratch);
                    T::multiply(&mut multiplied, pass..pass + rows);
                }
                ahead.start = multiplied.ahead.start;
            }
        }
    }
}

impl Slice<'_> {
    /// Where the sums of a row are kept from slice to slice.
    #[inline(always)]
    pub(super) fn kept(&self, row: usize, stride: usize) -> *mut f32 {
        self.sums.wrapping_add((row - self.pass) * stride)
    }

    /// Prefetches the part of the next outputs' weights that belongs to the block of this index from now on.
    #[inline(always)]
    pub(super) fn prefetch(&self, block: usize) {
        let mut ahead = self.ahead.start.wrapping_add(block * self.lines * 64);
        for _ in 0..self.lines {
            if ahead < self.ahead.end {
                prefetch_later(ahead);
            }
            ahead = ahead.wrapping_add(64);
        }
    }

    /// Counts blocks whose part was prefetched.
    pub(super) fn prefetched(&mut self, blocks: usize) {
        self.ahead.start = self.ahead.start.wrapping_add(blocks * self.lines * 64);
    }
}

/// Transposes `columns` of the matrix rows `outputs`, at most `VECTORS` vectors; bytes remain `SIGNED`, or get the form
/// that [`Vector::dot`] takes.
///
/// # Safety
///
/// As [`all_rows`].
#[inline(always)]
pub(super) unsafe fn pack<V: Vector<LANES>, const LANES: usize, const SIGNED: bool>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    columns: Range<usize>,
    scratch: Scratch,
) {
    // SAFETY: the matrix has these outputs and columns, and scratch memory is a panel's.
    unsafe {
        match &product.scaling {
            Scaling::Rows(_) => {
                bytes::<V, LANES, SIGNED>(product, outputs, columns, scratch.weights);
            }
            Scaling::Groups(groups) => {
                nibbles::pack::<V, LANES>(product, groups, outputs, columns, scratch);
            }
        }
    }
}

/// [`pack`] for 8-bit weights.
///
/// # Safety
///
/// As [`all_rows`].
#[inline(always)]
unsafe fn bytes<V: Vector<LANES>, const LANES: usize, const SIGNED: bool>(
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
        // Whole blocks, with zeros behind the last column.
        let end = columns.end.next_multiple_of(BLOCK);
        for column in (columns.start..end).step_by(LANES * 4) {
            // SAFETY: `transposed` reads what exists; a slice's weights fit.
            unsafe {
                let weights = few_rows::transposed::<V, LANES>(first, width, count, column);
                let quad = (column - columns.start) / 4;
                for (index, quads) in weights.into_iter().enumerate() {
                    let place = ((quad + index) * VECTORS + vector) * LANES * 4;
                    let quads = if SIGNED { quads } else { quads.weights() };
                    quads.store(to.add(place));
                }
            }
        }
    }
}

/// Conversion of integer totals to sums, for one form of weights. Tiles are compiled for each form, because registers
/// are scarce.
pub(super) trait Form {
    /// The initial total of a group, given the operand's offset for 8-bit weights.
    ///
    /// # Safety
    ///
    /// The caller has the instructions of `V`.
    unsafe fn begin<V: Vector<LANES>, const LANES: usize>(&self, total: V, offset: i32) -> V;

    /// Adds a group's total to `sums`, scaled.
    ///
    /// # Safety
    ///
    /// The caller has the instructions of `V`, and the operand has the place.
    unsafe fn add<V: Vector<LANES>, const LANES: usize>(
        &self,
        operand: &Operand,
        place: Place,
        total: V,
        sums: V::Sums,
    ) -> V::Sums;
}

/// Place of a total.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Block of columns.
    pub(super) block: usize,
    /// Row of the operand.
    pub(super) row: usize,
    /// Group of the block.
    pub(super) group: usize,
    /// Vector of outputs in the tile.
    pub(super) vector: usize,
}

/// 8-bit weights, whose scales are applied at the end; `SIGNED` as they were packed.
pub(super) struct Bytes<const SIGNED: bool>;

impl<const SIGNED: bool> Form for Bytes<SIGNED> {
    #[inline(always)]
    unsafe fn begin<V: Vector<LANES>, const LANES: usize>(&self, total: V, offset: i32) -> V {
        // SAFETY: the caller has the instructions of `V`.
        unsafe {
            match SIGNED {
                true => total,
                false => total.offset(offset),
            }
        }
    }

    #[inline(always)]
    unsafe fn add<V: Vector<LANES>, const LANES: usize>(
        &self,
        operand: &Operand,
        place: Place,
        total: V,
        sums: V::Sums,
    ) -> V::Sums {
        // SAFETY: the caller has the instructions of `V`, and the operand has this block, row and group.
        unsafe {
            let scale = *operand.scales(place.block, place.row).add(place.group);
            total.add_scaled(scale, sums)
        }
    }
}

/// Computes rows `row..row + ROWS` over a slice.
///
/// # Safety
///
/// As [`all_rows`], after the weights of the slice were transposed.
#[inline(always)]
pub(super) unsafe fn tile<
    V: Vector<LANES>,
    const LANES: usize,
    const DIGITS: usize,
    const ROWS: usize,
>(
    slice: &Slice<'_>,
    row: usize,
) {
    // SAFETY: the slice is packed in the form that `spread` tells, and the product has these rows.
    unsafe {
        match &slice.spread {
            None => of_form::<V, Bytes<false>, LANES, DIGITS, ROWS>(slice, &Bytes, row),
            Some(spread) => of_form::<V, Spread, LANES, DIGITS, ROWS>(slice, spread, row),
        }
    }
}

/// [`tile`] for one form of weights.
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
    slice: &Slice<'_>,
    form: &F,
    row: usize,
) {
    let stride = VECTORS * LANES;
    // SAFETY: the operand has these rows and blocks, the pass their sums, and the weights those of the slice's blocks.
    unsafe {
        let kept = slice.kept(row, stride);
        let mut sums = [[V::no_sums(); VECTORS]; ROWS];
        if slice.blocks.start > 0 {
            for (index, sums) in sums.as_flattened_mut().iter_mut().enumerate() {
                *sums = V::load_sums(kept.add(index * LANES), LANES);
            }
        }
        let mut weights = slice.weights;
        for block in slice.blocks.clone() {
            slice.prefetch(block - slice.blocks.start);
            for group in 0..GROUPS {
                let place = Place {
                    block,
                    row,
                    group,
                    vector: 0,
                };
                let totals = group_totals::<V, F, LANES, DIGITS, ROWS>(slice, form, place, weights);
                weights = weights.add(GROUP * stride);
                for (index, totals) in totals.into_iter().enumerate() {
                    for (vector, total) in totals.into_iter().enumerate() {
                        let row = row + index;
                        let place = Place {
                            row,
                            vector,
                            ..place
                        };
                        let sum = &mut sums[index][vector];
                        *sum = form.add::<V, LANES>(&slice.operand, place, total, *sum);
                    }
                }
            }
        }
        let last = slice.blocks.end == slice.product.form.blocks();
        for (index, sums) in sums.into_iter().enumerate() {
            for (vector, sums) in sums.into_iter().enumerate() {
                let output = slice.outputs.start + vector * LANES;
                if !last {
                    V::store_sums(sums, kept.add((index * VECTORS + vector) * LANES), LANES);
                } else if output < slice.outputs.end {
                    let count = LANES.min(slice.outputs.end - output);
                    finish::<V, LANES>(slice.product, row + index, output, count, sums);
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
    slice: &Slice<'_>,
    form: &F,
    place: Place,
    weights: *const i8,
) -> [[V; VECTORS]; ROWS] {
    let Place {
        block, row, group, ..
    } = place;
    // SAFETY: the operand has the block and rows, the weights the group.
    unsafe {
        let digits = slice.operand.digits(block, row).add(group * GROUP);
        let mut totals = [[V::zero(); VECTORS]; ROWS];
        if DIGITS == 2 {
            add_dots::<V, LANES, DIGITS, ROWS>(&mut totals, weights, digits);
            totals = totals.map(|totals| totals.map(|total| total.times_base()));
        }
        for (index, totals) in totals.iter_mut().enumerate() {
            let offset = *slice.operand.offsets(block, row + index).add(group);
            *totals = totals.map(|total| form.begin::<V, LANES>(total, offset));
        }
        let digits = digits.add((DIGITS - 1) * BLOCK);
        add_dots::<V, LANES, DIGITS, ROWS>(&mut totals, weights, digits);
        totals
    }
}

/// Adds the products of a group's weights with one digit of all rows.
///
/// # Safety
///
/// As [`tile`]; `digits` points to the first row.
#[inline(always)]
unsafe fn add_dots<V: Vector<LANES>, const LANES: usize, const DIGITS: usize, const ROWS: usize>(
    totals: &mut [[V; VECTORS]; ROWS],
    weights: *const i8,
    digits: *const i8,
) {
    for quad in 0..QUADS {
        // SAFETY: `weights` has the quads of a group, and `digits` those of `ROWS` rows at one distance.
        unsafe {
            let from = weights.add(quad * VECTORS * LANES * 4);
            let weights = [V::load(from), V::load(from.add(LANES * 4))];
            for (index, totals) in totals.iter_mut().enumerate() {
                let digits = V::splat(digits.add(index * DIGITS * BLOCK + quad * 4));
                for (total, weights) in totals.iter_mut().zip(weights) {
                    *total = total.dot(weights, digits);
                }
            }
        }
    }
}
