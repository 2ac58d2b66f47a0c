//! Rows of the runtime's memory in the form that CPU programs take.

use std::ptr::NonNull;

use heg_openvino::Memory;

use heg_cpu::PartnerMemory;
pub use heg_cpu::ProgramRows;
use heg_gpu::SharedMemory;

/// Returns rows `first..first + count`, each `row_bytes` long, from `offset` on; `None` if some are outside the
/// memory.
pub(super) fn program_rows(
    memory: &dyn Memory,
    offset: usize,
    (first, count): (usize, usize),
    row_bytes: usize,
) -> Option<ProgramRows<'_>> {
    let start = first.checked_mul(row_bytes)?.checked_add(offset)?;
    let end = count.checked_mul(row_bytes)?.checked_add(start)?;
    if end > memory.len() {
        return None;
    }
    let address = NonNull::new(memory.as_ptr().cast_mut())?;
    // SAFETY: the rows lie within the memory, which the caller borrows. It may be written: activations and caches
    // are `Access::ReadWrite`, and a program writes no input. An order has its rows to itself: the scheduler gives
    // a request's cache and a batch's activations to one lane at a time, a lane runs one order at a time, and the
    // programs of an order run one after the other.
    let rows = unsafe { ProgramRows::new(address.add(start), count, row_bytes, row_bytes) };
    Some(rows)
}

/// Returns memory of a GPU as scratch memory of a pair whose other half is the CPU.
pub(crate) fn partner_memory(shared: SharedMemory) -> Option<PartnerMemory> {
    let (first, bytes) = (NonNull::new(shared.as_ptr())?, shared.len());
    // SAFETY: the memory is readable and writable for as long as `shared` lives, which the result owns. The GPU works on it
    // only while the pair has it compute a part of a product.
    Some(unsafe { PartnerMemory::new(first, bytes, Box::new(shared)) })
}
