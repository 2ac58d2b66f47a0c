//! Rows in memory owned elsewhere, and scratch memory of our own.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::error::CpuError;
use crate::partner::{Partner, PartnerMemory};

/// Consecutive rows: a part of a KV cache, of activations, or of a table.
#[derive(Debug, Clone, Copy)]
pub struct ProgramRows<'a> {
    first: NonNull<u8>,
    count: usize,
    stride_bytes: usize,
    row_bytes: usize,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: rows are an address and sizes; whoever made them promised that threads may use the memory there.
unsafe impl Send for ProgramRows<'_> {}
// SAFETY: rows are an address and sizes; whoever made them promised that threads may use the memory there.
unsafe impl Sync for ProgramRows<'_> {}

impl<'a> ProgramRows<'a> {
    /// `count` rows of `row_bytes` bytes, `stride_bytes` apart.
    ///
    /// # Safety
    ///
    /// For `'a` all rows lie in memory that may be read, and written if a call writes them. While a call runs, no other
    /// thread writes the rows that it reads, or accesses the rows that it writes.
    pub const unsafe fn new(
        first: NonNull<u8>,
        count: usize,
        stride_bytes: usize,
        row_bytes: usize,
    ) -> Self {
        Self {
            first,
            count,
            stride_bytes,
            row_bytes,
            memory: PhantomData,
        }
    }

    /// Consecutive read-only rows.
    ///
    /// Bytes behind the last whole row are ignored.
    pub fn of(bytes: &'a [u8], row_bytes: usize) -> Self {
        Self {
            first: NonNull::from(bytes).cast(),
            count: bytes.len().checked_div(row_bytes).unwrap_or(0),
            stride_bytes: row_bytes,
            row_bytes,
            memory: PhantomData,
        }
    }

    /// Number of rows.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Bytes of a row.
    pub const fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Address of the first row.
    pub const fn start(&self) -> *const u8 {
        self.first.as_ptr().cast_const()
    }

    /// Distance from one row to the next, in bytes.
    pub const fn stride_bytes(&self) -> usize {
        self.stride_bytes
    }

    /// Address of row `index`, which is below [`count`](Self::count).
    pub(crate) fn row(&self, index: usize) -> *mut u8 {
        // No dereference: an address within the rows' memory.
        self.first.as_ptr().wrapping_add(index * self.stride_bytes)
    }
}

/// Owned memory aligned to [`ALIGNMENT`]. It grows and never shrinks.
pub(crate) struct Scratch {
    first: NonNull<u8>,
    bytes: usize,
    /// Owner of memory that a partner works on, too; `None` if it was allocated here.
    shared: Option<PartnerMemory>,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Scratch {}

/// Chosen: a page, so that rows start at cache lines and large pages can back it.
const ALIGNMENT: usize = 4096;

impl Scratch {
    /// No memory yet.
    pub(crate) const fn empty() -> Self {
        Self {
            first: NonNull::dangling(),
            bytes: 0,
            shared: None,
        }
    }

    /// Ensures room like [`reserve`](Self::reserve), where a partner works on it, too, if that has memory left.
    pub(crate) fn reserve_at(
        &mut self,
        partner: &dyn Partner,
        bytes: usize,
    ) -> Result<(), CpuError> {
        if bytes <= self.bytes && (self.shared.is_some() || partner.is_lost()) {
            return Ok(());
        }
        match partner.memory(bytes).filter(|it| it.bytes() >= bytes) {
            Some(shared) => {
                *self = Self {
                    first: shared.first(),
                    bytes: shared.bytes(),
                    shared: Some(shared),
                };
                Ok(())
            }
            None => self.reserve(bytes),
        }
    }

    /// Ensures room for `bytes` bytes. Growing discards the contents.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), CpuError> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let refused = CpuError::Memory { bytes };
        let Ok(layout) = Layout::from_size_align(bytes, ALIGNMENT) else {
            return Err(refused);
        };
        // SAFETY: `bytes` is above the old size, so the layout is not of size 0.
        let allocated = unsafe { alloc_zeroed(layout) };
        let first = NonNull::new(allocated).ok_or(refused)?;
        *self = Self {
            first,
            bytes,
            shared: None,
        };
        Ok(())
    }

    /// Address of the first byte.
    pub(crate) const fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.bytes > 0
            && self.shared.is_none()
            && let Ok(layout) = Layout::from_size_align(self.bytes, ALIGNMENT)
        {
            // SAFETY: it was allocated with this layout, and its address is not used after this.
            unsafe { dealloc(self.first.as_ptr(), layout) };
        }
    }
}
