//! Differences between operating systems: advice on mapped memory.

use std::ops::Range;

use memmap2::MmapRaw;

/// Bytes of a page of memory.
#[cfg(unix)]
pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Makes the system commit a mapping page by page, even if it uses large pages for every process.
#[cfg(target_os = "linux")]
pub(crate) fn refuse_large_pages(map: &MmapRaw) {
    // An error is harmless: a system without large pages returns one, and elsewhere only memory is lost.
    let _ = map.advise(memmap2::Advice::NoHugePage);
}

/// Does nothing: only Linux uses large pages without being asked.
#[cfg(not(target_os = "linux"))]
pub(crate) fn refuse_large_pages(_map: &MmapRaw) {}

/// Asks for large pages, as on a system that uses them for every process.
#[cfg(all(test, target_os = "linux"))]
pub(crate) fn ask_for_large_pages(map: &MmapRaw) {
    let _ = map.advise(memmap2::Advice::HugePage);
}

/// Gives the whole pages within `range` of an anonymous mapping back to the system. Their content is lost: on Linux
/// they become zeros, as at first.
#[cfg(unix)]
pub(crate) fn discard(map: &MmapRaw, range: Range<usize>) {
    let page = page_bytes();
    let first = range.start.next_multiple_of(page);
    let end = range.end.min(map.len()) / page * page;
    if first < end {
        // SAFETY: MADV_DONTNEED changes what memory holds, and nothing else: the range lies within the mapping and is
        // made of whole pages (just computed), so it stays mapped and writable, and no byte outside of it changes. An
        // `MmapRaw` is raw memory only: whoever makes references into it answers for them. Memory is all that is lost
        // where the system refuses.
        let _ = unsafe {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            map.unchecked_advise_range(advice, first, end - first)
        };
    }
}

/// Keeps the pages: Windows frees those of a mapping only with all of it.
#[cfg(not(unix))]
pub(crate) fn discard(_map: &MmapRaw, _range: Range<usize>) {}
