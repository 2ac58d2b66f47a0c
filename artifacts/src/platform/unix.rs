//! Unix: inodes, `mmap` at fixed places, and `madvise`.

#![allow(
    unsafe_code,
    reason = "mapping and dropping pages is unsafe by nature; the proofs stand at the blocks"
)]

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::{self, NonNull};

use memmap2::{Advice, Mmap, UncheckedAdvice};

use crate::mapping::{FileIdentity, Pages};

pub(crate) fn identity(metadata: &Metadata) -> Option<FileIdentity> {
    Some(FileIdentity {
        device: metadata.dev(),
        inode: metadata.ino(),
        bytes: metadata.len(),
        modified: [metadata.mtime(), metadata.mtime_nsec()],
        changed: [metadata.ctime(), metadata.ctime_nsec()],
    })
}

/// Files mapped side by side, read-only, in a range of addresses of their own.
///
/// Invariant: `start` is the first of `bytes` addresses, at most `isize::MAX`, that this value alone has mapped, and all
/// of them belong to read-only shared mappings of files.
#[derive(Debug)]
pub(crate) struct MappedParts {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is read-only and belongs to the value, not to a thread.
unsafe impl Send for MappedParts {}

// SAFETY: as above; all that a shared reference gives is reading.
unsafe impl Sync for MappedParts {}

impl MappedParts {
    /// Maps files one behind the other. Each length is that of the file, and a multiple of the page size but for the last.
    pub(crate) fn map(parts: &[(&File, u64)]) -> io::Result<Self> {
        let too_long = || io::Error::from(io::ErrorKind::OutOfMemory);
        let lengths = parts.iter().map(|(_, bytes)| usize::try_from(*bytes));
        let lengths: Vec<usize> = lengths.collect::<Result<_, _>>().map_err(|_| too_long())?;
        let bytes = lengths
            .iter()
            .try_fold(0_usize, |sum, length| sum.checked_add(*length));
        let bytes = bytes
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(too_long)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory that is in use.
        let reserved = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        let start = checked(reserved)?;
        // From here on an error gives the range back.
        let mapped = Self { start, bytes };
        let mut offset = 0;
        for ((file, _), length) in parts.iter().zip(lengths) {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let descriptor = file.as_raw_fd();
            // SAFETY: `offset + length` is at most `bytes`, their sum, so what MAP_FIXED replaces lies within the range
            // that was just reserved and that nobody else knows. The mapping is read-only; that files are not written in
            // place is the promise of `mapping`, and their lengths were taken from these same open files.
            let part = unsafe {
                let place = start.as_ptr().add(offset);
                libc::mmap(place.cast(), length, libc::PROT_READ, flags, descriptor, 0)
            };
            checked(part)?;
            offset += length;
        }
        Ok(mapped)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: by the invariant these addresses are mapped readable for as long as `self` lives, and `map` returns no
        // value whose range is not covered by files. Nothing writes to them, by the promise of `mapping`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// Gives advice about the pages of `range`, which lies within the mapping. `advice` changes no content.
    fn advise(&self, range: Range<usize>, advice: libc::c_int) -> io::Result<()> {
        let first = range.start - range.start % PAGE_BYTES;
        // SAFETY: `first..range.end` lies within the mapping, whose pages are shared, read-only and of files: whatever the
        // kernel does with them, MADV_DONTNEED included, they are filled again with the same bytes.
        let advised = unsafe {
            let place = self.start.as_ptr().add(first);
            libc::madvise(place.cast(), range.end - first, advice)
        };
        succeeded(advised)
    }

    fn lock(&self) -> io::Result<()> {
        // SAFETY: the addresses belong to this value; locking changes no content.
        succeeded(unsafe { libc::mlock(self.start.as_ptr().cast(), self.bytes) })
    }
}

impl Drop for MappedParts {
    fn drop(&mut self) {
        // SAFETY: the range belongs to this value, and no reference into it outlives the value. Nobody could handle a
        // refusal: the addresses would stay taken.
        let _ = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn checked(address: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    match NonNull::new(address.cast()) {
        Some(start) if address != libc::MAP_FAILED => Ok(start),
        _ => Err(io::Error::last_os_error()),
    }
}

fn succeeded(status: libc::c_int) -> io::Result<()> {
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Length of a page of memory, in bytes, if the system says.
pub(crate) fn page_bytes() -> Option<u64> {
    // SAFETY: a question without arguments in memory.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()
}

/// Advises the kernel to read ahead far. A refusal costs speed only.
pub(crate) fn will_read_in_order(pages: &Pages) {
    let _ = match pages {
        Pages::Whole(map) => map.advise(Advice::Sequential),
        Pages::Parts(parts) => parts.advise(0..parts.bytes, libc::MADV_SEQUENTIAL),
    };
}

/// Starts to read `range`, which lies within `pages`.
pub(crate) fn will_need(pages: &Pages, range: Range<usize>) -> io::Result<()> {
    match pages {
        Pages::Whole(map) => map.advise_range(Advice::WillNeed, range.start, range.len()),
        Pages::Parts(parts) => parts.advise(range, libc::MADV_WILLNEED),
    }
}

/// Reads all pages and keeps them in memory.
pub(crate) fn lock(pages: &Pages) -> io::Result<()> {
    match pages {
        Pages::Whole(map) => map.lock(),
        Pages::Parts(parts) => parts.lock(),
    }
}

/// Drops the pages of `range`, which lies within `pages`; `pages` are shared, read-only mappings of files.
pub(crate) fn dont_need(pages: &Pages, range: Range<usize>) -> io::Result<()> {
    match pages {
        Pages::Whole(map) => drop_pages(map, range),
        Pages::Parts(parts) => parts.advise(range, libc::MADV_DONTNEED),
    }
}

fn drop_pages(map: &Mmap, range: Range<usize>) -> io::Result<()> {
    // SAFETY: MADV_DONTNEED is dangerous where it changes what memory holds: anonymous and private written
    // pages come back as zeros. An `Mmap` cannot be written through, and the only caller, `Mapping::give_back`,
    // gives maps of files alone (it has checked that there is one), so dropped pages are filled again from that file with
    // the same bytes, and references into them keep reading the same values. The caller has clamped the range to
    // the mapping; memmap2 rounds its start down to a page, which is still within and for which the same holds.
    unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) }
}

/// Pages to which the places of advice are rounded down: parts are mapped only where pages have this length.
const PAGE_BYTES: usize = 4096;
