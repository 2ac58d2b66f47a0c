//! What differs between operating systems: advice and limits on memory, and where the user's cache is.

use std::ops::Range;
use std::path::PathBuf;

use memmap2::MmapRaw;

/// The folder below which this user's programs keep what they can make again; none where the environment names none.
pub(crate) fn user_cache_folder() -> Option<PathBuf> {
    if cfg!(windows) {
        return variable("LOCALAPPDATA");
    }
    variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))
}

/// The path in an environment variable; an empty one counts as not set.
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Bytes of a page of memory.
#[cfg(unix)]
pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Bytes that this process may lock in memory; none where nothing bounds it.
#[cfg(unix)]
pub(crate) fn lockable_bytes() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// None: only Unix has this limit.
#[cfg(not(unix))]
pub(crate) fn lockable_bytes() -> Option<u64> {
    None
}

/// Has the system commit a mapping page by page, also where it has large pages for everybody.
#[cfg(target_os = "linux")]
pub(crate) fn refuse_large_pages(map: &MmapRaw) {
    // Memory is all that is lost where the system has no large pages, and says so.
    let _ = map.advise(memmap2::Advice::NoHugePage);
}

/// Does nothing: only Linux gives large pages unasked.
#[cfg(not(target_os = "linux"))]
pub(crate) fn refuse_large_pages(_map: &MmapRaw) {}

/// Asks for large pages, as a system does unasked that has them for everybody.
#[cfg(all(test, target_os = "linux"))]
pub(crate) fn ask_for_large_pages(map: &MmapRaw) {
    let _ = map.advise(memmap2::Advice::HugePage);
}

/// Gives the whole pages within `range` of an anonymous mapping back to the system. What they held is lost: on Linux
/// they are zeros, as at first.
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

/// A file that can be opened and never written, for tests of full disks.
#[cfg(feature = "faults")]
pub(crate) fn full_file() -> std::io::Result<std::fs::File> {
    if cfg!(windows) {
        return Err(std::io::ErrorKind::StorageFull.into());
    }
    std::fs::File::options().write(true).open("/dev/full")
}
