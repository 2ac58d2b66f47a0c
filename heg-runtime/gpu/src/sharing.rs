//! Whether a device reads pages of the host, and where both work on keys and values: tried once, before anything depends on
//! it.

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
use crate::shared::{CacheMemory, PAGES_BYTES, shared};
use crate::vulkan::{Args, Dispatch, Kind, Memory, Recording, Timing};

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
    let (from, to) = (imported.address(), copy.address());
    let memories = vec![imported, Arc::clone(&copy)];
    // SAFETY: one row of so many words is read and written, which both have.
    let recording = unsafe { copying(pipelines, arithmetic, [from, to], memories) }?;
    device.wait(recording.submit()?, PATIENCE)?;
    let mut bytes = vec![0; 4 * WORDS as usize];
    copy.read(0, &mut bytes)?;
    Ok(bytes == numbers(0))
}

/// The commands of a copy of a row from one address to another.
///
/// # Safety
///
/// Both have as many words, within the memories.
unsafe fn copying(
    pipelines: &Pipelines,
    arithmetic: Arithmetic,
    [from, to]: [u64; 2],
    memories: Vec<Arc<Memory>>,
) -> Result<Recording, GpuError> {
    let mut args = Args::default();
    (args.at[0], args.at[2]) = (from, to);
    args.n = [1, WORDS, 0, WORDS, 0, 0, 0, 0];
    let dispatch = Dispatch {
        pipeline: pipelines.of(Module::Elementwise, &[(constant::WIDTH, WORDS)], arithmetic)?,
        args,
        groups: [1, 1],
        waits: false,
    };
    // SAFETY: the caller's.
    unsafe { Recording::new(pipelines.device(), &[dispatch], memories, Timing::None) }
}

/// The words from one on, as bytes.
fn numbers(first: u32) -> Vec<u8> {
    let words = first..first + WORDS;
    words.flat_map(|word| number(word).to_ne_bytes()).collect()
}

/// Finds memory that host and device both read and write, each after the other: pages of the host, or else memory of the
/// device.
pub(crate) fn try_caches(
    pipelines: &Pipelines,
    arithmetic: Arithmetic,
    may_import: bool,
) -> CacheMemory {
    let alignment = pipelines.device().candidate.import_alignment;
    let imports = may_import && alignment.is_some_and(|bytes| bytes <= PAGES_BYTES);
    let ways = [
        (imports, CacheMemory::Imported),
        (true, CacheMemory::Shared),
    ];
    let mut ways = ways.into_iter().filter(|(is_there, _)| *is_there);
    let works = |way| matches!(works_both_ways(pipelines, arithmetic, way), Ok(true));
    let found = ways.find(|(_, way)| works(*way));
    found.map_or(CacheMemory::Copied, |(_, way)| way)
}

fn works_both_ways(
    pipelines: &Pipelines,
    arithmetic: Arithmetic,
    way: CacheMemory,
) -> Result<bool, GpuError> {
    let (device, bytes) = (pipelines.device(), 4 * u64::from(WORDS));
    let Some(shared) = shared(device, 2 * bytes, way)? else {
        return Ok(false);
    };
    let region = shared.region();
    let (from, to) = (region.address(), region.address() + bytes);
    // SAFETY: two rows of so many words are there.
    let recording = unsafe { copying(pipelines, arithmetic, [from, to], vec![region.memory()]) }?;
    let mut found = vec![0; 4 * WORDS as usize];
    for first in [0, WORDS] {
        region.write(0, &numbers(first))?;
        device.wait(recording.submit()?, PATIENCE)?;
        region.read(bytes, &mut found)?;
        if found != numbers(first) {
            return Ok(false);
        }
    }
    Ok(true)
}
