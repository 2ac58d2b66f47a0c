//! Products with 4-bit weights, which have a scale, and perhaps a centre, per group of columns.
//!
//! Integers are multiplied as unpacked, from 0 to 15; signed ones had 8 added, which a group's offset undoes. A byte
//! has two columns, so transposed bytes give quads of even columns and quads of odd ones, and operands have the same
//! order.

mod few_rows;
mod one_row;

use super::chunk::{Form, Place, VECTORS};
use super::few_rows::transposed;
use super::operand::{BLOCK, GROUP, GROUPS, Operand, QUADS};
use super::vector::Vector;
use super::{IntegerProduct, Scratch};
use crate::prefetch::prefetch;
pub(super) use few_rows::few_rows;
use half::f16;
pub(super) use one_row::one_row;
use std::ops::Range;

/// Dequantisation of 4-bit weights, per group: `scale · q + centre`. Both are f16, row-major, and may be unaligned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grouped {
    /// Scale per group.
    pub(crate) scales: *const u16,
    /// Centre per group of unsigned integers; `None`: integers are signed.
    pub(crate) centres: Option<*const u16>,
    /// Columns per group: 32, 64 or 128.
    pub(crate) columns: usize,
}

/// Scales and centres of a slice as vectors over outputs, group after group.
#[derive(Clone, Copy)]
pub(super) struct Spread {
    scales: *mut f32,
    centres: Option<*mut f32>,
    /// Operand groups before the slice.
    before: usize,
    /// Logarithm of the number of operand groups per group of weights.
    shift: u32,
    /// Elements from one group to the next.
    stride: usize,
}

/// Columns per slice of products of one or a few rows, whose weights are not kept. Chosen: most rows are one slice.
const SLICE: usize = 4096;

/// Elements of a slice's scales and centres together, for tiles of vectors of 16 lanes.
pub(super) const SPREAD: usize = 2 * SLICE / GROUP * VECTORS * 16;

impl Grouped {
    /// The integer in `column` of the matrix row at `weights`.
    ///
    /// # Safety
    ///
    /// The row has the column.
    #[inline(always)]
    pub(super) unsafe fn integer(&self, weights: *const u8, column: usize) -> i32 {
        // SAFETY: the row has the column, and two columns share a byte.
        let byte = unsafe { *weights.add(column / 2) };
        let half = i32::from((byte >> (column % 2 * 4)) & 0x0f);
        match self.centres {
            Some(_) => half,
            None => (half ^ 8) - 8,
        }
    }

    /// Scale and centre of a group, by its index in the matrix.
    ///
    /// # Safety
    ///
    /// The matrix has the group.
    #[inline(always)]
    pub(super) unsafe fn affine(&self, group: usize) -> (f32, f32) {
        // SAFETY: the matrix has the group, and numbers may be unaligned.
        unsafe {
            let read =
                |numbers: *const u16| f16::from_bits(numbers.add(group).read_unaligned()).to_f32();
            (read(self.scales), self.centres.map_or(0.0, read))
        }
    }

    /// The layout of scales and centres for the slice that begins with column `slice`; `to` has [`SPREAD`] elements,
    /// `stride` outputs per group.
    pub(super) fn spread_at(&self, slice: usize, stride: usize, to: *mut f32) -> Spread {
        Spread {
            scales: to,
            centres: self.centres.map(|_| to.wrapping_add(SPREAD / 2)),
            before: slice / GROUP,
            shift: (self.columns / GROUP).trailing_zeros(),
            stride,
        }
    }

    /// Spreads the scales and centres of `outputs`, at most one vector, over `columns`.
    ///
    /// # Safety
    ///
    /// The matrix has the outputs and columns, at most a slice of them, and `spread` has room for a vector.
    #[inline(always)]
    unsafe fn fill<V: Vector<LANES>, const LANES: usize>(
        &self,
        product: &IntegerProduct,
        outputs: Range<usize>,
        columns: &Range<usize>,
        spread: Spread,
    ) {
        let in_row = product.form.width / self.columns;
        let groups = columns.start / self.columns..columns.end / self.columns;
        let both = [
            Some((self.scales, spread.scales)),
            self.centres.zip(spread.centres),
        ];
        for (numbers, to) in both.into_iter().flatten() {
            let from = numbers.wrapping_add(outputs.start * in_row);
            for group in groups.clone().step_by(LANES) {
                let left = LANES.min(groups.end - group);
                let first = group - groups.start;
                // SAFETY: the rows have `left` groups from this one on, and the slice has room for a group per lane.
                unsafe {
                    let mut rows = [V::zero(); LANES];
                    for (index, row) in rows.iter_mut().enumerate().take(outputs.len()) {
                        let from = from.wrapping_add(index * in_row + group);
                        prefetch(from.wrapping_add(LANES * in_row));
                        *row = V::load_f16(from, left);
                    }
                    for (index, lanes) in V::transpose(rows).into_iter().enumerate() {
                        lanes.store(to.add((first + index) * spread.stride).cast());
                    }
                }
            }
        }
    }

    /// The mask that turns signed halves of bytes into unsigned ones by exclusive or.
    #[inline(always)]
    unsafe fn flipped<V: Vector<LANES>, const LANES: usize>(&self) -> V {
        const SIGNS: [i8; 4] = [i8::from_ne_bytes([0x88]); 4];
        // SAFETY: the caller has the instructions of `V`, and there are four bytes.
        unsafe {
            match self.centres {
                Some(_) => V::zero(),
                None => V::splat(SIGNS.as_ptr()),
            }
        }
    }
}

impl Spread {
    /// The same numbers from another output of the tile on.
    #[inline(always)]
    fn starting_at(self, output: usize) -> Self {
        Self {
            scales: self.scales.wrapping_add(output),
            centres: self.centres.map(|centres| centres.wrapping_add(output)),
            ..self
        }
    }
}

impl Form for Spread {
    /// The correction is 0 for unsigned integers, and −8 times the sum of the operand's integers for signed ones: a
    /// sixteenth of the offset for bytes.
    #[inline(always)]
    unsafe fn begin<V: Vector<LANES>, const LANES: usize>(&self, total: V, offset: i32) -> V {
        // SAFETY: the caller has the instructions of `V`.
        unsafe {
            match self.centres {
                Some(_) => total,
                None => total.plus(offset >> 4),
            }
        }
    }

    /// The scales and centres of the group are spread.
    #[inline(always)]
    unsafe fn add<V: Vector<LANES>, const LANES: usize>(
        &self,
        operand: &Operand,
        place: Place,
        total: V,
        sums: V::Sums,
    ) -> V::Sums {
        let Place {
            block,
            row,
            group,
            vector,
        } = place;
        let of_weights = (block * GROUPS + group - self.before) >> self.shift;
        let at = of_weights * self.stride + vector * LANES;
        // SAFETY: the operand has the place, and the group's scales and centres are spread at `at`.
        unsafe {
            let scale = *operand.scales(block, row).add(group);
            let scales = V::load_sums(self.scales.add(at), LANES);
            let sums = total.add_products(scales, scale, sums);
            match self.centres {
                None => sums,
                Some(centres) => {
                    let of_group = *operand.group_sums(block, row).add(group);
                    V::multiply_add(V::load_sums(centres.add(at), LANES), of_group, sums)
                }
            }
        }
    }
}

/// [`pack`](super::chunk::pack) for 4-bit weights: unpacks them, and spreads their scales and centres.
///
/// # Safety
///
/// As [`pack`](super::chunk::pack).
#[inline(always)]
pub(super) unsafe fn pack<V: Vector<LANES>, const LANES: usize>(
    product: &IntegerProduct,
    groups: &Grouped,
    outputs: Range<usize>,
    columns: Range<usize>,
    scratch: Scratch,
) {
    let row_bytes = product.row_bytes();
    let spread = groups.spread_at(columns.start, VECTORS * LANES, scratch.spread);
    for vector in 0..VECTORS {
        let output = outputs.start + vector * LANES;
        let count = outputs.end.saturating_sub(output).min(LANES);
        let first = product.weights.wrapping_add(output * row_bytes);
        // Whole blocks: zeros behind the last column.
        let end = columns.end.next_multiple_of(BLOCK);
        // SAFETY: `transposed` and `fill` read existing rows; the weights and the scales of a slice fit.
        unsafe {
            let of_vector = spread.starting_at(vector * LANES);
            groups.fill::<V, LANES>(product, output..output + count, &columns, of_vector);
            let flipped = groups.flipped::<V, LANES>();
            for column in (columns.start..end).step_by(LANES * 8) {
                let bytes = transposed::<V, LANES>(first, row_bytes, count, column / 2);
                let group = (column - columns.start) / GROUP;
                for (index, bytes) in bytes.into_iter().enumerate() {
                    let halves = QUADS / 2;
                    let even = (group + index / halves) * QUADS + index % halves;
                    let to = |quad: usize| {
                        let place = (quad * VECTORS + vector) * LANES * 4;
                        scratch.weights.wrapping_add(place)
                    };
                    let [low, high] = bytes.nibbles(flipped);
                    low.store(to(even));
                    high.store(to(even + halves));
                }
            }
        }
    }
}

/// Writes matrix row `output` in f32, each weight `scale · q + centre` rounded once.
///
/// # Safety
///
/// The matrix at `weights` has the row, of `width` columns in whole groups, and `to` has room for `width` elements.
pub(crate) unsafe fn unpack(
    groups: &Grouped,
    weights: *const u8,
    width: usize,
    output: usize,
    to: *mut f32,
) {
    let in_row = width / groups.columns;
    for group in 0..in_row {
        // SAFETY: the matrix has the row in whole groups, and `to` has as many elements as the row has columns.
        unsafe {
            let row = weights.add(output * (width / 2));
            let (scale, centre) = groups.affine(output * in_row + group);
            for column in group * groups.columns..(group + 1) * groups.columns {
                // The product is exact: four bits times eleven.
                let w = groups.integer(row, column) as f32 * scale + centre;
                to.add(column).write(w);
            }
        }
    }
}
