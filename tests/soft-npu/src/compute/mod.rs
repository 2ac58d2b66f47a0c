//! Computes a blob by the CPU program of its kernel, or of its piece of a product, on the memory that the run is given.
//!
//! A blob is found in the bundles of `SOFT_NPU_BUNDLES` by its bytes, which say only which kernel it is. Activations
//! and weights come from the arguments alone, by the order of the blob's ports: a wrong port, address or weight gives a
//! wrong answer here as it does on a device. Programs compute in f32; ports are f16, as the blob's are.

mod catalog;
mod convert;
mod piece;
mod processor;
mod recipe;

pub(crate) use processor::run;
pub(crate) use recipe::Recipe;

use crate::memory::Located;

/// Copies memory of a job.
pub(crate) fn copy(to: &Located, from: &Located) {
    // SAFETY: whoever submitted the job leaves both alone until it has ended, as Level Zero asks; they may overlap.
    unsafe { to.write(from.as_bytes()) };
}

/// Fills memory of a job with a byte.
pub(crate) fn fill(memory: &Located, byte: u8) {
    // SAFETY: whoever submitted the job leaves it alone until it has ended, as Level Zero asks.
    unsafe { memory.write(&vec![byte; memory.bytes]) };
}

/// Changes the sign of the f16 numbers in memory of a job.
pub(crate) fn negate(memory: &Located) {
    // SAFETY: as above.
    let mut bytes = unsafe { memory.as_bytes() }.to_vec();
    bytes
        .iter_mut()
        .skip(1)
        .step_by(2)
        .for_each(|byte| *byte ^= 0x80);
    // SAFETY: as above; what was read is not used any more.
    unsafe { memory.write(&bytes) };
}
