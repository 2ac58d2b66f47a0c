//! Memory that the host and a device both work on where it lies: for keys and values, which pass between lanes of both.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::{MmapOptions, MmapRaw};

use crate::device::GpuDevice;
use crate::error::GpuError;
use crate::region::GpuRegion;
use crate::vulkan::{Device, Kind, Memory};

/// The way in which keys and values are in memory that the host works on, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMemory {
    /// Pages of the host, which the device reads and writes where they lie.
    Imported,
    /// Memory of the device, which the host reads and writes where it lies.
    Shared,
    /// Memory of the device alone: rows are copied.
    Copied,
}

impl fmt::Display for CacheMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Imported => "imported",
            Self::Shared => "shared",
            Self::Copied => "copied",
        })
    }
}

/// Memory that the host and the device both reach, by addresses of their own. What it holds at first is not said.
pub struct SharedMemory {
    region: GpuRegion,
    start: NonNull<u8>,
}

// SAFETY: the address is that of the region's memory, which any thread may use; nothing is read or written here.
#[allow(unsafe_code, reason = "an address that is only handed out")]
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "an address that is only handed out")]
unsafe impl Sync for SharedMemory {}

impl GpuDevice {
    /// Memory for keys and values; `None` if the device works on none that the host works on, too.
    ///
    /// # Errors
    ///
    /// Error of the driver, above all that there is no more memory.
    pub fn shared_memory(&self, bytes: u64) -> Result<Option<SharedMemory>, GpuError> {
        let made = shared(self.device(), bytes, self.cache_memory())?;
        if let Some(made) = &made {
            self.views.note(made);
        }
        Ok(made)
    }

    /// The device's view of bytes of the host; `None` if they are not all in one [`shared_memory`](Self::shared_memory)
    /// that lives.
    pub fn region_at(&self, start: *const u8, bytes: usize) -> Option<GpuRegion> {
        self.views.find(start.addr(), bytes)
    }
}

/// Memory that host and device both work on, by the host's addresses.
#[derive(Default)]
pub(crate) struct Views(Mutex<BTreeMap<usize, (usize, Weak<Memory>)>>);

impl Views {
    fn note(&self, made: &SharedMemory) {
        let mut views = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        views.retain(|_, (_, memory)| memory.strong_count() > 0);
        let memory = Arc::downgrade(&made.region.memory());
        views.insert(made.start.as_ptr().addr(), (made.len(), memory));
    }

    fn find(&self, start: usize, bytes: usize) -> Option<GpuRegion> {
        let views = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, (all, memory)) = views.range(..=start).next_back()?;
        let before = start - first;
        let fits = before.checked_add(bytes).is_some_and(|end| end <= *all);
        let memory = memory.upgrade().filter(|_| fits)?;
        let whole = GpuRegion::whole(memory);
        whole.part(before as u64, bytes as u64).ok()
    }
}

/// Memory of the way that is asked for.
pub(crate) fn shared(
    device: &Arc<Device>,
    bytes: u64,
    way: CacheMemory,
) -> Result<Option<SharedMemory>, GpuError> {
    let memory = match way {
        CacheMemory::Imported => pages(device, bytes)?,
        CacheMemory::Shared => Memory::new(device, bytes, Kind::Shared)?,
        CacheMemory::Copied => return Ok(None),
    };
    let start = memory.mapped();
    let region = GpuRegion::whole(memory);
    Ok(start.map(|start| SharedMemory { region, start }))
}

/// Fresh pages of the host as memory of the device.
#[allow(unsafe_code, reason = "the device works on pages of the host")]
fn pages(device: &Arc<Device>, bytes: u64) -> Result<Arc<Memory>, GpuError> {
    let bytes = bytes.max(1).next_multiple_of(PAGES_BYTES);
    let none = |_| GpuError::NoPages { bytes };
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let map = MmapOptions::new().len(size).map_anon().map_err(none)?;
    let map = Arc::new(MmapRaw::from(map));
    let start = map.as_ptr();
    // SAFETY: the mapping begins at a page and has whole pages, which stay as long as the owner and are no one else's.
    unsafe { Memory::import_written(device, start, bytes, map) }
}

/// Imports are a multiple of this: no driver that was seen asks for more than a page.
pub(crate) const PAGES_BYTES: u64 = 4096;

impl SharedMemory {
    /// The device's view of it.
    pub fn region(&self) -> &GpuRegion {
        &self.region
    }

    /// The first of its [`len`](Self::len) bytes, which may be read and written while the device does not work on them.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        usize::try_from(self.region.bytes()).unwrap_or(usize::MAX)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is memory of this device.
    pub fn is_on(&self, device: &GpuDevice) -> bool {
        self.region.memory().is_on(device.device())
    }
}
