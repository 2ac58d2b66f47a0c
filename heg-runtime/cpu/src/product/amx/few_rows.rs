//! Integer products of a few rows with AMX: 16 outputs by at most 16 rows in one register.
//!
//! Matrix rows are loaded as they lie: they are the rows of a register, and digits of all activation rows the columns of
//! another. So weights are never transposed. A step of a layer of the 1B shape takes 1.37 ms instead of 2.11 by vectors for 8
//! rows, and 1.69 instead of 3.25 for 16, where one row takes 1.10 (two cores).
//!
//! With at most 8 rows, the first 8 columns have a row's digits in the first group of a block and zeros in the second, and the
//! last 8 columns the reverse: both groups' totals come from one multiplication.

use std::arch::x86_64::*;
use std::ops::{Range, RangeInclusive};

use super::registers::{self, LINE, REGISTER_BYTES, ROWS};
use crate::prefetch::prefetch;
use crate::product::avx512::{Avx512, LANES};
use crate::product::operand::{BLOCK, Bits, GROUP, GROUPS, Operand, QUADS};
use crate::product::vector::{Vector, finish};
use crate::product::{IntegerProduct, Scaling, Scratch, chunk, nibbles};

/// The numbers of rows for which this kernel is the fastest: measured.
const ROWS_TAKEN: RangeInclusive<usize> = 3..=64;

/// Outputs of a tile.
const OUTPUTS: usize = ROWS;

/// Most outputs whose sums are kept from slice to slice.
const PASS: usize = 512;

/// Blocks that weights are prefetched ahead: measured, best of 4 to 16.
const AHEAD: usize = 8;

/// Whether this kernel computes whole tiles of a product.
pub(super) fn takes(product: &IntegerProduct) -> bool {
    matches!(product.scaling, Scaling::Rows(_))
        && product.form.width.is_multiple_of(BLOCK)
        && ROWS_TAKEN.contains(&product.rows)
}

/// Computes the whole tiles of `outputs` for all rows, and returns the other outputs.
///
/// # Safety
///
/// As [`integer_product`](crate::product::integer_product), with AMX and AVX-512, for a product that [`takes`] allows; `scratch`
/// is a panel's.
pub(super) unsafe fn product(
    product: &IntegerProduct,
    outputs: Range<usize>,
    scratch: Scratch,
) -> Range<usize> {
    let end = outputs.start + outputs.len() / OUTPUTS * OUTPUTS;
    for first in (0..product.rows).step_by(ROWS) {
        let part = product.part(first..product.rows.min(first + ROWS));
        let outputs = outputs.start..end;
        // SAFETY: the contract is the same, and the rows of each form are at least those of the part.
        unsafe {
            match (part.form.bits, part.rows) {
                (Bits::Eight, ..=8) => all_outputs::<1, 8>(&part, outputs, scratch),
                (Bits::Eight, _) => all_outputs::<1, 16>(&part, outputs, scratch),
                (Bits::Sixteen, ..=8) => all_outputs::<2, 8>(&part, outputs, scratch),
                (Bits::Sixteen, _) => all_outputs::<2, 16>(&part, outputs, scratch),
            }
        }
    }
    end..outputs.end
}

/// [`product`] for activations of `DIGITS` digits, and at most `MOST_ROWS` rows.
///
/// # Safety
///
/// As [`product`].
unsafe fn all_outputs<const DIGITS: usize, const MOST_ROWS: usize>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    scratch: Scratch,
) {
    let (all, size) = (product.form.blocks(), Slice::<DIGITS, MOST_ROWS>::BLOCKS);
    const { Slice::<DIGITS, MOST_ROWS>::assert_scratch() };
    // SAFETY: the contract is the same; scratch memory has digits and scales of a slice, and sums of a pass.
    unsafe {
        registers::configure(OUTPUTS, Slice::<DIGITS, MOST_ROWS>::DEPTH);
        for pass in outputs.clone().step_by(PASS) {
            let pass = pass..outputs.end.min(pass + PASS);
            for first in (0..all).step_by(size) {
                let slice = Slice::<DIGITS, MOST_ROWS> {
                    product,
                    outputs: pass.clone(),
                    blocks: first..all.min(first + size),
                    scratch,
                };
                slice.pack();
                for output in pass.clone().step_by(OUTPUTS) {
                    slice.tile(output);
                }
            }
        }
        registers::release();
    }
}

/// Columns of a pass, whose digits stay in the first-level cache while they are multiplied with all outputs.
struct Slice<'a, const DIGITS: usize, const MOST_ROWS: usize> {
    product: &'a IntegerProduct,
    /// The outputs of the pass.
    outputs: Range<usize>,
    blocks: Range<usize>,
    /// Digits `[unit][digit][quad][column]`, scales `[group][lane]`, sums `[output][row]`, and totals of two units.
    scratch: Scratch,
}

impl<const DIGITS: usize, const MOST_ROWS: usize> Slice<'_, DIGITS, MOST_ROWS> {
    /// Groups whose totals come from one multiplication, which are a unit.
    const GROUPS: usize = ROWS / MOST_ROWS;

    /// Units of a block.
    const UNITS: usize = GROUPS / Self::GROUPS;

    /// Columns of weights in a unit, and so the bytes of a register's rows.
    const DEPTH: usize = GROUP * Self::GROUPS;

    /// Bytes of a digit of a unit.
    const DIGIT: usize = QUADS * Self::GROUPS * LINE;

    /// Most blocks. Measured, of 8 to 32: with weights in memory, 16 tokens by the 1B shape take 54 ms by 32 and 58 by 16.
    const BLOCKS: usize = 32 / DIGITS;

    /// Asserts that scratch memory has room for a slice.
    const fn assert_scratch() {
        assert!(Self::BLOCKS * Self::UNITS * DIGITS * Self::DIGIT <= chunk::WEIGHTS_BYTES);
        assert!(Self::BLOCKS * GROUPS * LANES <= nibbles::SPREAD);
        assert!(PASS * MOST_ROWS <= chunk::SUMS);
        assert!(2 * DIGITS * REGISTER_BYTES <= chunk::TOTALS_BYTES);
    }

    /// Transposes the digits of the slice to columns, and spreads scales over the lanes of totals. Rows behind the last are
    /// zeros.
    ///
    /// # Safety
    ///
    /// As [`product`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
    unsafe fn pack(&self) {
        let (operand, rows) = (self.product.operand(), self.product.rows);
        for (index, block) in self.blocks.clone().enumerate() {
            // SAFETY: the operand has these rows and blocks, and scratch memory room for the slice.
            unsafe {
                for digit in 0..DIGITS {
                    let mut lines = [Avx512::zero(); LANES];
                    for row in 0..rows {
                        let digits = operand.digits(block, row).add(digit * BLOCK);
                        match Self::GROUPS {
                            1 => lines[row] = Avx512::load(digits),
                            _ => {
                                let [first, second] = Avx512::load(digits).halves();
                                lines[row] = first;
                                lines[MOST_ROWS + row] = second;
                            }
                        }
                    }
                    for (quad, quads) in Avx512::transpose(lines).into_iter().enumerate() {
                        let unit = index * Self::UNITS + quad * 4 / Self::DEPTH;
                        let place =
                            (unit * DIGITS + digit) * Self::DIGIT + quad * LINE % Self::DIGIT;
                        quads.store(self.scratch.weights.add(place));
                    }
                }
                for group in 0..GROUPS {
                    let to = (index * GROUPS + group) * LANES;
                    let scales = Self::scales(&operand, block, group, rows);
                    Avx512::store_sums(scales, self.scratch.spread.add(to), LANES);
                }
            }
        }
    }

    /// The scales of a group, one per lane of totals.
    ///
    /// # Safety
    ///
    /// The operand has the block and rows.
    #[inline(always)]
    unsafe fn scales(operand: &Operand, block: usize, group: usize, rows: usize) -> __m512 {
        let from = operand.scales(block, 0);
        let mut places = [0; LANES];
        for (lane, place) in places.iter_mut().enumerate() {
            *place = (lane % MOST_ROWS * GROUPS + group) as i32;
        }
        let all = rows * GROUPS;
        // SAFETY: the caller has AVX-512, and the operand the scales of `rows` rows, one after another.
        unsafe {
            let low = Avx512::load_sums(from, all.min(LANES));
            let high = Avx512::load_sums(from.wrapping_add(LANES), all.saturating_sub(LANES));
            let places = _mm512_loadu_si512(places.as_ptr().cast());
            _mm512_permutex2var_ps(low, places, high)
        }
    }

    /// Computes the slice's part of the outputs from `output` on.
    ///
    /// Each turn multiplies one unit, stores the totals of the unit before and adds those of the one before that: registers
    /// that were just multiplied, and memory that was just stored, would be waited for.
    ///
    /// # Safety
    ///
    /// As [`product`], after [`pack`](Self::pack).
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
    unsafe fn tile(&self, output: usize) {
        let kept = (output - self.outputs.start) * MOST_ROWS;
        let kept = self.scratch.sums.wrapping_add(kept);
        let units = self.blocks.len() * Self::UNITS;
        // SAFETY: scratch memory has the sums of the pass, the operand the slice.
        unsafe {
            let mut sums = [_mm512_setzero_ps(); MOST_ROWS];
            if self.blocks.start > 0 {
                for (index, sums) in sums.iter_mut().enumerate() {
                    *sums = Avx512::load_sums(kept.add(index * LANES), LANES);
                }
            }
            // Two turns at once, since registers have numbers in the code.
            for unit in (0..units + 2).step_by(2) {
                sums = self.turn::<0>(output, unit, sums);
                sums = self.turn::<1>(output, unit + 1, sums);
            }
            for (index, sums) in sums.into_iter().enumerate() {
                Avx512::store_sums(sums, kept.add(index * LANES), LANES);
            }
            if self.blocks.end == self.product.form.blocks() {
                self.finish(output, kept);
            }
        }
    }

    /// Multiplies a unit, stores the totals of the one before it and adds those of the one before that, if the slice has them.
    ///
    /// # Safety
    ///
    /// As [`tile`](Self::tile); `ODD` is 1 for odd units and 0 for even ones.
    #[inline(always)]
    unsafe fn turn<const ODD: usize>(
        &self,
        output: usize,
        unit: usize,
        mut sums: [__m512; MOST_ROWS],
    ) -> [__m512; MOST_ROWS] {
        let units = self.blocks.len() * Self::UNITS;
        let totals = |odd: usize| {
            self.scratch
                .totals
                .wrapping_add(odd * DIGITS * REGISTER_BYTES)
        };
        // SAFETY: the contract is the same; registers 0 and 1 have even units, 2 and 3 odd ones.
        unsafe {
            if (1..=units).contains(&unit) {
                match ODD {
                    0 => Self::store::<2, 3>(totals(1)),
                    _ => Self::store::<0, 1>(totals(0)),
                }
            }
            if unit < units {
                match ODD {
                    0 => self.multiply::<0, 1>(output, unit),
                    _ => self.multiply::<2, 3>(output, unit),
                }
            }
            if (2..units + 2).contains(&unit) {
                sums = self.added(unit - 2, totals(ODD), sums);
            }
        }
        sums
    }

    /// Multiplies the weights of a unit by its digits.
    ///
    /// # Safety
    ///
    /// As [`tile`](Self::tile): the slice has the unit.
    #[inline(always)]
    unsafe fn multiply<const FIRST: usize, const SECOND: usize>(&self, output: usize, unit: usize) {
        let width = self.product.form.width;
        let column = self.blocks.start * BLOCK + unit * Self::DEPTH;
        let weights = self.product.weights.wrapping_add(output * width + column);
        let digits = self
            .scratch
            .weights
            .wrapping_add(unit * DIGITS * Self::DIGIT);
        if unit.is_multiple_of(Self::UNITS) {
            self.prefetch(output, unit, weights);
        }
        // SAFETY: the contract is the same.
        unsafe {
            registers::multiply::<FIRST>(weights, width, digits, LINE);
            if DIGITS == 2 {
                let digits = digits.wrapping_add(Self::DIGIT);
                registers::multiply::<SECOND>(weights, width, digits, LINE);
            }
        }
    }

    /// Prefetches the weights [`AHEAD`] blocks behind those of a unit: of this tile, or of the next one.
    #[inline(always)]
    fn prefetch(&self, output: usize, unit: usize, weights: *const i8) {
        let width = self.product.form.width;
        let left = self.blocks.len() - unit / Self::UNITS;
        let ahead = weights.wrapping_add(AHEAD * BLOCK);
        let next = if AHEAD < left {
            ahead
        } else if output + OUTPUTS < self.outputs.end {
            ahead.wrapping_add(OUTPUTS * width - self.blocks.len() * BLOCK)
        } else {
            ahead.wrapping_sub((output - self.outputs.start) * width)
        };
        for row in 0..OUTPUTS {
            prefetch(next.wrapping_add(row * width));
        }
    }

    /// Stores the totals of a unit.
    ///
    /// # Safety
    ///
    /// As [`tile`](Self::tile), after [`multiply`](Self::multiply).
    #[inline(always)]
    unsafe fn store<const FIRST: usize, const SECOND: usize>(totals: *mut i8) {
        // SAFETY: the contract is the same, and scratch memory has room for totals.
        unsafe {
            registers::store::<FIRST>(totals);
            if DIGITS == 2 {
                registers::store::<SECOND>(totals.wrapping_add(REGISTER_BYTES));
            }
        }
    }

    /// Adds the totals of a unit of the slice.
    ///
    /// # Safety
    ///
    /// As [`tile`](Self::tile), after [`store`](Self::store).
    #[inline(always)]
    unsafe fn added(
        &self,
        unit: usize,
        totals: *const i8,
        mut sums: [__m512; MOST_ROWS],
    ) -> [__m512; MOST_ROWS] {
        for group in 0..Self::GROUPS {
            let scales = (unit * Self::GROUPS + group) * LANES;
            // SAFETY: scratch memory has the totals, and the scales of the slice.
            unsafe {
                let scales = Avx512::load_sums(self.scratch.spread.add(scales), LANES);
                for (index, sums) in sums.iter_mut().enumerate() {
                    let line = index * Self::GROUPS * LINE + group * LINE / 2;
                    let totals = totals.add(line);
                    let mut total = Self::totals(totals);
                    if DIGITS == 2 {
                        let second = Self::totals(totals.add(REGISTER_BYTES));
                        total = total.times_base().add_lanes(second);
                    }
                    *sums = total.add_scaled_by(scales, *sums);
                }
            }
        }
        sums
    }

    /// Totals of one group: of an output, or of two with half the rows.
    ///
    /// # Safety
    ///
    /// As [`added`](Self::added).
    #[inline(always)]
    unsafe fn totals(from: *const i8) -> Avx512 {
        // SAFETY: the contract is the same.
        unsafe {
            match Self::GROUPS {
                1 => Avx512::load(from),
                _ => Avx512::load_halves(from, from.add(LINE)),
            }
        }
    }

    /// Stores results of the outputs from `output` on, whose sums are at `kept`.
    ///
    /// # Safety
    ///
    /// As [`tile`](Self::tile), after the last slice.
    #[inline(always)]
    unsafe fn finish(&self, output: usize, kept: *mut f32) {
        // SAFETY: the product has the outputs and rows; lanes behind the rows are not used.
        unsafe {
            let mut lines = [Avx512::zero(); LANES];
            for (index, line) in lines.iter_mut().enumerate() {
                let sums = kept.add(index * MOST_ROWS).cast();
                *line = Avx512::load_first(sums, MOST_ROWS * size_of::<f32>());
            }
            let lines = Avx512::transpose(lines).into_iter();
            for (row, line) in lines.enumerate().take(self.product.rows) {
                finish::<Avx512, LANES>(self.product, row, output, OUTPUTS, line.into_sums());
            }
        }
    }
}
