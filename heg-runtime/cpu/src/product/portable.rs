//! Integer products in Rust alone: the order of operations that every form keeps.

use super::IntegerProduct;
use super::operand::{BASE, BLOCK, GROUP};
use crate::lanes::portable::fused;
use std::ops::Range;

/// Computes `outputs` of all rows.
///
/// # Safety
///
/// As [`integer_product`](super::integer_product).
pub(super) unsafe fn product(product: &IntegerProduct, outputs: Range<usize>) {
    for output in outputs {
        for row in 0..product.rows {
            // SAFETY: the matrix and the operands have this output, and every row of them this output or row.
            unsafe {
                let scale = product.affine.scales.add(output).read_unaligned();
                let mut y = sum(product, output, row) * scale;
                if let Some(centres) = product.affine.centres {
                    let centre = centres.add(output).read_unaligned();
                    y = fused(centre, *product.operand().sum(row), y);
                }
                if let Some(bias) = product.bias {
                    y += bias.add(output).read_unaligned();
                }
                if let Some(residual) = product.residual {
                    let from = residual.from.add(row * residual.stride + output);
                    y = fused(y, residual.factor, from.read_unaligned());
                }
                let to = product.out.add(row * product.out_stride + output);
                to.write_unaligned(y);
            }
        }
    }
}

/// Totals of groups, each exact, scaled and summed in ascending order.
///
/// # Safety
///
/// As [`product`], which has this output and row.
unsafe fn sum(product: &IntegerProduct, output: usize, row: usize) -> f32 {
    let (width, operand) = (product.form.width, product.operand());
    let weights = product.weights.wrapping_add(output * width);
    let mut sum = 0.0_f32;
    for start in (0..width).step_by(GROUP) {
        let (block, group) = (start / BLOCK, start % BLOCK / GROUP);
        // SAFETY: columns below the width are read, and the block that they are in.
        unsafe {
            let weights = weights.add(start);
            let mut total = 0;
            for digit in 0..product.form.digits() {
                let digits = operand.digits(block, row);
                let digits = digits.add(digit * BLOCK + group * GROUP);
                total *= BASE;
                for column in 0..GROUP.min(width - start) {
                    total += i32::from(*weights.add(column)) * i32::from(*digits.add(column));
                }
            }
            let scale = *operand.scales(block, row).add(group);
            sum = fused(total as f32, scale, sum);
        }
    }
    sum
}
