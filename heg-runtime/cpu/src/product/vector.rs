//! The vector operations of integer products, which each instruction set implements.

use super::chunk::Slice;
use super::operand::Rounded;
use super::{IntegerProduct, Scaling, Scratch};
use std::ops::Range;

/// A vector of bytes, or of `LANES` 32-bit integers, each the sum of four byte products.
///
/// # Safety
///
/// As with [`Lanes`](crate::lanes::Lanes), methods need the instructions of the implementation and are marked
/// `#[inline(always)]`. Pointers need no alignment; `count` is at most the number of elements in a vector.
pub(super) trait Vector<const LANES: usize>: Copy {
    /// `LANES` lanes of f32.
    type Sums: Copy;

    /// Zeros.
    unsafe fn zero() -> Self;
    /// Loads a whole vector of bytes.
    unsafe fn load(from: *const i8) -> Self;
    /// Loads `count` bytes; the others are zero.
    unsafe fn load_first(from: *const i8, count: usize) -> Self;
    /// Stores a whole vector.
    unsafe fn store(self, to: *mut i8);
    /// Loads four bytes into every lane.
    unsafe fn splat(from: *const i8) -> Self;
    /// Converts bytes of weights to the form of [`dot`](Self::dot).
    unsafe fn weights(self) -> Self;
    /// Adds four weights times four digits to each lane of `self`. A group's total is exact after
    /// [`offset`](Self::offset).
    unsafe fn dot(self, weights: Self, digits: Self) -> Self;
    /// Adds the offset of a group, if `dot` needs it.
    unsafe fn offset(self, offset: i32) -> Self;
    /// Adds a number to every lane.
    unsafe fn plus(self, number: i32) -> Self;
    /// Low and high halves of the bytes of `self ^ flipped`: integers from 0 to 15, which [`dot`](Self::dot) takes
    /// without [`weights`](Self::weights) and without an offset.
    unsafe fn nibbles(self, flipped: Self) -> [Self; 2];
    /// Splits two vectors into runs of 16 bytes: the first, third, … run of both, then the others.
    unsafe fn sixteens(a: Self, b: Self) -> [Self; 2];
    /// `self` times the base of digits.
    unsafe fn times_base(self) -> Self;
    /// Lane i of vector k is lane k of vector i.
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES];
    /// Lane g becomes the sum of the g-th eight lanes of all vectors in order; as many eights as a vector has lanes.
    unsafe fn totals(parts: [Self; 8]) -> Self;
    /// Lane g becomes the sum of the g-th four lanes, likewise.
    unsafe fn totals_of_fours(parts: [Self; 4]) -> Self;
    /// Loads `count` f16 as the bits of f32, one per lane; the others are zero.
    unsafe fn load_f16(from: *const u16, count: usize) -> Self;

    /// f32 zeros.
    unsafe fn no_sums() -> Self::Sums;
    /// `self · scale + sums`, rounded once.
    unsafe fn add_scaled(self, scale: f32, sums: Self::Sums) -> Self::Sums;
    /// `self · (factors · scale) + sums`, rounded twice.
    unsafe fn add_products(self, factors: Self::Sums, scale: f32, sums: Self::Sums) -> Self::Sums;
    /// Loads `count` f32; the others are zero.
    unsafe fn load_sums(from: *const f32, count: usize) -> Self::Sums;
    /// Stores the first `count` f32.
    unsafe fn store_sums(sums: Self::Sums, to: *mut f32, count: usize);
    /// `a + b`.
    unsafe fn add(a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// `a · b`.
    unsafe fn multiply(a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// `a · factor + term`, rounded once.
    unsafe fn multiply_add(a: Self::Sums, factor: f32, term: Self::Sums) -> Self::Sums;
}

/// The kernels, each compiled with the instructions of one set enabled. Each has the safety contract of the function
/// that its doc links.
pub(super) trait Kernels<const LANES: usize>: Vector<LANES> {
    /// [`round`](super::operand::round).
    unsafe fn round<const DIGITS: usize>(
        form: Rounded,
        rows: usize,
        row: usize,
        x: *const f32,
        operand: *mut u8,
    );
    /// [`any_weights`](super::one_row::any_weights) of one row.
    unsafe fn one_row<const DIGITS: usize>(
        product: &IntegerProduct,
        outputs: Range<usize>,
        scratch: Scratch,
    );
    /// [`any_weights`](super::few_rows::any_weights) of a few rows.
    unsafe fn few_rows<const DIGITS: usize, const ROWS: usize>(
        product: &IntegerProduct,
        outputs: Range<usize>,
        scratch: Scratch,
    );
    /// [`pack`](super::chunk::pack), for [`dot`](Vector::dot).
    unsafe fn pack(
        product: &IntegerProduct,
        outputs: Range<usize>,
        columns: Range<usize>,
        scratch: Scratch,
    );
    /// [`tile`](super::chunk::tile).
    unsafe fn tile<const DIGITS: usize, const ROWS: usize>(slice: &Slice<'_>, row: usize);
}

/// Stores `count` outputs of a row from `output` on: `sums` with scales, centres, bias and residual applied.
///
/// # Safety
///
/// As [`integer_product`](super::integer_product), within its row and outputs.
#[inline(always)]
pub(super) unsafe fn finish<V: Vector<LANES>, const LANES: usize>(
    product: &IntegerProduct,
    row: usize,
    output: usize,
    count: usize,
    sums: V::Sums,
) {
    // SAFETY: the product has `count` outputs from `output` on, in this row of its operands.
    unsafe {
        let mut y = sums;
        if let Scaling::Rows(affine) = product.scaling {
            y = V::multiply(y, V::load_sums(affine.scales.add(output), count));
            if let Some(centres) = affine.centres {
                let centres = V::load_sums(centres.add(output), count);
                y = V::multiply_add(centres, *product.operand().sum(row), y);
            }
        }
        if let Some(bias) = product.bias {
            y = V::add(y, V::load_sums(bias.add(output), count));
        }
        if let Some(residual) = product.residual {
            let from = residual.from.add(row * residual.stride + output);
            y = V::multiply_add(y, residual.factor, V::load_sums(from, count));
        }
        let to = product.out.add(row * product.out_stride + output);
        V::store_sums(y, to, count);
    }
}

/// Implements [`Kernels`] for a vector type, with the instructions of one set enabled.
#[cfg(target_arch = "x86_64")]
macro_rules! kernels {
    ($vector:ty, $lanes:ident, $instructions:tt) => {
        impl $crate::product::vector::Kernels<$lanes> for $vector {
            #[target_feature(enable = $instructions)]
            unsafe fn round<const DIGITS: usize>(
                form: $crate::product::Rounded,
                rows: usize,
                row: usize,
                x: *const f32,
                operand: *mut u8,
            ) {
                // SAFETY: the contract of this method is that of the function.
                unsafe { $crate::product::operand::round::<DIGITS>(form, rows, row, x, operand) }
            }

            #[target_feature(enable = $instructions)]
            unsafe fn one_row<const DIGITS: usize>(
                product: &$crate::product::IntegerProduct,
                outputs: std::ops::Range<usize>,
                scratch: $crate::product::Scratch,
            ) {
                use $crate::product::one_row::any_weights;
                // SAFETY: the contract of this method is that of the function.
                unsafe { any_weights::<Self, $lanes, DIGITS>(product, outputs, scratch) }
            }

            #[target_feature(enable = $instructions)]
            unsafe fn few_rows<const DIGITS: usize, const ROWS: usize>(
                product: &$crate::product::IntegerProduct,
                outputs: std::ops::Range<usize>,
                scratch: $crate::product::Scratch,
            ) {
                use $crate::product::few_rows::any_weights;
                // SAFETY: the contract of this method is that of the function.
                unsafe { any_weights::<Self, $lanes, DIGITS, ROWS>(product, outputs, scratch) }
            }

            #[target_feature(enable = $instructions)]
            unsafe fn pack(
                product: &$crate::product::IntegerProduct,
                outputs: std::ops::Range<usize>,
                columns: std::ops::Range<usize>,
                scratch: $crate::product::Scratch,
            ) {
                use $crate::product::chunk::pack;
                // SAFETY: the contract of this method is that of the function.
                unsafe { pack::<Self, $lanes, false>(product, outputs, columns, scratch) }
            }

            #[target_feature(enable = $instructions)]
            unsafe fn tile<const DIGITS: usize, const ROWS: usize>(
                slice: &$crate::product::chunk::Slice<'_>,
                row: usize,
            ) {
                // SAFETY: the contract of this method is that of the function.
                unsafe { $crate::product::chunk::tile::<Self, $lanes, DIGITS, ROWS>(slice, row) }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use kernels;
