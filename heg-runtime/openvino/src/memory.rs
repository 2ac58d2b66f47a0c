//! Memory that the caller owns and OpenVINO reads and writes.
//!
//! [`Memory`] is the contract; [`HostBuffer`] the plain implementation, for activations and tests. File mappings and
//! reserved KV ranges implement it elsewhere. `tensor.rs` has the views of tensors into a range.
//!
//! **Copies.** The plugins of CPU and iGPU read and write host memory where it is. The NPU's does so with bytes inside
//! memory that its device knows: lent by [`DeviceMemory::lend`], or allocated by the device. Of the rest it imports, and
//! lets go again at each inference, what is writable and has address and size of whole pages, on platforms from 4000 on;
//! everything else it copies, at each inference. (Seen with OpenVINO 2026.4.1; the driver's part is linux-npu-driver
//! 1.32.1's.) So whatever an NPU works on is lent once: in whole pages, since only these can be.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use memmap2::{MmapOptions, MmapRaw};

use crate::device_memory::{DeviceMemory, DevicePages, RangeLoan};
use crate::error::OpenvinoError;

/// Whether OpenVINO may write to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The range holds inputs and weights only.
    ReadOnly,
    /// The range holds inputs, weights and outputs.
    ReadWrite,
}

/// A range of bytes that OpenVINO may use while the value is alive.
///
/// # Safety
///
/// - `as_ptr` and `len` give the same answers for the life of the value, and all of that range is one allocation or
///   mapping, mapped and readable; writable too if `access` says [`Access::ReadWrite`]. The address is not null, even
///   for a length of zero.
/// - Bytes of a read-only range do not change while the value lives.
/// - Memory that is [`Access::ReadWrite`] is never exposed as a Rust reference while a request that binds it is
///   running: it is accessed through raw pointers, as memory shared with a device is.
pub unsafe trait Memory: Send + Sync + 'static {
    /// Returns a pointer to the first byte of the range.
    fn as_ptr(&self) -> *const u8;

    /// Returns the length of the range in bytes.
    fn len(&self) -> usize;

    /// Returns the access that OpenVINO may have to the range.
    fn access(&self) -> Access;

    /// Returns whether the range has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Zeroed, writable memory in whole pages of its own, which the system provides as they are first written and takes
/// back at the end. An allocator would keep them, and write the zeros itself when it reuses them: some 30 ms for the
/// activations of 2000 tokens. The pages may be known to a device, which then works on them without a copy.
///
/// Its accessors copy. They may be called while a request runs on the same buffer; bytes that the request writes
/// meanwhile are then unspecified.
///
/// **Invariants**
/// - `pages` are at least `bytes` long.
/// - The device forgets the pages before they are unmapped: `loan` is dropped first.
/// - Copies by this process hold the lock `copies`: shared to read, exclusive to write.
pub struct HostBuffer {
    _loan: Option<RangeLoan>,
    pages: Pages,
    bytes: usize,
    copies: RwLock<()>,
}

/// Writable memory at an address that never changes; zeroed, unless it is shared.
enum Pages {
    Mapped(MmapRaw),
    Device(DevicePages),
    /// Memory that another device works on, too.
    Shared(Arc<dyn Memory>),
}

impl Pages {
    fn map(bytes: usize) -> Result<Self, OpenvinoError> {
        let map = MmapOptions::new().len(bytes.max(1)).map_anon();
        let map = map.map_err(|_| OpenvinoError::Allocation { bytes })?;
        Ok(Self::Mapped(MmapRaw::from(map)))
    }

    fn as_ptr(&self) -> *mut u8 {
        match self {
            Self::Mapped(map) => map.as_mut_ptr(),
            Self::Device(pages) => pages.as_ptr(),
            Self::Shared(memory) => memory.as_ptr().cast_mut(),
        }
    }
}

impl HostBuffer {
    /// Allocates `bytes` zeroed bytes.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Allocation`] if there is no memory.
    pub fn new(bytes: usize) -> Result<Self, OpenvinoError> {
        Ok(Self {
            _loan: None,
            pages: Pages::map(bytes)?,
            bytes,
            copies: RwLock::new(()),
        })
    }

    /// Allocates `bytes` zeroed bytes and lends them to a device for as long as they live.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Allocation`] if there is no memory, [`OpenvinoError::Call`] if the device does not take them.
    pub fn lent(bytes: usize, device: &DeviceMemory) -> Result<Self, OpenvinoError> {
        let whole = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let pages = Pages::map(whole)?;
        // SAFETY: the mapping is `whole` bytes long, writable, and stays mapped until `pages` is dropped, which is after
        // the loan: by the order of the fields, and here by that of the variables, should anything below fail.
        let loan = unsafe { device.lend_range(pages.as_ptr(), whole, Access::ReadWrite) }?;
        Ok(Self {
            _loan: Some(loan),
            pages,
            bytes,
            copies: RwLock::new(()),
        })
    }

    /// Takes the first `bytes` bytes of memory that another device works on, too. What they hold at first is not said.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Allocation`] if the memory is shorter, or read-only.
    pub fn shared(memory: Arc<dyn Memory>, bytes: usize) -> Result<Self, OpenvinoError> {
        if memory.access() != Access::ReadWrite || memory.len() < bytes {
            return Err(OpenvinoError::Allocation { bytes });
        }
        Ok(Self {
            _loan: None,
            pages: Pages::Shared(memory),
            bytes,
            copies: RwLock::new(()),
        })
    }

    /// Allocates `bytes` zeroed bytes of a device's own memory.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] if the device has none left.
    pub fn of_device(bytes: usize, device: &DeviceMemory) -> Result<Self, OpenvinoError> {
        Ok(Self {
            _loan: None,
            pages: Pages::Device(device.allocate(bytes)?),
            bytes,
            copies: RwLock::new(()),
        })
    }

    /// Creates a buffer with a copy of `values`.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Allocation`] if there is no memory.
    pub fn from_f32(values: &[f32]) -> Result<Self, OpenvinoError> {
        let buffer = Self::new(size_of_val(values))?;
        buffer.write_f32(0, values)?;
        Ok(buffer)
    }

    /// Copies the bytes of `range` into `into`, which must have the same length.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::OutOfBounds`] or [`OpenvinoError::LengthMismatch`].
    pub fn read(&self, range: Range<usize>, into: &mut [u8]) -> Result<(), OpenvinoError> {
        let found = range.end.saturating_sub(range.start);
        if found != into.len() {
            return Err(OpenvinoError::LengthMismatch {
                unit: "bytes",
                expected: into.len(),
                found,
            });
        }
        let source = self.at(range.start, found)?;
        let _reading = self.copies.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `at` checked that the range lies in this mapping, which is writable and lives
        // as long as `self`; this process writes it only under `copies`, held here for reading.
        unsafe { copy_from_shared(source, into) };
        Ok(())
    }

    /// Copies `from` to the bytes that start at `offset_bytes`.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::OutOfBounds`].
    pub fn write(&self, offset_bytes: usize, from: &[u8]) -> Result<(), OpenvinoError> {
        let target = self.at(offset_bytes, from.len())?;
        let _writing = self.copies.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `at` checked that the range lies in this mapping, which is writable and lives
        // as long as `self`; this process accesses it only under `copies`, held here alone.
        unsafe { copy_to_shared(from, target) };
        Ok(())
    }

    /// Copies the elements from `offset_bytes` on into `into`. The offset need not be aligned.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::OutOfBounds`].
    pub fn read_f32(&self, offset_bytes: usize, into: &mut [f32]) -> Result<(), OpenvinoError> {
        let bytes = f32_bytes_mut(into);
        let end = offset_bytes.saturating_add(bytes.len());
        if end == usize::MAX {
            return Err(self.out_of_bounds(offset_bytes, bytes.len()));
        }
        self.read(offset_bytes..end, bytes)
    }

    /// Copies `from` to the bytes from `offset_bytes` on. The offset need not be aligned.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::OutOfBounds`].
    pub fn write_f32(&self, offset_bytes: usize, from: &[f32]) -> Result<(), OpenvinoError> {
        // SAFETY: the bytes of a slice of `f32` are initialised, and any address is aligned for
        // `u8`; the borrow of `from` outlives the use.
        let bytes =
            unsafe { std::slice::from_raw_parts(from.as_ptr().cast::<u8>(), size_of_val(from)) };
        self.write(offset_bytes, bytes)
    }

    fn at(&self, offset: usize, bytes: usize) -> Result<*mut u8, OpenvinoError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.pages.as_ptr().wrapping_add(offset)),
            _ => Err(self.out_of_bounds(offset, bytes)),
        }
    }

    fn out_of_bounds(&self, offset: usize, bytes: usize) -> OpenvinoError {
        OpenvinoError::OutOfBounds {
            offset,
            bytes,
            len: self.bytes,
        }
    }
}

// SAFETY: address and length of an anonymous mapping, or of a device's host tensor, never change until it is dropped, the
// address is not null, the memory is readable and writable, and no method hands out a reference into it.
unsafe impl Memory for HostBuffer {
    fn as_ptr(&self) -> *const u8 {
        self.pages.as_ptr()
    }

    fn len(&self) -> usize {
        self.bytes
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }
}

impl std::fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostBuffer")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Copies out of memory that code outside this process's Rust may be writing.
///
/// Words are loaded one by one with relaxed atomics, so that a concurrent foreign write can give stale or mixed words
/// and nothing worse.
///
/// # Safety
///
/// The `into.len()` bytes at `source` stay mapped, readable and writable for the call, and no Rust code writes them
/// meanwhile.
pub(crate) unsafe fn copy_from_shared(source: *const u8, into: &mut [u8]) {
    let source = source.cast_mut();
    let head = source.align_offset(WORD_BYTES).min(into.len());
    let (first, rest) = into.split_at_mut(head);
    let (words, last) = rest.as_chunks_mut::<WORD_BYTES>();
    let last_offset = head + words.len() * WORD_BYTES;
    for (index, byte) in first.iter_mut().enumerate() {
        // SAFETY: `index < into.len()`, mapped by the caller's promise; bytes are always aligned.
        *byte = unsafe { AtomicU8::from_ptr(source.add(index)) }.load(Ordering::Relaxed);
    }
    for (index, word) in words.iter_mut().enumerate() {
        let offset = head + index * WORD_BYTES;
        // SAFETY: `offset + 8 ≤ into.len()`, mapped by the caller's promise; there are words only
        // when `source + head` is aligned to a word, and the offset is whole words further.
        let from = unsafe { AtomicU64::from_ptr(source.add(offset).cast()) };
        *word = from.load(Ordering::Relaxed).to_ne_bytes();
    }
    for (index, byte) in last.iter_mut().enumerate() {
        // SAFETY: `last_offset + index < into.len()`, mapped by the caller's promise.
        let from = unsafe { AtomicU8::from_ptr(source.add(last_offset + index)) };
        *byte = from.load(Ordering::Relaxed);
    }
}

/// Copies into memory that code outside this process's Rust may be reading.
///
/// # Safety
///
/// The `from.len()` bytes at `target` stay mapped, readable and writable for the call, and no Rust code accesses them
/// meanwhile.
unsafe fn copy_to_shared(from: &[u8], target: *mut u8) {
    let head = target.align_offset(WORD_BYTES).min(from.len());
    let (first, rest) = from.split_at(head);
    let (words, last) = rest.as_chunks::<WORD_BYTES>();
    let last_offset = head + words.len() * WORD_BYTES;
    for (index, byte) in first.iter().enumerate() {
        // SAFETY: `index < from.len()`, mapped by the caller's promise; bytes are always aligned.
        unsafe { AtomicU8::from_ptr(target.add(index)) }.store(*byte, Ordering::Relaxed);
    }
    for (index, word) in words.iter().enumerate() {
        let offset = head + index * WORD_BYTES;
        // SAFETY: `offset + 8 ≤ from.len()`, mapped by the caller's promise; there are words only
        // when `target + head` is aligned to a word, and the offset is whole words further.
        let to = unsafe { AtomicU64::from_ptr(target.add(offset).cast()) };
        to.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    }
    for (index, byte) in last.iter().enumerate() {
        // SAFETY: `last_offset + index < from.len()`, mapped by the caller's promise.
        let to = unsafe { AtomicU8::from_ptr(target.add(last_offset + index)) };
        to.store(*byte, Ordering::Relaxed);
    }
}

/// Returns the bytes of a slice, to be filled by a copy.
pub(crate) fn f32_bytes_mut(values: &mut [f32]) -> &mut [u8] {
    let bytes = size_of_val(values);
    // SAFETY: same range and lifetime as the exclusive borrow of `values`; any address is aligned
    // for `u8`, and every pattern of bytes is a valid `f32`.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), bytes) }
}

const WORD_BYTES: usize = 8;

/// Alignment and granularity of memory that the NPU's driver imports, in bytes.
const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_buffer_is_zeroed_and_page_aligned() {
        let buffer = HostBuffer::new(5000).unwrap();
        assert_eq!(buffer.as_ptr().align_offset(PAGE_BYTES), 0);
        assert_eq!((buffer.len(), buffer.access()), (5000, Access::ReadWrite));
        let mut bytes = vec![1; 5000];
        buffer.read(0..5000, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_is_written_is_read_back_at_every_alignment() {
        let buffer = HostBuffer::new(64).unwrap();
        for offset in 0..16 {
            for length in 0..40_u8 {
                let written: Vec<u8> = (1..=length).collect();
                buffer.write(0, &[0; 64]).unwrap();
                buffer.write(offset, &written).unwrap();
                let mut all = [0; 64];
                buffer.read(0..64, &mut all).unwrap();
                let end = offset + usize::from(length);
                assert_eq!(all[offset..end], written);
                assert!(
                    all[..offset]
                        .iter()
                        .chain(&all[end..])
                        .all(|byte| *byte == 0)
                );
                let mut back = vec![0; written.len()];
                buffer.read(offset..end, &mut back).unwrap();
                assert_eq!(back, written);
            }
        }
    }

    #[test]
    fn floats_are_copied_both_ways() {
        let buffer = HostBuffer::from_f32(&[1.0, -2.5, 3.25]).unwrap();
        let mut back = [0.0; 2];
        buffer.read_f32(4, &mut back).unwrap();
        assert_eq!(back, [-2.5, 3.25]);
    }

    #[test]
    fn an_empty_buffer_has_an_address() {
        let buffer = HostBuffer::new(0).unwrap();
        assert!(buffer.is_empty() && !buffer.as_ptr().is_null());
        buffer.read(0..0, &mut []).unwrap();
    }

    #[test]
    fn ranges_outside_are_refused() {
        let buffer = HostBuffer::new(16).unwrap();
        let check = |result: Result<(), OpenvinoError>, text: &str| {
            assert_eq!(result.unwrap_err().to_string(), text);
        };
        check(
            buffer.write(13, &[0; 4]),
            "`4` bytes at offset `13` do not fit into memory of `16` bytes",
        );
        check(
            buffer.read_f32(usize::MAX - 3, &mut [0.0]),
            "`4` bytes at offset `18446744073709551612` do not fit into memory of `16` bytes",
        );
        check(
            buffer.read(0..8, &mut [0; 4]),
            "source has `8` bytes, destination has room for `4`",
        );
        check(
            HostBuffer::new(usize::MAX).map(drop),
            "cannot allocate `18446744073709551615` bytes",
        );
    }
}
