//! Tensors that end where an inaccessible page begins.

use std::ptr::NonNull;

use heg_cpu::ProgramRows;

/// A mapping of its own, with guard bytes before the tensor and an inaccessible page after it.
pub(crate) struct Tensor {
    map: NonNull<u8>,
    map_bytes: usize,
    start: usize,
    bytes: usize,
}

const PAGE_BYTES: usize = 4096;
const MARK: u8 = 0xa5;

impl Tensor {
    /// Creates a tensor with a copy of these bytes.
    pub(crate) fn of(content: &[u8]) -> Self {
        let bytes = content.len();
        let end = bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let map_bytes = end + PAGE_BYTES;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the system chooses.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), map_bytes, access, flags, -1, 0) };
        assert_ne!(map, libc::MAP_FAILED, "there is memory");
        let map = NonNull::new(map.cast::<u8>()).expect("no mapping is at address 0");
        let start = end - bytes;
        // SAFETY: all written bytes are before `end`, within the mapping, which no other code knows; its last page,
        // which begins at `end`, is made inaccessible.
        unsafe {
            map.as_ptr().write_bytes(MARK, start);
            map.as_ptr()
                .add(start)
                .copy_from_nonoverlapping(content.as_ptr(), bytes);
            let guarded = libc::mprotect(map.as_ptr().add(end).cast(), PAGE_BYTES, libc::PROT_NONE);
            assert_eq!(guarded, 0, "a page can be guarded");
        }
        Self {
            map,
            map_bytes,
            start,
            bytes,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: these bytes are initialised, and written only by kernels while they run.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.start), self.bytes) }
    }

    /// Returns the bytes, after checking that the bytes before them were not written.
    pub(crate) fn whole(&self) -> &[u8] {
        // SAFETY: as for `bytes`.
        let before = unsafe { std::slice::from_raw_parts(self.map.as_ptr(), self.start) };
        assert!(
            before.iter().all(|byte| *byte == MARK),
            "written before a tensor"
        );
        self.bytes()
    }

    /// Returns the whole tensor as rows.
    pub(crate) fn rows(&self, count: usize) -> ProgramRows<'_> {
        let row_bytes = self.bytes / count;
        let first = NonNull::from(self.bytes()).cast();
        // SAFETY: the rows are in this tensor, which outlives them; only one kernel at a time works on it.
        unsafe { ProgramRows::new(first, count, row_bytes, row_bytes) }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and all that borrowed from it is gone.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}
