//! Rows in memory that others own, and scratch memory of our own.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::error::Error;

/// Consecutive rows: a part of a KV cache, of activations, or of a table.
#[derive(Debug, Clone, Copy)]
pub struct ProgramRows<'a> {
    first: NonNull<u8>,
    count: usize,
    stride_bytes: usize,
    row_bytes: usize,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: rows are no more than an address and sizes; whoever makes them promises that threads may use what lies there.
unsafe impl Send for ProgramRows<'_> {}
// SAFETY: as above.
unsafe impl Sync for ProgramRows<'_> {}

impl<'a> ProgramRows<'a> {
    /// `count` rows of `row_bytes` bytes, `stride_bytes` apart.
    ///
    /// # Safety
    ///
    /// For `'a` all of them lie in memory that may be read, and written where a call writes them. While a call runs,
    /// nobody else writes the rows that it reads, or touches those that it writes, on any thread.
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

    /// Rows that are only read, each behind the other.
    ///
    /// `bytes` need not be a whole number of rows; what is left over is no row.
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

    /// Bytes from a row to the next.
    pub(crate) const fn stride_bytes(&self) -> usize {
        self.stride_bytes
    }

    /// Address of a row below [`count`](Self::count).
    pub(crate) fn row(&self, index: usize) -> *mut u8 {
        // No dereference: the address is computed without leaving what the rows lie in.
        self.first.as_ptr().wrapping_add(index * self.stride_bytes)
    }
}

/// Memory of our own, at addresses that are multiples of [`ALIGNMENT`]. It grows and never shrinks.
#[derive(Debug)]
pub(crate) struct Scratch {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory that its owner alone has.
unsafe impl Send for Scratch {}

/// Chosen: a page, so that rows start at cache lines and large pages can serve it.
const ALIGNMENT: usize = 4096;

impl Scratch {
    /// No memory yet.
    pub(crate) const fn empty() -> Self {
        Self {
            first: NonNull::dangling(),
            bytes: 0,
        }
    }

    /// Makes room for `bytes`; what was there is lost where it has to grow.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let refused = Error::Memory { bytes };
        let Ok(layout) = Layout::from_size_align(bytes, ALIGNMENT) else {
            return Err(refused);
        };
        // SAFETY: `bytes` is above the old size, so the layout is not of size 0.
        let first = unsafe { alloc_zeroed(layout) };
        let first = NonNull::new(first).ok_or(refused)?;
        *self = Self { first, bytes };
        Ok(())
    }

    /// Its first byte.
    pub(crate) const fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.bytes > 0
            && let Ok(layout) = Layout::from_size_align(self.bytes, ALIGNMENT)
        {
            // SAFETY: it was allocated with this layout, and nobody keeps its address.
            unsafe { dealloc(self.first.as_ptr(), layout) };
        }
    }
}
