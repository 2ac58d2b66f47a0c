//! Products of rows with matrices.
//!
//! Integer products are those of int8 weights, one scale and perhaps a centre for each matrix row, with activations rounded to
//! integers in groups of 32: the exact total of a group becomes f32, is scaled and added to the sum over the groups before
//! it. That order is the same in every form, so a result's bits depend neither on the number of rows nor on how outputs
//! are divided among threads. A centre is a term of every weight of its row, so it is multiplied once, by the sum of the
//! activations.
//!
//! Weights of 4 bits (`nibbles`) have a scale, and perhaps a centre, for each group of columns. A total's factor is then
//! the product of both scales, and a centre is multiplied by the sum of a group and added behind its total.
//!
//! Weights are rows as they lie in the file. One row of activations is multiplied at the rate that memory is read at
//! (`one_row`); for a few, weights are transposed in registers (`few_rows`), for many, into a buffer (`chunk`).

#![allow(unsafe_code, reason = "intrinsics and rows of mapped files")]

#[cfg(target_arch = "x86_64")]
mod avx512;
mod chunk;
mod few_rows;
mod float;
mod nibbles;
mod one_row;
mod operand;
mod portable;
mod prefetch;
#[cfg(test)]
mod tests;
mod vector;
#[cfg(target_arch = "x86_64")]
mod ymm;

use crate::Isa;
use crate::call::AffineBytes;
pub(crate) use float::{FloatProduct, float_product};
use heg_artifacts::manifest::{ElementType, Parameter};
pub(crate) use nibbles::{Grouped, unpack};
use operand::Operand;
pub(crate) use operand::{Bits, Meets, Rounded};
use std::ops::Range;
use vector::Kernels;

/// Rows of a call up to which weights are read once for all of them, as for the tokens of a decode step.
pub(crate) const FEW_ROWS: usize = few_rows::MOST;

/// Outputs of the widest tile of a kernel: as many vectors as one has beside each other, of 16 numbers.
pub const TILE_OUTPUTS: usize = chunk::VECTORS * 16;

/// The term that the result of a product is added to: `residual + factor · y`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Residual {
    /// First row.
    pub(crate) from: *const f32,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    /// Factor on the product.
    pub(crate) factor: f32,
}

/// What the integers of an int8 matrix stand for, output by output: `scale · w + centre`. Both at any alignment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Affine {
    /// A factor for each output.
    pub(crate) scales: *const f32,
    /// A term for each output, where rows are centred.
    pub(crate) centres: Option<*const f32>,
}

/// What the integers of a matrix stand for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scaling {
    /// Those of a byte, row by row.
    Rows(Affine),
    /// Those of half a byte, group by group.
    Groups(Grouped),
}

impl Scaling {
    /// What the integers of a weight stand for; none where it has none.
    pub(crate) fn of(parameter: &Parameter, affine: AffineBytes<'_>) -> Option<Self> {
        let AffineBytes { scales, centres } = affine;
        match (parameter.element, parameter.group_columns) {
            (ElementType::I8, _) => Some(Self::Rows(Affine {
                scales: scales.as_ptr().cast(),
                centres: centres.map(|centres| centres.as_ptr().cast()),
            })),
            (ElementType::I4 | ElementType::U4, Some(group)) => Some(Self::Groups(Grouped {
                scales: scales.as_ptr().cast(),
                centres: centres.map(|centres| centres.as_ptr().cast()),
                columns: group.count() as usize,
            })),
            _ => None,
        }
    }
}

/// The product of rounded rows with a matrix of integers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IntegerProduct {
    /// Rows of `form.width` weights, one for each output, one after another.
    pub(crate) weights: *const i8,
    /// What the weights stand for.
    pub(crate) scaling: Scaling,
    /// Form of the operand, which meets such weights.
    pub(crate) form: Rounded,
    /// The operand, aligned to 64 bytes.
    pub(crate) operand: *const u8,
    /// Rows of the operand.
    pub(crate) operand_rows: usize,
    /// The first of them that is multiplied.
    pub(crate) first_row: usize,
    /// Rows that are multiplied, which results and residual have.
    pub(crate) rows: usize,
    /// A term for each output.
    pub(crate) bias: Option<*const f32>,
    /// A term for each row and output; it may be where the results go.
    pub(crate) residual: Option<Residual>,
    /// First row of the results.
    pub(crate) out: *mut f32,
    /// Elements from one row of results to the next.
    pub(crate) out_stride: usize,
}

// SAFETY: pointers are used by `integer_product` alone, whose callers take care that no two write the same outputs.
unsafe impl Sync for IntegerProduct {}
// SAFETY: as above.
unsafe impl Send for IntegerProduct {}

impl IntegerProduct {
    #[inline(always)]
    fn operand(&self) -> Operand {
        Operand::new(self.form, self.operand_rows, self.operand).starting_at(self.first_row)
    }

    /// Bytes of a row of weights.
    #[inline(always)]
    fn row_bytes(&self) -> usize {
        match self.scaling {
            Scaling::Rows(_) => self.form.width,
            Scaling::Groups(_) => self.form.width / 2,
        }
    }
}

/// Scratch memory of one thread.
pub(crate) struct Panel {
    /// Transposed weights or parked totals.
    weights: Vec<Line>,
    sums: Vec<f32>,
    /// Scales and centres of groups as vectors over outputs.
    spread: Vec<f32>,
}

/// The memory of a [`Panel`].
#[derive(Clone, Copy)]
struct Scratch {
    weights: *mut i8,
    sums: *mut f32,
    spread: *mut f32,
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([i8; 64]);

impl Panel {
    /// Scratch memory for any product.
    pub(crate) fn new() -> Self {
        let bytes = chunk::WEIGHTS_BYTES.max(one_row::PARKED_BYTES);
        Self {
            weights: vec![Line([0; 64]); bytes.div_ceil(64)],
            sums: vec![0.0; chunk::SUMS],
            spread: vec![0.0; nibbles::SPREAD],
        }
    }
}

/// Rounds row `row` of an operand of `rows` rows.
///
/// # Safety
///
/// The machine has `isa`. `x` has `form.width` elements, and `operand`, aligned to 64 bytes, `form.bytes(rows)` bytes,
/// of which nobody else reads or writes this row. `row` is less than `rows`.
pub(crate) unsafe fn round_row(
    isa: Isa,
    form: Rounded,
    rows: usize,
    row: usize,
    x: *const f32,
    operand: *mut u8,
) {
    let round = match (isa, form.bits) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512Vnni, Bits::Eight) => avx512::Avx512::round::<1>,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512Vnni, Bits::Sixteen) => avx512::Avx512::round::<2>,
        #[cfg(target_arch = "x86_64")]
        (Isa::AvxVnni | Isa::Avx2, Bits::Eight) => ymm::Ymm::<ymm::Magnitudes>::round::<1>,
        #[cfg(target_arch = "x86_64")]
        (Isa::AvxVnni | Isa::Avx2, Bits::Sixteen) => ymm::Ymm::<ymm::Magnitudes>::round::<2>,
        (_, Bits::Eight) => operand::round::<1>,
        (_, Bits::Sixteen) => operand::round::<2>,
    };
    // SAFETY: passed on.
    unsafe { round(form, rows, row, x, operand) }
}

/// Computes `outputs` of all rows.
///
/// # Safety
///
/// The machine has `isa`. Matrix, scales, centres, bias and the rows of residual and results have every output of `outputs`; the
/// operand has the form that is said, with all its rows rounded, and meets such weights; groups divide its width. Nobody
/// writes what is read nor uses what is written.
pub(crate) unsafe fn integer_product(
    isa: Isa,
    product: &IntegerProduct,
    outputs: Range<usize>,
    panel: &mut Panel,
) {
    // SAFETY: passed on.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => {
                by::<avx512::Avx512, { avx512::LANES }>(product, outputs, panel);
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => {
                by::<ymm::Ymm<ymm::Vnni>, { ymm::LANES }>(product, outputs, panel);
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                by::<ymm::Ymm<ymm::Magnitudes>, { ymm::LANES }>(product, outputs, panel);
            }
            _ => portable::product(product, outputs),
        }
    }
}

/// # Safety
///
/// As [`integer_product`], with the instructions of `V`.
unsafe fn by<V: Kernels<LANES>, const LANES: usize>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    panel: &mut Panel,
) {
    // SAFETY: passed on.
    unsafe {
        match product.form.bits {
            Bits::Eight => by_digits::<V, LANES, 1>(product, outputs, panel),
            Bits::Sixteen => by_digits::<V, LANES, 2>(product, outputs, panel),
        }
    }
}

/// # Safety
///
/// As [`by`], for activations of `DIGITS` digits.
unsafe fn by_digits<V: Kernels<LANES>, const LANES: usize, const DIGITS: usize>(
    product: &IntegerProduct,
    outputs: Range<usize>,
    panel: &mut Panel,
) {
    let scratch = Scratch {
        weights: panel.weights.as_mut_ptr().cast(),
        sums: panel.sums.as_mut_ptr(),
        spread: panel.spread.as_mut_ptr(),
    };
    // SAFETY: passed on; the panel has what each asks for.
    unsafe {
        match product.rows {
            0 => {}
            // It reads the blocks of an operand of one row as one run.
            1 if product.operand_rows == 1 => V::one_row::<DIGITS>(product, outputs, scratch),
            rows if rows <= few_rows::MOST => {
                few_rows::all_rows::<V, LANES, DIGITS>(product, outputs, scratch);
            }
            _ => chunk::all_rows::<V, LANES, DIGITS>(product, outputs, scratch),
        }
    }
}
