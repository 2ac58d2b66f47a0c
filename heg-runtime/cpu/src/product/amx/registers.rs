//! Tile registers: 0 to 3 hold totals, 4 and 5 rows of bytes, and 6 and 7 the columns that these are multiplied with, in quads
//! of their depth.
//!
//! Instructions are written out, since their intrinsics are not stable. Registers keep what they have from one function to the
//! next: the compiler itself uses none of them.

use std::arch::asm;

/// Most rows of a register.
pub(super) const ROWS: usize = 16;

/// Bytes of a row of totals or quads.
pub(super) const LINE: usize = 64;

/// Bytes of a register.
pub(super) const REGISTER_BYTES: usize = ROWS * LINE;

/// Registers of totals.
pub(super) const TOTALS: usize = 4;

/// Operand of `ldtilecfg` (Intel SDM, "AMX state"), with a shape for each register.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Gives all registers their shapes, for `rows` of `depth` bytes by 16 columns, and zeros.
///
/// # Safety
///
/// The machine has AMX, `rows` are from 1 to [`ROWS`], and `depth` is a multiple of 4 up to [`LINE`].
pub(super) unsafe fn configure(rows: usize, depth: usize) {
    let mut shapes = Shapes {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    for register in 0..8 {
        let (rows, row_bytes) = match register {
            0..4 => (rows, LINE),
            4..6 => (rows, depth),
            _ => (depth / 4, LINE),
        };
        shapes.rows[register] = rows as u8;
        shapes.row_bytes[register] = row_bytes as u16;
    }
    // SAFETY: the caller has the instruction, and its operand 64 bytes, with shapes that palette 1 allows.
    unsafe {
        asm!(
            "ldtilecfg [{}]",
            in(reg) &raw const shapes,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// Gives the registers back, so that they are not saved when the thread is interrupted.
///
/// # Safety
///
/// The machine has AMX.
pub(super) unsafe fn release() {
    // SAFETY: the caller has the instruction.
    unsafe {
        asm!(
            "tilerelease",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, nomem, preserves_flags),
        );
    }
}

/// Sets a register of totals to the product of rows, `row_stride` bytes apart, and columns, whose quads are `quad_stride` bytes
/// apart. Registers 1 and 3 have the rows of the one before them.
///
/// # Safety
///
/// The registers have their shapes, and memory the rows and quads.
#[inline(always)]
pub(super) unsafe fn multiply<const REGISTER: usize>(
    rows: *const i8,
    row_stride: usize,
    quads: *const i8,
    quad_stride: usize,
) {
    macro_rules! load {
        ($from:ident, $stride:ident, $to:tt) => {
            asm!(
                concat!("tileloadd ", $to, ", [{from} + {stride}]"),
                from = in(reg) $from,
                stride = in(reg) $stride,
                out($to) _,
                options(nostack, readonly, preserves_flags),
            )
        };
    }
    macro_rules! multiply {
        ($rows:tt, $quads:tt, $totals:tt) => {{
            load!(quads, quad_stride, $quads);
            asm!(
                concat!("tilezero ", $totals),
                concat!("tdpbssd ", $totals, ", ", $rows, ", ", $quads),
                out($totals) _,
                options(nostack, nomem, preserves_flags),
            )
        }};
    }
    // SAFETY: the caller has the instructions, the shapes and what is read.
    unsafe {
        match REGISTER {
            0 => {
                load!(rows, row_stride, "tmm4");
                multiply!("tmm4", "tmm6", "tmm0");
            }
            1 => multiply!("tmm4", "tmm7", "tmm1"),
            2 => {
                load!(rows, row_stride, "tmm5");
                multiply!("tmm5", "tmm6", "tmm2");
            }
            _ => multiply!("tmm5", "tmm7", "tmm3"),
        }
    }
}

/// Stores a register of totals, row after row.
///
/// # Safety
///
/// The register has its shape, and `totals` room for it.
#[inline(always)]
pub(super) unsafe fn store<const REGISTER: usize>(totals: *mut i8) {
    macro_rules! store {
        ($totals:tt) => {
            asm!(
                concat!("tilestored [{to} + {line}], ", $totals),
                to = in(reg) totals,
                line = in(reg) LINE,
                options(nostack, preserves_flags),
            )
        };
    }
    // SAFETY: the caller has the instruction, the shape and the room.
    unsafe {
        match REGISTER {
            0 => store!("tmm0"),
            1 => store!("tmm1"),
            2 => store!("tmm2"),
            _ => store!("tmm3"),
        }
    }
}
