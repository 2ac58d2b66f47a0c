//! Differences between operating systems: advice on mapped memory, and files in its place.

use std::fs::File;
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

/// Commits the pages of `range` of an anonymous mapping, whose content stays, before they are written: together they take
/// three quarters of the time that each takes when it is first written.
#[cfg(target_os = "linux")]
pub(crate) fn commit(map: &MmapRaw, range: Range<usize>) {
    // A page that is not committed now is when it is written.
    let _ = map.advise_range(memmap2::Advice::PopulateWrite, range.start, range.len());
}

/// Does nothing: pages are committed when they are written.
#[cfg(not(target_os = "linux"))]
pub(crate) fn commit(_map: &MmapRaw, _range: Range<usize>) {}

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

/// Puts pages of a file, from a place on, in place of the pages of `range` of an anonymous mapping. Writes to them stay
/// in this process. Returns false where that cannot be, and nothing has changed.
#[cfg(target_os = "linux")]
pub(crate) fn map_file(map: &MmapRaw, range: Range<usize>, (file, at): (&File, u64)) -> bool {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let page = page_bytes();
    let is_whole = [range.start, range.len()].iter().all(|at| at % page == 0);
    if !is_whole || at % page as u64 != 0 || range.is_empty() || range.end > map.len() {
        return false;
    }
    let (access, flags) = (
        ProtFlags::READ | ProtFlags::WRITE,
        MapFlags::PRIVATE | MapFlags::FIXED,
    );
    // SAFETY: the range lies within the mapping and is made of whole pages (just checked), and no other memory is
    // replaced. It stays readable and writable, and ends with the mapping, whose memory is given back as a whole. An
    // `MmapRaw` is raw memory only: whoever makes references into it answers for them.
    let mapped = unsafe {
        let start = map.as_mut_ptr().add(range.start).cast();
        mmap(start, range.len(), access, flags, file, at)
    };
    // Together they take a part of the time that each takes when it is first read. The flag of `mmap` for it would copy
    // them, as if they were written.
    let _ = map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len());
    mapped.is_ok()
}

/// Maps nothing: rows are copied.
#[cfg(not(target_os = "linux"))]
pub(crate) fn map_file(_map: &MmapRaw, _range: Range<usize>, _file: (&File, u64)) -> bool {
    false
}

/// Has the system begin to read a file that it does not hold in memory.
#[cfg(target_os = "linux")]
pub(crate) fn read_ahead(file: &File) {
    // Without it, the file is read when its pages are mapped.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::WillNeed);
}

/// Does nothing: no file is mapped.
#[cfg(not(target_os = "linux"))]
pub(crate) fn read_ahead(_file: &File) {}

/// Puts zeros in place of the whole pages within `range` of a mapping, pages of files included.
#[cfg(target_os = "linux")]
pub(crate) fn forget_files(map: &MmapRaw, range: Range<usize>) {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let page = page_bytes();
    let first = range.start.next_multiple_of(page);
    let end = range.end.min(map.len()) / page * page;
    if first >= end {
        return;
    }
    let (access, flags) = (
        ProtFlags::READ | ProtFlags::WRITE,
        MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
    );
    // SAFETY: as in `map_file`.
    let forgotten = unsafe {
        let start = map.as_mut_ptr().add(first).cast();
        mmap_anonymous(start, end - first, access, flags)
    };
    match forgotten {
        Ok(_) => drop(map.advise_range(memmap2::Advice::NoHugePage, first, end - first)),
        // Too many mappings: what was written is forgotten, at least.
        Err(_) => discard(map, range),
    }
}

/// Gives pages back: none is that of a file.
#[cfg(not(target_os = "linux"))]
pub(crate) fn forget_files(map: &MmapRaw, range: Range<usize>) {
    discard(map, range);
}

/// The end of a process.
pub(crate) enum Ended {
    /// Without an error.
    Well,
    /// By a fault of its own, as a library's bug has it.
    Crashed(String),
    /// With an error, or by somebody else.
    Otherwise(String),
}

/// Says how a process ended.
#[cfg(unix)]
pub(crate) fn ended(status: std::process::ExitStatus) -> Ended {
    use std::os::unix::process::ExitStatusExt;
    match status.signal() {
        None if status.success() => Ended::Well,
        None => Ended::Otherwise(status.to_string()),
        // Whoever needs memory or time may end a process by another one.
        Some(signal) if FAULTS.contains(&signal) => Ended::Crashed(format!("signal {signal}")),
        Some(signal) => Ended::Otherwise(format!("ended by signal {signal}")),
    }
}

/// Signals that a process gets for what it did: ILL, TRAP, ABRT, BUS, FPE and SEGV on Linux.
#[cfg(unix)]
const FAULTS: [i32; 6] = [4, 5, 6, 7, 8, 11];

/// Says how a process ended: Windows has a number above all of ours for a fault.
#[cfg(not(unix))]
pub(crate) fn ended(status: std::process::ExitStatus) -> Ended {
    match status.code() {
        Some(0) => Ended::Well,
        Some(code) if (0..=255).contains(&code) => Ended::Otherwise(status.to_string()),
        _ => Ended::Crashed(status.to_string()),
    }
}
