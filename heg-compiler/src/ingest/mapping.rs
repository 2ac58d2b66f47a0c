//! The bytes behind a checkpoint: a read-only map of a file, or a buffer.
//!
//! The only unsafe code of the crate. Weights are mapped and never loaded: a checkpoint may be
//! larger than memory, and pages that were used are given back at once (`advise_done`), so that
//! compiling costs blocks, not models. Like every reader of maps this one needs the file to stay as
//! it is while it is mapped: a file cut short by another process ends the process (SIGBUS).

use std::fs::File;
use std::ops::Range;

use memmap2::Mmap;

/// Bytes that live as long as their checkpoint.
#[derive(Debug)]
pub(super) enum Mapping {
    File(Mmap),
    Buffer(Vec<u8>),
}

impl Mapping {
    /// Maps a whole file, to be read from front to back.
    pub(super) fn file(file: &File) -> std::io::Result<Self> {
        #[allow(unsafe_code, reason = "a map of a file is the only way not to load it")]
        // SAFETY: the map is read-only and shared, so nothing in this process can change the bytes
        // behind the `&[u8]` it gives out. Another process could write to the file: that is excluded
        // by contract (see `Checkpoint::open`), and no check of ours is believed across two reads,
        // since headers are copied out of the map before they are judged.
        let map = unsafe { Mmap::map(file)? };
        // Advice is advice: a system that does not take it is only slower.
        #[cfg(unix)]
        let _ = map.advise(memmap2::Advice::Sequential);
        Ok(Self::File(map))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::File(map) => map,
            Self::Buffer(buffer) => buffer,
        }
    }

    /// Gives the whole pages inside a byte range back to the system. Reading them again is correct
    /// and costs a page fault. No effect on a buffer, or where the system does not take the advice.
    pub(super) fn advise_done(&self, range: Range<usize>) {
        let start = range.start.next_multiple_of(PAGE_BYTES_MAX);
        let end = range.end.min(self.bytes().len()) / PAGE_BYTES_MAX * PAGE_BYTES_MAX;
        if let (Self::File(map), Some(bytes)) = (self, end.checked_sub(start))
            && bytes > 0
        {
            drop_pages(map, start, bytes);
        }
    }
}

#[cfg(unix)]
fn drop_pages(map: &Mmap, start: usize, bytes: usize) {
    #[allow(unsafe_code, reason = "dropping pages has no safe form in memmap2")]
    // SAFETY: `MADV_DONTNEED` changes what memory reads as only where it holds private or anonymous
    // pages. This map is shared, read-only and of a file, so it has none: the next read faults the
    // same bytes in from the file again. References into the range stay valid throughout.
    let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, bytes) };
}

#[cfg(not(unix))]
fn drop_pages(_: &Mmap, _: usize, _: usize) {}

/// The largest page of the systems we build on (arm64 Linux: 64 KiB). Ranges are rounded inwards to
/// it, so that neighbours keep their pages.
const PAGE_BYTES_MAX: usize = 64 * 1024;
