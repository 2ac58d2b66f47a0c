//! Whether a device reads pages of the host: tried once on pages of ours, before anything depends on it.

#![allow(unsafe_code, reason = "the device reads pages of the host")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use heg_spirv::{Module, constant};

use crate::Sharing;
use crate::arithmetic::Arithmetic;
use crate::error::GpuError;
use crate::pipelines::Pipelines;
use crate::vulkan::{Args, Dispatch, Kind, Memory, Recording};

/// Alignment of pages that no driver is asked to exceed.
const ALIGNMENT_MAX: usize = 1 << 16;

/// Words of a page that are read back.
const WORDS: u32 = 1024;

/// The longest time for a driver's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pages of our own.
struct Pages(NonNull<u8>);

// SAFETY: the pages belong to this struct, and nothing writes them once they are shared.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    const LAYOUT: Layout = match Layout::from_size_align(ALIGNMENT_MAX, ALIGNMENT_MAX) {
        Ok(layout) => layout,
        Err(_) => Layout::new::<u64>(),
    };

    fn new() -> Option<Self> {
        // SAFETY: the layout has a size.
        let start = NonNull::new(unsafe { alloc_zeroed(Self::LAYOUT) })?;
        for word in 0..WORDS {
            // SAFETY: the pages have this many words.
            unsafe { start.cast::<u32>().add(word as usize).write(number(word)) };
        }
        Some(Self(start))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `new`.
        unsafe { dealloc(self.0.as_ptr(), Self::LAYOUT) };
    }
}

/// The content of a word of the pages: a float, so that copies by arithmetic keep it.
fn number(word: u32) -> u32 {
    (word as f32 + 0.5).to_bits()
}

/// Imports pages, lets the device read them, and compares.
pub(crate) fn try_import(pipelines: &Pipelines, arithmetic: Arithmetic) -> Sharing {
    let alignment = pipelines.device().candidate.import_alignment;
    if alignment.is_none_or(|bytes| bytes > ALIGNMENT_MAX as u64) {
        return Sharing::Copied;
    }
    match reads_right(pipelines, arithmetic) {
        Ok(true) => Sharing::Imported,
        Ok(false) | Err(_) => Sharing::Copied,
    }
}

fn reads_right(pipelines: &Pipelines, arithmetic: Arithmetic) -> Result<bool, GpuError> {
    let device = pipelines.device();
    let Some(pages) = Pages::new() else {
        return Ok(false);
    };
    let start = pages.0.as_ptr().cast_const();
    // SAFETY: the pages are whole, are written no more, and live as long as their owner.
    let imported = unsafe { Memory::import(device, start, ALIGNMENT_MAX as u64, Arc::new(pages)) }?;
    let copy = Memory::new(device, 4 * u64::from(WORDS), Kind::Host)?;
    let mut args = Args::default();
    args.at[0] = imported.address();
    args.at[2] = copy.address();
    args.n = [1, WORDS, 0, WORDS, 0, 0, 0, 0];
    let dispatch = Dispatch {
        pipeline: pipelines.of(Module::Elementwise, &[(constant::WIDTH, WORDS)], arithmetic)?,
        args,
        groups: [1, 1],
        waits: false,
    };
    // SAFETY: one row of so many words is read and written, which both have.
    let recording =
        unsafe { Recording::new(device, &[dispatch], vec![imported, Arc::clone(&copy)]) }?;
    device.wait(recording.submit()?, PATIENCE)?;
    let mut bytes = vec![0; 4 * WORDS as usize];
    copy.read(0, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<4>();
    let mut pairs = words.iter().zip(0..);
    Ok(pairs.all(|(found, word)| *found == number(word).to_ne_bytes()))
}
