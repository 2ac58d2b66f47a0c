//! Unix: inodes and `madvise`.

#![allow(
    unsafe_code,
    reason = "dropping mapped pages is unsafe by nature; the proof stands at the block"
)]

use std::fs::Metadata;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use memmap2::{Advice, Mmap, UncheckedAdvice};

use crate::mapping::FileIdentity;

pub(crate) fn identity(metadata: &Metadata) -> Option<FileIdentity> {
    Some(FileIdentity {
        device: metadata.dev(),
        inode: metadata.ino(),
        bytes: metadata.len(),
        modified: [metadata.mtime(), metadata.mtime_nsec()],
        changed: [metadata.ctime(), metadata.ctime_nsec()],
    })
}

/// Advises the kernel to read ahead far. A refusal costs speed only.
pub(crate) fn will_read_in_order(map: &Mmap) {
    let _ = map.advise(Advice::Sequential);
}

/// Starts to read `range`, which lies within `map`.
pub(crate) fn will_need(map: &Mmap, range: Range<usize>) -> io::Result<()> {
    map.advise_range(Advice::WillNeed, range.start, range.len())
}

/// Reads all pages and keeps them in memory.
pub(crate) fn lock(map: &Mmap) -> io::Result<()> {
    map.lock()
}

/// Drops the pages of `range`, which lies within `map`; `map` is a shared, read-only mapping of a file.
pub(crate) fn dont_need(map: &Mmap, range: Range<usize>) -> io::Result<()> {
    // SAFETY: MADV_DONTNEED is dangerous where it changes what memory holds: anonymous and private written
    // pages come back as zeros. An `Mmap` cannot be written through, and the only caller, `Mapping::give_back`,
    // gives maps of files alone (it has checked `backing`), so dropped pages are filled again from that file with
    // the same bytes, and references into them keep reading the same values. The caller has clamped the range to
    // the mapping; memmap2 rounds its start down to a page, which is still within and for which the same holds.
    unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) }
}
