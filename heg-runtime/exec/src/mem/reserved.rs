//! Reserved address space: anonymous memory, parts of it replaced by pages of files.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memmap2::{MmapOptions, MmapRaw};

use crate::platform;

/// A range of address space, whose pages are committed when they are first written.
pub(super) struct Reserved {
    map: MmapRaw,
    /// Offsets of its pieces that are pages of files.
    pieces: Mutex<BTreeSet<usize>>,
}

/// Pieces of all ranges of this process that are pages of files.
static PIECES: AtomicUsize = AtomicUsize::new(0);

/// Most of them: Linux gives a process 65 530 mappings, and everything else needs some.
const PIECES_MAX: usize = 16_384;

impl Reserved {
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        let map = MmapOptions::new()
            .len(bytes.max(1))
            .no_reserve_swap()
            .map_anon()?;
        let map = MmapRaw::from(map);
        // Rows are committed page by page, a few in each layer: large pages would take 2 MiB for each half of each
        // layer of the shortest cache.
        platform::refuse_large_pages(&map);
        Ok(Self {
            map,
            pieces: Mutex::default(),
        })
    }

    pub(super) fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    pub(super) fn commit(&self, range: Range<usize>) {
        platform::commit(&self.map, range);
    }

    /// See [`Region::map`](super::region::Region::map).
    pub(super) fn map(&self, range: Range<usize>, file: (&File, u64)) -> bool {
        // Counted before, so that other ranges do not exceed the most together with this one.
        let has_room = PIECES.fetch_add(1, Ordering::Relaxed) < PIECES_MAX;
        let first = range.start;
        let is_mapped = has_room && platform::map_file(&self.map, range, file);
        if !(is_mapped && self.pieces().insert(first)) {
            PIECES.fetch_sub(1, Ordering::Relaxed);
        }
        is_mapped
    }

    /// Gives the whole pages within `range` back to the system; they become zeros.
    pub(super) fn discard(&self, range: Range<usize>) {
        let mut pieces = self.pieces();
        // No reference into the mapping is ever made.
        if pieces.is_empty() {
            return platform::discard(&self.map, range);
        }
        let forgotten = pieces.extract_if(range.clone(), |_| true).count();
        PIECES.fetch_sub(forgotten, Ordering::Relaxed);
        platform::forget_files(&self.map, range);
    }

    fn pieces(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for large pages, which some systems use without being asked.
    #[cfg(all(test, target_os = "linux"))]
    pub(super) fn ask_for_large_pages(&self) {
        platform::ask_for_large_pages(&self.map);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let held = self.pieces().len();
        PIECES.fetch_sub(held, Ordering::Relaxed);
    }
}
