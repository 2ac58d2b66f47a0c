//! What the kernels of integer products ask of an instruction set.

use super::chunk::Tile;
use super::operand::Rounded;
use super::{IntegerProduct, Scaling, Scratch};
use std::ops::Range;

/// A vector of 8-bit integers or of the `LANES` 32-bit integers that four each are summed to.
///
/// # Safety
///
/// As with [`Lanes`](crate::lanes::Lanes), methods need the instructions of the implementation and are marked
/// `#[inline(always)]`. Pointers need no alignment; `count` is at most the elements of a vector.
pub(super) trait Vector<const LANES: usize>: Copy {
    /// As many f32 lanes.
    type Sums: Copy;

    /// Zeros.
    unsafe fn zero() -> Self;
    /// A whole vector of bytes.
    unsafe fn load(from: *const i8) -> Self;
    /// The first `count` bytes; zeros behind them.
    unsafe fn load_first(from: *const i8, count: usize) -> Self;
    /// Writes a whole vector.
    unsafe fn store(self, to: *mut i8);
    /// Four bytes in every lane.
    unsafe fn splat(from: *const i8) -> Self;
    /// Bytes of weights in the form that [`dot`](Self::dot) wants them in.
    unsafe fn weights(self) -> Self;
    /// `self` and in each lane four weights times four digits. A group's total is exact once it has its
    /// [`offset`](Self::offset).
    unsafe fn dot(self, weights: Self, digits: Self) -> Self;
    /// `self` and the offset of a group, if `dot` asks for it.
    unsafe fn offset(self, offset: i32) -> Self;
    /// `self` and a number in every lane.
    unsafe fn plus(self, number: i32) -> Self;
    /// Low and high halves of bytes, once `flipped` was taken as their exclusive or: integers from 0 to 15, which
    /// [`dot`](Self::dot) takes as they are, without an offset.
    unsafe fn nibbles(self, flipped: Self) -> [Self; 2];
    /// Of 16 bytes each, the first, third, … of two vectors one after another, then the others.
    unsafe fn sixteens(a: Self, b: Self) -> [Self; 2];
    /// `self` times the base of digits.
    unsafe fn times_base(self) -> Self;
    /// Lane i of vector k is lane k of vector i.
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES];
    /// In lane g the sum of the g-th eight lanes: of the vectors one after another, as many eights as a vector has lanes.
    unsafe fn totals(parts: [Self; 8]) -> Self;
    /// In lane g the sum of the g-th four lanes, likewise.
    unsafe fn totals_of_fours(parts: [Self; 4]) -> Self;
    /// The first `count` f16 as the bits of f32, one in each lane; zeros behind them.
    unsafe fn load_f16(from: *const u16, count: usize) -> Self;

    /// f32 zeros.
    unsafe fn no_sums() -> Self::Sums;
    /// `self · scale + sums`, rounded once.
    unsafe fn add_scaled(self, scale: f32, sums: Self::Sums) -> Self::Sums;
    /// `self · (factors · scale) + sums`: rounded twice.
    unsafe fn add_products(self, factors: Self::Sums, scale: f32, sums: Self::Sums) -> Self::Sums;
    /// The first `count` f32; zeros behind them.
    unsafe fn load_sums(from: *const f32, count: usize) -> Self::Sums;
    /// Writes the first `count` f32.
    unsafe fn store_sums(sums: Self::Sums, to: *mut f32, count: usize);
    /// `a + b`.
    unsafe fn add(a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// `a · b`.
    unsafe fn multiply(a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// `a · factor + term`, rounded once.
    unsafe fn multiply_add(a: Self::Sums, factor: f32, term: Self::Sums) -> Self::Sums;
}

/// The kernels, each compiled with the instructions of one set enabled. Their safety is that of the functions that they
/// are named after.
pub(super) trait Kernels<const LANES: usize>: Vector<LANES> {
    /// [`round`](super::operand::round).
    unsafe fn round<const DIGITS: usize>(
        form: Rounded,
        rows: usize,
        row: usize,
        x: *const f32,
        operand: *mut u8,
    );
    /// [`one_row`](super::one_row::one_row), or [that of nibbles](super::nibbles::one_row).
    unsafe fn one_row<const DIGITS: usize>(
        product: &IntegerProduct,
        outputs: Range<usize>,
        scratch: Scratch,
    );
    /// [`few_rows`](super::few_rows::few_rows), or [those of nibbles](super::nibbles::few_rows).
    unsafe fn few_rows<const DIGITS: usize, const ROWS: usize>(
        product: &IntegerProduct,
        outputs: Range<usize>,
        scratch: Scratch,
    );
    /// [`pack`](super::chunk::pack).
    unsafe fn pack(
        product: &IntegerProduct,
        outputs: Range<usize>,
        columns: Range<usize>,
        scratch: Scratch,
    );
    /// [`tile`](super::chunk::tile).
    unsafe fn tile<const DIGITS: usize, const ROWS: usize>(tile: &Tile<'_>, row: usize);
}

/// Writes `sums` of a row's `count` outputs from `output` on, scaled, with centres, bias and residual.
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
    // SAFETY: the product has `count` outputs from `output` on, in every row of its operands.
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
