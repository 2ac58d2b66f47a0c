//! Products of rows with matrices.
//!
//! Integer products multiply int8 weights, which have a scale and perhaps a centre per matrix row, with activations
//! rounded to integers in groups of 32: the exact total of a group is converted to f32, scaled, and added to the sum
//! over the earlier groups. All forms keep this order, so the bits of a result depend neither on the number of rows nor
//! on how threads divide the outputs. A centre is a term of every weight of its row, so it is multiplied once, by the
//! sum of the activations.
//!
//! Weights of 4 bits (`nibbles`) have a scale, and perhaps a centre, per group of columns. The factor of a total is the
//! product of both scales, and a centre is multiplied by the sum of its group and added behind the total.
//!
//! Weights are matrix rows as in the file. One row of activations is multiplied at the rate of reading memory
//! (`one_row`); for a few rows, weights are transposed in registers (`few_rows`), for many, into a buffer (`chunk`). By AMX
//! (`amx`) they are transposed for many rows alone.

#![allow(unsafe_code, reason = "intrinsics and rows of mapped files")]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod chunk;
mod few_rows;
mod float;
mod nibbles;
mod one_row;
mod operand;
mod portable;
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
pub(crate) use operand::{Bits, Rounded, WeightKind, read_operand};
use std::ops::Range;
use vector::Kernels;

/// Most rows of a call whose weights are read once for all of them, as in a decode step.
pub(crate) const FEW_ROWS: usize = few_rows::MOST;

/// Outputs of the widest tile of a kernel: its vectors side by side, of 16 numbers each.
pub const TILE_OUTPUTS: usize = chunk::VECTORS * 16;

/// A residual term: the result becomes `residual + factor · y`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Residual {
    /// Row of the first result.
    pub(crate) from: *const f32,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    /// Factor of the product.
    pub(crate) factor: f32,
}

/// Dequantisation of an int8 matrix, per output: `scale · w + centre`. Both may be unaligned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Affine {
    /// Scale per output.
    pub(crate) scales: *const f32,
    /// Centre per output, if rows are centred.
    pub(crate) centres: Option<*const f32>,
}

/// Dequantisation of an integer matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scaling {
    /// 8-bit weights, per row.
    Rows(Affine),
    /// 4-bit weights, per group of columns.
    Groups(Grouped),
}

impl Scaling {
    /// The dequantisation of a weight; `None` if it is no integer matrix.
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

    /// The dequantisation of rows; `None` if it is one of groups.
    pub(crate) fn of_rows(self) -> Option<Affine> {
        match self {
            Self::Rows(affine) => Some(affine),
            Self::Groups(_) => None,
        }
    }
}

/// A product of rounded rows with a matrix of integers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IntegerProduct {
    /// Matrix rows of `form.width` weights, one per output, contiguous.
    pub(crate) weights: *const i8,
    /// Dequantisation of the weights.
    pub(crate) scaling: Scaling,
    /// Form of the operand, made for such weights.
    pub(crate) form: Rounded,
    /// The operand, aligned to 64 bytes.
    pub(crate) operand: *const u8,
    /// Number of rows of the operand.
    pub(crate) operand_rows: usize,
    /// First row to multiply.
    pub(crate) first_row: usize,
    /// Number of rows to multiply, and of results and residual.
    pub(crate) rows: usize,
    /// Bias per output.
    pub(crate) bias: Option<*const f32>,
    /// Residual per row and output; may be the same memory as the results.
    pub(crate) residual: Option<Residual>,
    /// First row of the results.
    pub(crate) out: *mut f32,
    /// Elements from one row of results to the next.
    pub(crate) out_stride: usize,
}

// SAFETY: only `integer_product` follows the pointers, whose callers let no two threads write the same outputs.
unsafe impl Sync for IntegerProduct {}
// SAFETY: only `integer_product` follows the pointers, whose callers let no two threads write the same outputs.
unsafe impl Send for IntegerProduct {}

impl IntegerProduct {
    #[inline(always)]
    fn operand(&self) -> Operand {
        Operand::new(self.form, self.operand_rows, self.operand).starting_at(self.first_row)
    }

    /// The product of some of the rows.
    fn part(&self, rows: Range<usize>) -> Self {
        let residual = self.residual.map(|residual| Residual {
            from: residual.from.wrapping_add(rows.start * residual.stride),
            ..residual
        });
        Self {
            first_row: self.first_row + rows.start,
            rows: rows.len(),
            residual,
            out: self.out.wrapping_add(rows.start * self.out_stride),
            ..*self
        }
    }

    /// Bytes per matrix row.
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
    /// Transposed weights, or buffered totals.
    weights: Vec<Line>,
    sums: Vec<Line>,
    /// Scales and centres of groups, as vectors over outputs.
    spread: Vec<Line>,
    /// Totals that tile registers are stored to.
    totals: Vec<Line>,
}

/// Pointers into a [`Panel`].
#[derive(Clone, Copy)]
struct Scratch {
    weights: *mut i8,
    sums: *mut f32,
    spread: *mut f32,
    totals: *mut i8,
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([i8; 64]);

impl Panel {
    /// Allocates scratch memory for any product.
    pub(crate) fn new() -> Self {
        let lines = |bytes: usize| vec![Line([0; 64]); bytes.div_ceil(64)];
        Self {
            weights: lines(chunk::WEIGHTS_BYTES.max(one_row::BUFFERED_BYTES)),
            sums: lines(size_of::<f32>() * chunk::SUMS),
            spread: lines(size_of::<f32>() * nibbles::SPREAD),
            totals: lines(chunk::TOTALS_BYTES),
        }
    }

    fn scratch(&mut self) -> Scratch {
        Scratch {
            weights: self.weights.as_mut_ptr().cast(),
            sums: self.sums.as_mut_ptr().cast(),
            spread: self.spread.as_mut_ptr().cast(),
            totals: self.totals.as_mut_ptr().cast(),
        }
    }
}

/// Rounds row `row` of an operand of `rows` rows.
///
/// # Safety
///
/// The machine has `isa`. `x` has `form.width` elements, and `operand`, aligned to 64 bytes, has `form.bytes(rows)`
/// bytes. No other thread accesses this row. `row` is less than `rows`.
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
        (Isa::Avx512Amx | Isa::Avx512Vnni, Bits::Eight) => avx512::Avx512::round::<1>,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512Amx | Isa::Avx512Vnni, Bits::Sixteen) => avx512::Avx512::round::<2>,
        #[cfg(target_arch = "x86_64")]
        (Isa::AvxVnni | Isa::Avx2, Bits::Eight) => ymm::Ymm::<ymm::Magnitudes>::round::<1>,
        #[cfg(target_arch = "x86_64")]
        (Isa::AvxVnni | Isa::Avx2, Bits::Sixteen) => ymm::Ymm::<ymm::Magnitudes>::round::<2>,
        (_, Bits::Eight) => operand::round::<1>,
        (_, Bits::Sixteen) => operand::round::<2>,
    };
    // SAFETY: the caller has `isa`, `x` has the width, and the operand is aligned and has this row.
    unsafe { round(form, rows, row, x, operand) }
}

/// Computes `outputs` of all rows.
///
/// # Safety
///
/// The machine has `isa`. Matrix, scales, centres, bias, residual and results have all of `outputs`; the operand has
/// the form of the product, made for such weights, with all its rows rounded; groups divide its width. No other thread
/// writes what is read, or accesses what is written.
pub(crate) unsafe fn integer_product(
    isa: Isa,
    product: &IntegerProduct,
    outputs: Range<usize>,
    panel: &mut Panel,
) {
    // SAFETY: the caller has `isa`, whose instructions each branch uses, and the product's rows and outputs.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Amx => amx::product(product, outputs, panel),
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
    // SAFETY: the form has this number of digits, and the caller has the rest.
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
    let scratch = panel.scratch();
    // SAFETY: a panel has room for what each kernel keeps in scratch memory, and the caller has the rest.
    unsafe {
        match product.rows {
            0 => {}
            // This kernel reads the blocks of a single row as one run.
            1 if product.operand_rows == 1 => V::one_row::<DIGITS>(product, outputs, scratch),
            rows if rows <= few_rows::MOST => {
                few_rows::all_rows::<V, LANES, DIGITS>(product, outputs, scratch);
            }
            _ => chunk::all_rows::<chunk::Vectors<V, LANES, DIGITS>>(product, outputs, scratch),
        }
    }
}
