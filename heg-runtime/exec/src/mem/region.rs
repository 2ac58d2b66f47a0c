//! Two kinds of mapped memory that OpenVINO may use: the bundle (read-only) and reserved ranges (writable).
//!
//! A reserved range takes address space at once and pages on first write, so that the KV cache of the longest
//! context can be one contiguous tensor per layer (DESIGN §3, "zero copy by layout"). One that a device knows takes all
//! of its pages at once, since the device is given them for good.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use super::home::MemoryHome;
use super::reserved::Reserved;
use crate::error::ExecError;
use heg_artifacts::Bundle;
use heg_gpu::SharedMemory;
use heg_openvino::{Access, HostBuffer, Memory};

/// The mapped bundle.
pub struct BundleMemory(pub Arc<Bundle>);

// SAFETY: the mapping of a bundle neither moves nor changes while the bundle lives (see
// `heg_artifacts::Mapping`), the `Arc` keeps it alive, and it is said to be read-only. A mapping's address is
// never null.
unsafe impl Memory for BundleMemory {
    fn as_ptr(&self) -> *const u8 {
        self.0.mapping().as_ptr()
    }

    fn len(&self) -> usize {
        self.0.mapping().len()
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }
}

/// A range of memory, zeroed but for that of a GPU.
pub(super) enum Region {
    /// Reserved address space, whose pages are committed when they are first written.
    Reserved(Reserved),
    /// Memory that a device knows.
    Known(HostBuffer),
    /// Memory that a GPU works on, too; what it holds at first is not said.
    Gpu(SharedMemory),
}

impl Region {
    /// Reserves `bytes` of address space.
    pub(super) fn reserve(bytes: usize) -> Result<Self, ExecError> {
        let reserved = Reserved::new(bytes);
        let reserved = reserved.map_err(|source| ExecError::Reserve { bytes, source })?;
        Ok(Self::Reserved(reserved))
    }

    /// Takes `bytes` where a device knows them.
    pub(super) fn at(bytes: usize, home: &MemoryHome) -> Result<Self, ExecError> {
        if let Some(shared) = home.shared_with_gpu(bytes) {
            return Ok(Self::Gpu(shared));
        }
        let buffer = home.buffer(bytes);
        let buffer = buffer.map_err(|error| ExecError::Reserve {
            bytes,
            source: std::io::Error::other(error),
        })?;
        Ok(Self::Known(buffer))
    }

    /// Copies `bytes` to `offset`; returns false, and copies nothing, if they do not fit.
    #[must_use]
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        let start = match self {
            Self::Reserved(reserved) => reserved.as_mut_ptr(),
            Self::Known(buffer) => return buffer.write(offset, bytes).is_ok(),
            Self::Gpu(shared) => shared.as_ptr(),
        };
        let fits = offset
            .checked_add(bytes.len())
            .is_some_and(|end| end <= self.len());
        if fits {
            // SAFETY: the destination lies within the memory (just checked), which is writable and is
            // exposed as raw memory only; `bytes` is a live slice, which cannot overlap it because no slice
            // of the memory is ever made. A GPU works on none of a cache's rows while its owner does (see
            // `program_rows`).
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(offset), bytes.len());
            }
        }
        fits
    }
}

impl Region {
    /// Copies the bytes at `offset` to `into`; returns false, and copies nothing, if some are outside the range.
    #[must_use]
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> bool {
        let start = match self {
            Self::Reserved(reserved) => reserved.as_mut_ptr().cast_const(),
            Self::Known(buffer) => {
                let end = offset.saturating_add(into.len());
                return buffer.read(offset..end, into).is_ok();
            }
            Self::Gpu(shared) => shared.as_ptr().cast_const(),
        };
        let fits = offset
            .checked_add(into.len())
            .is_some_and(|end| end <= self.len());
        if fits {
            // SAFETY: the source lies within the memory (just checked), which is readable; `into` is a live slice,
            // which cannot overlap it because no slice of the memory is ever made. Nobody writes there meanwhile: a
            // cache is read by its sole owner, to whom it comes back when no lane holds it any more, or by whoever has
            // the lock under which that owner takes it.
            unsafe {
                std::ptr::copy_nonoverlapping(start.add(offset), into.as_mut_ptr(), into.len());
            }
        }
        fits
    }
}

impl Region {
    /// Shows the bytes of `range` to `see`; returns false if some are outside of reserved memory. As long as `see` runs,
    /// nobody writes there.
    #[must_use]
    pub(super) fn show(&self, range: Range<usize>, see: &mut dyn FnMut(&[u8])) -> bool {
        let Self::Reserved(reserved) = self else {
            return false;
        };
        let is_within = range.start <= range.end && range.end <= reserved.len();
        if is_within {
            let start = reserved.as_mut_ptr().cast_const();
            // SAFETY: the range lies within the memory (just checked), which is readable, and was zeros at first. Nobody
            // writes there while the slice lives: whoever maps rows of a file there has the cache for that (`map_rows`),
            // and others map or write other rows.
            see(unsafe { std::slice::from_raw_parts(start.add(range.start), range.len()) });
        }
        is_within
    }

    /// Commits the pages of `range`, which will be written soon.
    pub(super) fn commit(&self, range: Range<usize>) {
        if let Self::Reserved(reserved) = self {
            reserved.commit(range);
        }
    }

    /// Replaces the whole pages of `range` by those of a file, from a place on, which nobody writes to; writes to the range stay
    /// in memory. Returns false where that cannot be, and nothing has changed.
    #[must_use]
    pub(super) fn map(&self, range: Range<usize>, file: (&File, u64)) -> bool {
        match self {
            Self::Reserved(reserved) => reserved.map(range, file),
            Self::Known(_) | Self::Gpu(_) => false,
        }
    }

    /// Gives the whole pages within `range` back to the system; their content is lost. A device keeps those that it
    /// knows.
    pub(super) fn discard(&self, range: Range<usize>) {
        if let Self::Reserved(reserved) = self {
            reserved.discard(range);
        }
    }

    /// Asks for large pages, which some systems use without being asked.
    #[cfg(all(test, target_os = "linux"))]
    pub(super) fn ask_for_large_pages(&self) {
        if let Self::Reserved(reserved) = self {
            reserved.ask_for_large_pages();
        }
    }
}

// SAFETY: a reserved range keeps its address and length until it is dropped, is readable and writable,
// is never null, and `Region` never makes a reference into it. A buffer and memory that a GPU works on keep the same
// promise, and none is replaced by another while a `Region` lives.
unsafe impl Memory for Region {
    fn as_ptr(&self) -> *const u8 {
        match self {
            Self::Reserved(reserved) => reserved.as_mut_ptr().cast_const(),
            Self::Known(buffer) => buffer.as_ptr(),
            Self::Gpu(shared) => shared.as_ptr().cast_const(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Reserved(reserved) => reserved.len(),
            Self::Known(buffer) => buffer.len(),
            Self::Gpu(shared) => shared.len(),
        }
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }
}
