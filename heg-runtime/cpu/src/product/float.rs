//! Products with f32 activations.
//!
//! A result is a sum over sixteen lanes: lane i adds the products of columns i, i + 16, … in that order by fused
//! multiply-adds, and [`Lanes::sum`] adds the lanes. No tile, split or number of rows changes that. Sums of
//! activations, which centres are multiplied by, have the same order.

#![allow(unsafe_code, reason = "intrinsics, and weights where they lie")]

use super::{Affine, Residual};
use crate::Isa;
use crate::lanes::elements::Element;
use crate::lanes::{self, Kernel, LANES, Lanes};
use crate::prefetch::prefetch;
use std::ops::Range;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Bytes of activations per pass over the weights. Chosen: half of the smallest second-level cache.
const BLOCK_BYTES: usize = 1 << 17;

/// Most rows of activations per pass: their sums are kept on the stack.
const BLOCK_ROWS: usize = 256;

/// `y = x · (W · scale + centre)ᵀ + bias`, or `residual + factor · y`.
#[derive(Clone, Copy)]
pub(crate) struct FloatProduct {
    /// Weights `[outputs, width]`, row-major; may be unaligned.
    pub(crate) weights: *const u8,
    /// Element type of the weights.
    pub(crate) element: Element,
    /// Dequantisation of int8 weights.
    pub(crate) affine: Option<Affine>,
    /// Number of columns, the width of activations.
    pub(crate) width: usize,
    /// Activations `[rows, width]`.
    pub(crate) x: *const f32,
    /// Elements from one row of activations to the next.
    pub(crate) x_stride: usize,
    /// Number of rows of activations.
    pub(crate) rows: usize,
    /// Bias per output; may be unaligned.
    pub(crate) bias: Option<*const f32>,
    /// Residual per row and output.
    pub(crate) residual: Option<Residual>,
    /// Results `[rows, outputs]`; may be the same memory as the residual.
    pub(crate) out: *mut f32,
    /// Elements from one row of results to the next.
    pub(crate) out_stride: usize,
}

/// Computes `outputs` of all rows.
///
/// # Safety
///
/// The machine has `isa`. All pointers have the elements that their docs give. No other thread accesses these outputs.
pub(crate) unsafe fn float_product(isa: Isa, product: &FloatProduct, outputs: Range<usize>) {
    // SAFETY: the caller has `isa`, and the product's pointers have these outputs and rows.
    unsafe { lanes::run(isa, Outputs { product, outputs }) }
}

/// A range of outputs of a product.
struct Outputs<'a> {
    product: &'a FloatProduct,
    outputs: Range<usize>,
}

impl Kernel for Outputs<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller has the product's rows and outputs; each element type gets loops of its own.
        unsafe {
            match self.product.element {
                Element::I8 => self.tiles::<L>(Element::I8),
                Element::F16 => self.tiles::<L>(Element::F16),
                Element::Bf16 => self.tiles::<L>(Element::Bf16),
                Element::F32 => self.tiles::<L>(Element::F32),
            }
        }
    }
}

impl Outputs<'_> {
    /// Chooses the tile with the fewest loads per multiply-add that fits in the registers. For one row of activations,
    /// four sums hide the latency of an addition; measured against one, two and eight.
    ///
    /// # Safety
    ///
    /// See [`float_product`].
    #[inline(always)]
    unsafe fn tiles<L: Lanes>(&self, element: Element) {
        // SAFETY: the caller has the product's rows and outputs.
        unsafe {
            match (self.product.rows, L::REGISTERS) {
                (0, _) => {}
                (1, _) => self.all_tiles::<L, 4, 1>(element),
                (_, 32..) => self.all_tiles::<L, 4, 6>(element),
                (_, _) => self.all_tiles::<L, 2, 2>(element),
            }
        }
    }

    /// # Safety
    ///
    /// See [`float_product`].
    #[inline(always)]
    unsafe fn all_tiles<L: Lanes, const W: usize, const X: usize>(&self, element: Element) {
        let rows = self.product.rows;
        let most = (BLOCK_BYTES / (4 * self.product.width.max(1))).min(BLOCK_ROWS);
        let block = (most / X).max(1) * X;
        let mut totals = [0.0; BLOCK_ROWS];
        for first_row in (0..rows).step_by(block) {
            let block = first_row..rows.min(first_row + block);
            if self
                .product
                .affine
                .is_some_and(|affine| affine.centres.is_some())
            {
                for (row, total) in block.clone().zip(&mut totals) {
                    // SAFETY: the row is in the range.
                    *total = unsafe { self.total::<L>(row) };
                }
            }
            for first in self.outputs.clone().step_by(W) {
                let outputs = first..self.outputs.end.min(first + W);
                for first in block.clone().step_by(X) {
                    let (product, outputs) = (self.product, outputs.clone());
                    let rows = first..block.end.min(first + X);
                    let totals = &totals[first - block.start..];
                    // SAFETY: these outputs and rows are in the ranges.
                    unsafe {
                        match rows.len() {
                            1..=2 if X > 2 => {
                                tile::<L, W, 2>(product, element, outputs, rows, totals)
                            }
                            3..=4 if X > 4 => {
                                tile::<L, W, 4>(product, element, outputs, rows, totals)
                            }
                            _ => tile::<L, W, X>(product, element, outputs, rows, totals),
                        }
                    }
                }
            }
        }
    }

    /// The sum of a row of activations.
    ///
    /// # Safety
    ///
    /// See [`float_product`].
    #[inline(always)]
    unsafe fn total<L: Lanes>(&self, row: usize) -> f32 {
        // SAFETY: the caller has the row, and `at + count` stays within the width.
        unsafe {
            let x = self.product.x.add(row * self.product.x_stride);
            let mut sums = L::splat(0.0);
            for at in (0..self.product.width).step_by(LANES) {
                let count = LANES.min(self.product.width - at);
                sums = sums.add(L::load_first(x.add(at), count));
            }
            sums.sum()
        }
    }
}

/// Computes up to W outputs of up to X rows, at least one of each. A smaller tile repeats its last output or row, which
/// is stored once. `totals` are the sums of the rows, for matrices with centres.
///
/// # Safety
///
/// See [`float_product`].
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "what iterators call is not always inlined"
)]
unsafe fn tile<L: Lanes, const W: usize, const X: usize>(
    product: &FloatProduct,
    element: Element,
    outputs: Range<usize>,
    rows: Range<usize>,
    totals: &[f32],
) {
    let bytes = element.bytes();
    let row_bytes = product.width * bytes;
    let (mut weights, mut x) = ([product.weights; W], [product.x; X]);
    // SAFETY: the caller has these rows, and `at + count` stays within the width.
    unsafe {
        for index in 0..W {
            let output = (outputs.start + index).min(outputs.end - 1);
            weights[index] = product.weights.add(output * row_bytes);
        }
        for index in 0..X {
            let row = (rows.start + index).min(rows.end - 1);
            x[index] = product.x.add(row * product.x_stride);
        }
        let mut sums = [[L::splat(0.0); X]; W];
        let (mut at, line) = (0, LINE / bytes);
        while at + line <= product.width {
            for index in 0..W {
                prefetch(weights[index].wrapping_add(W * row_bytes + at * bytes));
            }
            for step in 0..line / LANES {
                let at = at + step * LANES;
                multiply_add(&mut sums, element, &weights, &x, at, LANES);
            }
            at += line;
        }
        while at < product.width {
            let count = LANES.min(product.width - at);
            multiply_add(&mut sums, element, &weights, &x, at, count);
            at += count;
        }
        // Constant bounds keep the lanes in registers.
        let mut products = [[0.0; X]; W];
        for output in 0..W {
            for row in 0..X {
                products[output][row] = sums[output][row].sum();
            }
        }
        for (output, products) in outputs.zip(&products) {
            for ((row, sum), total) in rows.clone().zip(products).zip(totals) {
                product.finish::<L>(*sum, *total, row, output);
            }
        }
    }
}

/// Adds the products of `count` columns from `at` on, at most 16.
///
/// # Safety
///
/// See [`Lanes`]: all rows have these columns.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "what iterators call is not always inlined"
)]
unsafe fn multiply_add<L: Lanes, const W: usize, const X: usize>(
    sums: &mut [[L; X]; W],
    element: Element,
    weights: &[*const u8; W],
    x: &[*const f32; X],
    at: usize,
    count: usize,
) {
    // SAFETY: the caller has the instructions of `L` and the columns.
    unsafe {
        let mut columns = [L::splat(0.0); W];
        for output in 0..W {
            let from = weights[output].add(at * element.bytes());
            columns[output] = element.load_first(from, count);
        }
        for row in 0..X {
            let x = L::load_first(x[row].add(at), count);
            for output in 0..W {
                sums[output][row] = columns[output].mul_add(x, sums[output][row]);
            }
        }
    }
}

impl FloatProduct {
    /// Stores a result: `sum` is its sum of products, and `total` the sum of its row of activations.
    ///
    /// # Safety
    ///
    /// See [`Lanes`] and [`float_product`]: `row` and `output` are in their ranges.
    #[inline(always)]
    unsafe fn finish<L: Lanes>(&self, sum: f32, total: f32, row: usize, output: usize) {
        let mut y = sum;
        // SAFETY: the caller has these elements.
        unsafe {
            if let Some(affine) = self.affine {
                y *= affine.scales.add(output).read_unaligned();
                if let Some(centres) = affine.centres {
                    y = L::fused(centres.add(output).read_unaligned(), total, y);
                }
            }
            if let Some(bias) = self.bias {
                y += bias.add(output).read_unaligned();
            }
            if let Some(residual) = self.residual {
                let to = residual.from.add(row * residual.stride + output);
                y = L::fused(residual.factor, y, to.read_unaligned());
            }
            self.out
                .add(row * self.out_stride + output)
                .write_unaligned(y);
        }
    }
}

#[cfg(test)]
mod tests;
