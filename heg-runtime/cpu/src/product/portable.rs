//! Integer products in portable Rust: the order of operations that every form keeps.

use super::operand::{BASE, BLOCK, GROUP};
use super::{IntegerProduct, Scaling};
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
            // SAFETY: the matrix has this output, and bias, residual, results and operand have this output or row.
            unsafe {
                let mut y = sum(product, output, row);
                if let Scaling::Rows(affine) = product.scaling {
                    y *= affine.scales.add(output).read_unaligned();
                    if let Some(centres) = affine.centres {
                        let centre = centres.add(output).read_unaligned();
                        y = fused(centre, *product.operand().sum(row), y);
                    }
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

/// Sum over groups in ascending order: the exact total of each group, scaled.
///
/// # Safety
///
/// As [`product`], which has this output and row.
unsafe fn sum(product: &IntegerProduct, output: usize, row: usize) -> f32 {
    let (width, operand) = (product.form.width, product.operand());
    let weights = product.weights.wrapping_add(output * product.row_bytes());
    let mut sum = 0.0_f32;
    for start in (0..width).step_by(GROUP) {
        let (block, group) = (start / BLOCK, start % BLOCK / GROUP);
        // SAFETY: only columns below the width are read, and the block that has them.
        unsafe {
            let mut total = 0;
            for digit in 0..product.form.digits() {
                let of_block = operand.digits(block, row);
                let digits = of_block.add(digit * BLOCK + group * GROUP);
                total *= BASE;
                for column in 0..GROUP.min(width - start) {
                    let (weight, place) = match &product.scaling {
                        Scaling::Rows(_) => (i32::from(*weights.add(start + column)), column),
                        Scaling::Groups(groups) => {
                            let weight = groups.integer(weights.cast(), start + column);
                            (weight, column % 2 * (GROUP / 2) + column / 2)
                        }
                    };
                    total += weight * i32::from(*digits.add(place));
                }
            }
            let scale = *operand.scales(block, row).add(group);
            sum = match &product.scaling {
                Scaling::Rows(_) => fused(total as f32, scale, sum),
                Scaling::Groups(groups) => {
                    let (of_weights, centre) =
                        groups.affine((output * width + start) / groups.columns);
                    let sum = fused(total as f32, of_weights * scale, sum);
                    match groups.centres {
                        None => sum,
                        Some(_) => fused(centre, *operand.group_sums(block, row).add(group), sum),
                    }
                }
            };
        }
    }
    sum
}
