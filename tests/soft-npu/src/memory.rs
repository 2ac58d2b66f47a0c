//! Memory that the device knows: what was allocated here, and pages of the caller that were imported.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::abi::{
    Code, INVALID_ARGUMENT, INVALID_NULL_POINTER, NOT_AVAILABLE, OUT_OF_DEVICE_MEMORY,
    UNSUPPORTED_ALIGNMENT, UNSUPPORTED_FEATURE, UNSUPPORTED_SIZE,
};
use crate::fault::{FaultPoint, fails};
use crate::log::lock;
use crate::pages::{PAGE_BYTES, can_be_pinned};
use crate::settings::{MachinePart, has};

/// A buffer that the device knows, alive as long as anything uses it: a job keeps the buffers of its arguments, as the
/// driver's does (driver, `vpu_driver/source/command/inference_execute.cpp`).
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    /// Never the same for two buffers (driver, `vpu_driver/source/memory/vpu_buffer_object.cpp`).
    pub(crate) id: u64,
    pub(crate) kind: RegionKind,
}

/// The origin of a buffer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegionKind {
    /// Allocated here.
    Own(Layout),
    /// Pages of the caller.
    Imported,
    /// Pages of the caller that the device may not write.
    ImportedToRead,
}

/// Buffers that callers hold.
#[derive(Debug, Default)]
struct Known {
    by_start: BTreeMap<usize, Arc<Region>>,
    own_bytes: usize,
    imported_bytes: usize,
    own_bytes_peak: usize,
    imported_bytes_peak: usize,
}

static KNOWN: Mutex<Known> = Mutex::new(Known {
    by_start: BTreeMap::new(),
    own_bytes: 0,
    imported_bytes: 0,
    own_bytes_peak: 0,
    imported_bytes_peak: 0,
});

/// Buffers that callers hold, and the most bytes that they have held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) own: usize,
    pub(crate) imported: usize,
    pub(crate) own_bytes_peak: usize,
    pub(crate) imported_bytes_peak: usize,
}

impl Region {
    fn new(start: usize, bytes: usize, kind: RegionKind) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            start,
            bytes,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            kind,
        }
    }

    /// Bytes from an address to the end, if the address is inside.
    pub(crate) fn room(&self, address: usize) -> Option<usize> {
        let at = address.checked_sub(self.start)?;
        self.bytes.checked_sub(at).filter(|room| *room > 0)
    }

    /// Whether the device may write to it: one that does all the same faults, and its job is aborted (ivpu,
    /// `ivpu_mmu.c`).
    pub(crate) fn is_writable(&self) -> bool {
        self.kind != RegionKind::ImportedToRead
    }

    /// Whether it is of the caller.
    pub(crate) fn is_imported(&self) -> bool {
        !matches!(self.kind, RegionKind::Own(_))
    }

    /// Name for the log.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind {
            RegionKind::Own(_) => "own",
            RegionKind::Imported => "imported",
            RegionKind::ImportedToRead => "imported-to-read",
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let RegionKind::Own(layout) = self.kind {
            // SAFETY: `allocate` allocated it with this layout, and nothing has a region without its `Arc`.
            unsafe { dealloc(ptr::with_exposed_provenance_mut(self.start), layout) };
        }
    }
}

impl Known {
    fn add(&mut self, region: Region) {
        let (bytes, peak) = match region.is_imported() {
            true => (&mut self.imported_bytes, &mut self.imported_bytes_peak),
            false => (&mut self.own_bytes, &mut self.own_bytes_peak),
        };
        *bytes = bytes.saturating_add(region.bytes);
        *peak = (*peak).max(*bytes);
        self.by_start.insert(region.start, Arc::new(region));
    }

    /// Driver, `vpu_device_context.cpp`, `findBufferObject`: the nearest buffer that begins at the address or below, if
    /// it reaches there.
    fn find(&self, address: usize) -> Option<&Arc<Region>> {
        let (_, region) = self.by_start.range(..=address).next_back()?;
        region.room(address).map(|_| region)
    }

    /// Driver, `vpu_device_context.cpp`, `freeMemAlloc`: by the first address, and for pages of the caller by any
    /// inside.
    fn take(&mut self, address: usize) -> Option<Arc<Region>> {
        let start = self.find(address)?.start;
        let is_whole = start == address;
        let region = self.by_start.get(&start)?;
        if !is_whole && !region.is_imported() {
            return None;
        }
        let region = self.by_start.remove(&start)?;
        let bytes = match region.is_imported() {
            true => &mut self.imported_bytes,
            false => &mut self.own_bytes,
        };
        *bytes = bytes.saturating_sub(region.bytes);
        Some(region)
    }
}

/// Allocates memory, at page boundaries and with zeros in it, and returns its address.
///
/// Driver, `level_zero_driver/source/memory.cpp`, `checkMemInputs` and `allocMemory`; the alignment is checked, and not
/// used.
///
/// # Errors
///
/// [`UNSUPPORTED_SIZE`], [`UNSUPPORTED_ALIGNMENT`], or [`OUT_OF_DEVICE_MEMORY`].
pub(crate) fn allocate(bytes: usize, alignment: usize) -> Result<usize, Code> {
    if bytes == 0 {
        return Err(UNSUPPORTED_SIZE);
    }
    if alignment != 0 && !alignment.is_power_of_two() {
        return Err(UNSUPPORTED_ALIGNMENT);
    }
    if fails(FaultPoint::Memory) {
        return Err(OUT_OF_DEVICE_MEMORY);
    }
    let layout = Layout::from_size_align(bytes, PAGE_BYTES);
    let layout = layout.map_err(|_| OUT_OF_DEVICE_MEMORY)?;
    // SAFETY: the layout is of one byte at least.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(OUT_OF_DEVICE_MEMORY);
    }
    let start = start.expose_provenance();
    lock(&KNOWN).add(Region::new(start, bytes, RegionKind::Own(layout)));
    Ok(start)
}

/// Imports pages of the caller.
///
/// Driver, `level_zero_driver/source/memory.cpp`, `importUserPtr`: the first address must not be known, and pages are
/// pinned read-only if the write-combined flag is set. `createBufferObjectFromUserPtr` rounds to whole pages.
///
/// # Errors
///
/// [`INVALID_NULL_POINTER`], [`UNSUPPORTED_SIZE`], [`UNSUPPORTED_FEATURE`] without that part of the machine,
/// [`INVALID_ARGUMENT`] for pages that are known, [`OUT_OF_DEVICE_MEMORY`] if they cannot be pinned.
pub(crate) fn import(start: usize, bytes: usize, is_read_only: bool) -> Result<(), Code> {
    if start == 0 {
        return Err(INVALID_NULL_POINTER);
    }
    if bytes == 0 {
        return Err(UNSUPPORTED_SIZE);
    }
    if !has(MachinePart::PageImport) {
        return Err(UNSUPPORTED_FEATURE);
    }
    // Held until the end: nobody else imports the same pages meanwhile.
    let mut known = lock(&KNOWN);
    if known.find(start).is_some() {
        return Err(INVALID_ARGUMENT);
    }
    let first = start - start % PAGE_BYTES;
    let end = start.checked_add(bytes).ok_or(OUT_OF_DEVICE_MEMORY)?;
    let end = end
        .checked_next_multiple_of(PAGE_BYTES)
        .ok_or(OUT_OF_DEVICE_MEMORY)?;
    if fails(FaultPoint::Import) || !can_be_pinned(first, end - first, !is_read_only) {
        return Err(OUT_OF_DEVICE_MEMORY);
    }
    let kind = match is_read_only {
        true => RegionKind::ImportedToRead,
        false => RegionKind::Imported,
    };
    known.add(Region::new(first, end - first, kind));
    Ok(())
}

/// The buffer that an address is in.
///
/// # Errors
///
/// [`NOT_AVAILABLE`] for an unknown address (driver, `level_zero_driver/source/memory.cpp`, `getMemAllocProperties`).
pub(crate) fn region_of(address: usize) -> Result<Arc<Region>, Code> {
    let known = lock(&KNOWN);
    known.find(address).map(Arc::clone).ok_or(NOT_AVAILABLE)
}

/// Memory in a buffer that the device knows, for one port of a run.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) region: Arc<Region>,
}

impl Located {
    /// Finds `bytes` bytes from an address on.
    ///
    /// # Errors
    ///
    /// [`NOT_AVAILABLE`] if they are not all in one buffer (driver, `ext/elf_parser.cpp`, `applyInputOutputs`).
    pub(crate) fn of(address: usize, bytes: usize) -> Result<Self, Code> {
        let region = region_of(address)?;
        match region.room(address) {
            Some(room) if room >= bytes => Ok(Self {
                address,
                bytes,
                region,
            }),
            _ => Err(NOT_AVAILABLE),
        }
    }

    /// The bytes.
    ///
    /// # Safety
    ///
    /// Nobody writes them for as long as the result is there.
    pub(crate) unsafe fn as_bytes(&self) -> &[u8] {
        let first = ptr::with_exposed_provenance(self.address);
        // SAFETY: the buffer is alive as long as `region`, has `bytes` bytes from here on, and is initialised: it was
        // allocated with zeros, or is of pages that the caller keeps mapped until it frees them.
        unsafe { std::slice::from_raw_parts(first, self.bytes) }
    }

    /// Writes bytes, as many as there is room for.
    ///
    /// # Safety
    ///
    /// Nobody else reads or writes the memory meanwhile.
    pub(crate) unsafe fn write(&self, bytes: &[u8]) {
        let first = ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: as in `as_bytes`, and `copy` lets `bytes` be of the same buffer.
        unsafe { ptr::copy(bytes.as_ptr(), first, bytes.len().min(self.bytes)) }
    }
}

/// Forgets a buffer; its memory is freed once no job uses it.
///
/// # Errors
///
/// [`INVALID_ARGUMENT`] for an address that none has.
pub(crate) fn forget(address: usize) -> Result<Arc<Region>, Code> {
    lock(&KNOWN).take(address).ok_or(INVALID_ARGUMENT)
}

/// Bytes that are allocated here.
pub(crate) fn own_bytes() -> usize {
    lock(&KNOWN).own_bytes
}

/// Counts the buffers that callers hold.
pub(crate) fn held() -> Held {
    let known = lock(&KNOWN);
    let imported = known
        .by_start
        .values()
        .filter(|region| region.is_imported());
    let imported = imported.count();
    Held {
        own: known.by_start.len() - imported,
        imported,
        own_bytes_peak: known.own_bytes_peak,
        imported_bytes_peak: known.imported_bytes_peak,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: usize, bytes: usize, kind: RegionKind) -> Region {
        Region::new(start, bytes, kind)
    }

    #[test]
    fn an_address_is_found_within_its_buffer_and_not_behind() {
        let mut known = Known::default();
        known.add(region(0x1000, 0x1000, RegionKind::Imported));
        known.add(region(0x4000, 0x1000, RegionKind::ImportedToRead));
        let id = |address| known.find(address).map(|region| region.id);
        assert_eq!(id(0x1000), id(0x1fff));
        assert_eq!(id(0x0fff), None);
        assert_eq!(id(0x2000), None);
        assert_ne!(id(0x4000), id(0x1000));
        assert!(!known.find(0x4000).unwrap().is_writable());
        assert_eq!(known.find(0x1ff0).unwrap().room(0x1ff0), Some(16));
    }

    #[test]
    fn pages_of_the_caller_are_given_back_by_any_address_inside() {
        let mut known = Known::default();
        known.add(region(0x1000, 0x2000, RegionKind::Imported));
        assert!(known.take(0x3000).is_none());
        assert_eq!(known.take(0x1800).unwrap().start, 0x1000);
        assert_eq!(
            (known.imported_bytes, known.imported_bytes_peak),
            (0, 0x2000)
        );
    }

    #[test]
    fn memory_of_its_own_is_given_back_by_its_first_address() {
        let start = allocate(100, 64).unwrap();
        assert_eq!(start % PAGE_BYTES, 0);
        assert_eq!(forget(start + 1).unwrap_err(), INVALID_ARGUMENT);
        let used = region_of(start + 99).unwrap();
        assert_eq!(used.room(start + 90), Some(10));
        forget(start).unwrap();
        assert_eq!(region_of(start).unwrap_err(), NOT_AVAILABLE);
        assert_eq!(allocate(0, 0).unwrap_err(), UNSUPPORTED_SIZE);
        assert_eq!(allocate(8, 3).unwrap_err(), UNSUPPORTED_ALIGNMENT);
    }
}
