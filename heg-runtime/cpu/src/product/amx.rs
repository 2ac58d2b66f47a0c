//! Integer products with AMX, whose registers hold 16 rows of 64 bytes.
//!
//! A group is half of a register's depth. Its total leaves the registers as an exact integer, which vectors scale and add: the
//! order, and so the bits, of every other form.

mod few_rows;
mod many_rows;
mod registers;

use std::ops::Range;

use super::avx512::{Avx512, LANES};
use super::{FEW_ROWS, IntegerProduct, Panel, by};

/// Computes `outputs` of all rows.
///
/// # Safety
///
/// As [`integer_product`](super::integer_product), with AMX and AVX-512.
pub(super) unsafe fn product(product: &IntegerProduct, outputs: Range<usize>, panel: &mut Panel) {
    let scratch = panel.scratch();
    // SAFETY: the contract is the same.
    unsafe {
        let outputs = match few_rows::takes(product) {
            true => few_rows::product(product, outputs, scratch),
            false => outputs,
        };
        if outputs.is_empty() {
            return;
        }
        match product.rows {
            ..=FEW_ROWS => by::<Avx512, LANES>(product, outputs, panel),
            _ => many_rows::product(product, outputs, scratch),
        }
    }
}
