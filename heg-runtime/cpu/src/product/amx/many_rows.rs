//! Integer products of many rows with AMX: 16 rows by 16 outputs in one register.
//!
//! Storing totals takes as long as multiplying, so this is 1.5 times as fast as vectors for activations of one digit, and 1.8
//! times for two (256 rows, width and outputs 2048, one core).
//!
//! Weights are packed as for vectors, which is the layout of registers (Intel SDM, `TDPBSSD`), but remain signed.

use std::arch::x86_64::__m512;
use std::ops::Range;

use super::registers::{self, LINE, REGISTER_BYTES, ROWS, TOTALS};
use crate::prefetch::prefetch;
use crate::product::avx512::{Avx512, LANES};
use crate::product::chunk::{self, Bytes, Form, Place, Slice, Tiling, VECTORS};
use crate::product::operand::{BLOCK, Bits, GROUP, GROUPS, Operand, QUADS};
use crate::product::vector::{Vector, finish};
use crate::product::{IntegerProduct, Scratch};

/// Blocks that digits are prefetched ahead: measured.
const AHEAD: usize = 4;

/// Rows that are added in the turn of a register.
const QUARTER: usize = ROWS / TOTALS;

/// Bytes of the totals of a unit.
const UNIT_BYTES: usize = TOTALS * REGISTER_BYTES;

const _: () = assert!(chunk::TOTALS_BYTES == 2 * UNIT_BYTES);

/// Computes `outputs` of all rows.
///
/// # Safety
///
/// As [`integer_product`](crate::product::integer_product), with AMX and AVX-512; `scratch` is a panel's.
pub(super) unsafe fn product(product: &IntegerProduct, outputs: Range<usize>, scratch: Scratch) {
    // SAFETY: the caller has the instructions, and the form this number of digits.
    unsafe {
        registers::configure(ROWS, GROUP);
        match product.form.bits {
            Bits::Eight => chunk::all_rows::<Tiles<1>>(product, outputs, scratch),
            Bits::Sixteen => chunk::all_rows::<Tiles<2>>(product, outputs, scratch),
        }
        registers::release();
    }
}

/// Tiles in registers of AMX, for activations of `DIGITS` digits.
struct Tiles<const DIGITS: usize>;

impl<const DIGITS: usize> Tiling for Tiles<DIGITS> {
    const OUTPUTS: usize = VECTORS * LANES;
    const ROWS: usize = ROWS;
    /// Fewer steps with less to do than by 512: 256 tokens by a layer of the 1B shape take 26.9 ms instead of 27.6.
    const COLUMNS: usize = chunk::MOST_COLUMNS;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
    unsafe fn pack(
        product: &IntegerProduct,
        outputs: Range<usize>,
        columns: Range<usize>,
        scratch: Scratch,
    ) {
        // SAFETY: the contract is the same.
        unsafe { chunk::pack::<Avx512, LANES, true>(product, outputs, columns, scratch) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
    unsafe fn multiply(slice: &mut Slice<'_>, rows: Range<usize>) {
        let tiles = rows.len().div_ceil(ROWS);
        // SAFETY: the slice is packed in the form that `spread` tells.
        unsafe {
            match &slice.spread {
                None => of_form::<_, DIGITS>(slice, &Bytes::<true>, rows),
                Some(spread) => of_form::<_, DIGITS>(slice, spread, rows),
            }
        }
        slice.prefetched(tiles * slice.blocks.len());
    }
}

/// Computes `rows` of a pass over a slice.
///
/// # Safety
///
/// As [`Tiling::multiply`].
#[inline(always)]
unsafe fn of_form<F: Form, const DIGITS: usize>(slice: &Slice<'_>, form: &F, rows: Range<usize>) {
    let whole = rows.len() / ROWS;
    let rest = rows.start + whole * ROWS..rows.end;
    let steps = |first_row, before| Steps::<F, DIGITS> {
        slice,
        form,
        operand: slice.operand,
        kept: slice.kept(first_row, VECTORS * LANES),
        first_row,
        before,
    };
    // SAFETY: the contract is the same; between calls, registers have whole rows.
    unsafe {
        for tile in 0..whole {
            let before = tile * slice.blocks.len();
            steps(rows.start + tile * ROWS, before).all::<true>(ROWS);
        }
        if !rest.is_empty() {
            registers::configure(rest.len(), GROUP);
            steps(rest.start, whole * slice.blocks.len()).all::<false>(rest.len());
            registers::configure(ROWS, GROUP);
        }
    }
}

/// The steps of a tile over a slice.
///
/// A step multiplies one unit, stores the totals of the unit before and adds those of the one before that, in turns of one
/// register: registers that were just multiplied, and memory that was just stored, would be waited for.
struct Steps<'a, F, const DIGITS: usize> {
    slice: &'a Slice<'a>,
    form: &'a F,
    /// The operand: a copy, which no instruction of ours can have changed.
    operand: Operand,
    /// Sums of the first row.
    kept: *mut f32,
    first_row: usize,
    /// Number of blocks of earlier tiles.
    before: usize,
}

/// The columns whose totals all registers hold at once: a block if activations have one digit, and one of its groups if they
/// have two.
#[derive(Clone, Copy)]
struct Unit {
    block: usize,
    /// The group, if it is one.
    group: usize,
    /// Memory of the totals.
    totals: *mut i8,
}

impl<F: Form, const DIGITS: usize> Steps<'_, F, DIGITS> {
    /// Takes all steps of a tile of `rows`: `EVERY` row of it, or fewer.
    ///
    /// # Safety
    ///
    /// As [`Tiling::multiply`], after registers got the shapes of the rows.
    #[inline(always)]
    unsafe fn all<const EVERY: bool>(&self, rows: usize) {
        let count = self.slice.blocks.len() * DIGITS;
        // SAFETY: the contract is the same, and these are the tile's units.
        unsafe {
            if self.slice.blocks.start == 0 {
                self.begin(rows);
            }
            // Most steps have everything to do, and need not ask.
            for index in 0..count + 2 {
                if EVERY && (2..count).contains(&index) {
                    self.step(self.units(index, count), |quarter| quarter);
                } else {
                    self.any_step(index, count, rows);
                }
            }
            if self.slice.blocks.end == self.slice.product.form.blocks() {
                self.finish(rows);
            }
        }
    }

    /// What the step of this index multiplies, stores and adds, of `count` units.
    #[inline(always)]
    fn units(&self, index: usize, count: usize) -> [Option<Unit>; 3] {
        [Some(index), index.checked_sub(1), index.checked_sub(2)].map(|index| {
            let index = index.filter(|index| *index < count)?;
            Some(Unit {
                block: self.slice.blocks.start + index / DIGITS,
                group: index % DIGITS,
                totals: self.slice.totals.wrapping_add(index % 2 * UNIT_BYTES),
            })
        })
    }

    /// Takes a step that may have less to do, on a tile of `rows`.
    ///
    /// # Safety
    ///
    /// As [`step`](Self::step).
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
    unsafe fn any_step(&self, index: usize, count: usize, rows: usize) {
        let existing = |quarter: Range<usize>| quarter.start.min(rows)..quarter.end.min(rows);
        // SAFETY: the contract is the same.
        unsafe { self.step(self.units(index, count), existing) }
    }

    /// Sets the sums of `rows` to zero.
    ///
    /// # Safety
    ///
    /// As [`all`](Self::all).
    #[inline(always)]
    unsafe fn begin(&self, rows: usize) {
        for vector in 0..rows * VECTORS {
            // SAFETY: the rows have sums in scratch memory.
            unsafe {
                let kept = self.kept.add(vector * LANES);
                Avx512::store_sums(Avx512::no_sums(), kept, LANES);
            }
        }
    }

    /// Stores the results of `rows`.
    ///
    /// # Safety
    ///
    /// As [`all`](Self::all), after the last block.
    #[inline(always)]
    unsafe fn finish(&self, rows: usize) {
        let outputs = &self.slice.outputs;
        for index in 0..rows {
            for vector in 0..VECTORS {
                let output = outputs.start + vector * LANES;
                let count = outputs.end.saturating_sub(output).min(LANES);
                // SAFETY: the rows have sums in scratch memory, and the product has the row and outputs.
                unsafe {
                    let kept = self.kept.add((index * VECTORS + vector) * LANES);
                    let sums = Avx512::load_sums(kept, LANES);
                    let row = self.first_row + index;
                    finish::<Avx512, LANES>(self.slice.product, row, output, count, sums);
                }
            }
        }
    }

    /// Multiplies, stores and adds, in this order of `units`.
    ///
    /// # Safety
    ///
    /// As [`all`](Self::all): the operand has the units, of `rows` rows in all, the slice their weights, and scratch memory
    /// has totals of two units.
    #[inline(always)]
    unsafe fn step(
        &self,
        units: [Option<Unit>; 3],
        existing: impl Fn(Range<usize>) -> Range<usize>,
    ) {
        if let [Some(unit), ..] = units
            && unit.group == 0
        {
            let block = unit.block - self.slice.blocks.start;
            self.slice.prefetch(self.before + block);
        }
        let quarter = |index: usize| existing(index * QUARTER..(index + 1) * QUARTER);
        // SAFETY: the contract is the same. Not a loop, since registers have numbers in the code.
        unsafe {
            self.turn::<0>(units, quarter(0));
            self.turn::<1>(units, quarter(1));
            self.turn::<2>(units, quarter(2));
            self.turn::<3>(units, quarter(3));
        }
    }

    /// Takes the turn of a register in a step, and of `rows` of a tile.
    ///
    /// # Safety
    ///
    /// As [`step`](Self::step).
    #[inline(always)]
    unsafe fn turn<const REGISTER: usize>(&self, units: [Option<Unit>; 3], rows: Range<usize>) {
        let [multiplied, stored, added] = units;
        // SAFETY: the contract is the same.
        unsafe {
            if let Some(unit) = stored {
                let totals = unit.totals.add(REGISTER * REGISTER_BYTES);
                registers::store::<REGISTER>(totals);
            }
            if let Some(unit) = multiplied {
                self.multiply::<REGISTER>(unit);
            }
            if let Some(unit) = added {
                self.add(unit, rows);
            }
        }
    }

    /// Multiplies digits by weights: registers 0 and 1 get the totals of the first group or digit for both vectors of outputs,
    /// 2 and 3 those of the second.
    ///
    /// # Safety
    ///
    /// As [`step`](Self::step); smaller registers come first.
    #[inline(always)]
    unsafe fn multiply<const REGISTER: usize>(&self, unit: Unit) {
        const GROUP_WEIGHTS: usize = QUADS * VECTORS * LINE;
        let (second, vector) = (REGISTER / VECTORS, REGISTER % VECTORS);
        let (group, digit) = match DIGITS {
            1 => (second, 0),
            _ => (unit.group, second),
        };
        let next = match unit.block + AHEAD {
            block if block < self.slice.blocks.end => self.operand.digits(block, self.first_row),
            block => {
                let block = block - self.slice.blocks.len();
                self.operand.digits(block, self.first_row + ROWS)
            }
        };
        for row in REGISTER * QUARTER..(REGISTER + 1) * QUARTER {
            let line = row * DIGITS + unit.group;
            prefetch(next.wrapping_add(line * BLOCK));
        }
        let digits = self.operand.digits(unit.block, self.first_row);
        let digits = digits.wrapping_add(digit * BLOCK + group * GROUP);
        let group = (unit.block - self.slice.blocks.start) * GROUPS + group;
        let place = group * GROUP_WEIGHTS + vector * LINE;
        let weights = self.slice.weights.wrapping_add(place);
        // SAFETY: the rows have these digits, and the slice these weights.
        unsafe { registers::multiply::<REGISTER>(digits, DIGITS * BLOCK, weights, VECTORS * LINE) }
    }

    /// Adds totals to the sums of `rows` of the unit.
    ///
    /// # Safety
    ///
    /// As [`step`](Self::step), after the totals were stored.
    #[inline(always)]
    unsafe fn add(&self, unit: Unit, rows: Range<usize>) {
        for index in rows {
            for vector in 0..VECTORS {
                let place = Place {
                    block: unit.block,
                    row: self.first_row + index,
                    group: unit.group,
                    vector,
                };
                // SAFETY: totals and sums of the row are in scratch memory, and the operand has the place.
                unsafe {
                    let kept = self.kept.add((index * VECTORS + vector) * LANES);
                    let totals = unit.totals.add(vector * REGISTER_BYTES + index * LINE);
                    let both = [
                        Avx512::load(totals),
                        Avx512::load(totals.add(VECTORS * REGISTER_BYTES)),
                    ];
                    let sums = Avx512::load_sums(kept, LANES);
                    Avx512::store_sums(self.added(place, both, sums), kept, LANES);
                }
            }
        }
    }

    /// Adds two groups of one digit, or one of two, to `sums`.
    ///
    /// # Safety
    ///
    /// The operand has the place.
    #[inline(always)]
    unsafe fn added(&self, place: Place, both: [Avx512; 2], mut sums: __m512) -> __m512 {
        // SAFETY: the caller has AVX-512, and the operand the place.
        unsafe {
            let (totals, count) = match DIGITS {
                1 => (both, GROUPS),
                _ => ([both[0].times_base().add_lanes(both[1]); 2], 1),
            };
            for (group, total) in totals.into_iter().enumerate().take(count) {
                let group = place.group + group;
                let place = Place { group, ..place };
                let offset = *self.operand.offsets(place.block, place.row).add(group);
                let total = self.form.begin::<Avx512, LANES>(total, offset);
                sums = self
                    .form
                    .add::<Avx512, LANES>(&self.operand, place, total, sums);
            }
            sums
        }
    }
}
