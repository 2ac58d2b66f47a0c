//! The home of the memory of kernels, so that an accelerator works on it without copies.
//!
//! On most devices host memory will do. An NPU is lent each range once, for as long as that lives, or gives it out of its
//! own (`heg_openvino::DeviceMemory`). Where it does neither, host memory serves all the same: its plugin then copies. A GPU
//! whose memory is the host's works on KV caches where they are (`heg_gpu::SharedMemory`), and as half of a pair on rows of
//! activations, too; alone it has copies of these.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use heg_gpu::{CacheMemory, GpuDevice, SharedMemory};
use heg_openvino::{DeviceMemory, HostBuffer, OpenvinoError};

use super::region::Region;

/// The place of buffers of rows and of KV caches. Clones share it.
#[derive(Clone, Default)]
pub struct MemoryHome(Place);

#[derive(Clone, Default)]
enum Place {
    #[default]
    Host,
    Npu(Arc<Shared>),
    Gpu(Arc<GpuDevice>, Rows),
}

/// The way in which rows of activations reach a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// They are the host's, and copied at each pass.
    Copied,
    /// They are in memory that both work on, as halves of a pair need it.
    Shared,
}

struct Shared {
    device: DeviceMemory,
    way: Way,
    told: Told,
}

/// Rows of a GPU's cache that are allocated at a time. Chosen: a sequence that grows by a token mostly keeps its memory.
const GPU_ROWS: usize = 256;

/// The way in which a device gets to know memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Pages of this process are lent to it.
    Lent,
    /// The device allocates them.
    Own,
}

/// Bytes by what became of them, since the start.
#[derive(Default)]
struct Told {
    known_bytes: AtomicU64,
    refused_bytes: AtomicU64,
}

impl MemoryHome {
    /// Memory that a device knows.
    pub(crate) fn on(device: DeviceMemory, way: Way) -> Self {
        Self(Place::Npu(Arc::new(Shared {
            device,
            way,
            told: Told::default(),
        })))
    }

    /// Memory that a GPU works on, too, if its memory is the host's.
    pub(crate) fn with_gpu(device: &Arc<GpuDevice>, rows: Rows) -> Self {
        match device.cache_memory() {
            CacheMemory::Copied => Self::default(),
            CacheMemory::Imported | CacheMemory::Shared => {
                Self(Place::Gpu(Arc::clone(device), rows))
            }
        }
    }

    /// Whether this is host memory that no device has to know.
    pub fn is_host(&self) -> bool {
        matches!(self.0, Place::Host)
    }

    /// The better home of two: an NPU copies all rows at each inference, a GPU some rows when a request passes to it.
    pub(crate) fn or(self, other: Self) -> Self {
        match (&self.0, &other.0) {
            (Place::Host, _) | (Place::Gpu(..), Place::Npu(_)) => other,
            _ => self,
        }
    }

    /// Rows of caches are allocated in multiples of this.
    pub(super) fn cache_rows_step(&self) -> usize {
        match self.0 {
            Place::Gpu(..) => GPU_ROWS,
            Place::Host | Place::Npu(_) => 1,
        }
    }

    /// Memory for a cache, if this is the home of a GPU that has some left.
    pub(super) fn shared_with_gpu(&self, bytes: usize) -> Option<SharedMemory> {
        match &self.0 {
            Place::Gpu(device, _) if !device.is_lost() => {
                device.shared_memory(bytes as u64).ok().flatten()
            }
            // A device out of memory costs copies, and no answer.
            Place::Gpu(..) | Place::Host | Place::Npu(_) => None,
        }
    }

    /// Bytes that were allocated here and that the device knows, and those that it did not take, which are copied.
    pub fn bytes(&self) -> (u64, u64) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        match &self.0 {
            Place::Npu(shared) => {
                let told = &shared.told;
                (count(&told.known_bytes), count(&told.refused_bytes))
            }
            Place::Host | Place::Gpu(..) => (0, 0),
        }
    }

    /// Allocates memory: zeroed, unless a GPU works on it, too.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<HostBuffer, OpenvinoError> {
        let shared = match &self.0 {
            Place::Npu(shared) => shared,
            Place::Gpu(_, Rows::Shared) => match self.shared_with_gpu(bytes) {
                Some(shared) => return HostBuffer::shared(Arc::new(Region::Gpu(shared)), bytes),
                None => return HostBuffer::new(bytes),
            },
            Place::Gpu(_, Rows::Copied) | Place::Host => return HostBuffer::new(bytes),
        };
        let known = match shared.way {
            Way::Lent => HostBuffer::lent(bytes, &shared.device),
            Way::Own => HostBuffer::of_device(bytes, &shared.device),
        };
        let count = match known {
            Ok(_) => &shared.told.known_bytes,
            Err(_) => &shared.told.refused_bytes,
        };
        count.fetch_add(bytes as u64, Ordering::Relaxed);
        // A device out of memory costs copies, and no answer.
        known.or_else(|_| HostBuffer::new(bytes))
    }
}

#[cfg(test)]
mod tests {
    use heg_openvino::Memory;

    use super::*;

    #[test]
    fn host_memory_needs_no_device() {
        let home = MemoryHome::default();
        assert!(home.is_host());
        assert_eq!(home.buffer(100).unwrap().len(), 100);
        assert_eq!(home.bytes(), (0, 0));
    }
}
