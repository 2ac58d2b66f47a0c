//! The home of the memory of kernels, so that an accelerator works on it without copies.
//!
//! On most devices host memory will do. An NPU is lent each range once, for as long as that lives, or gives it out of its
//! own (`heg_openvino::DeviceMemory`). Where it does neither, host memory serves all the same: its plugin then copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use heg_openvino::{DeviceMemory, HostBuffer, OpenvinoError};

/// The place of buffers of rows and of KV caches. Clones share it.
#[derive(Clone, Default)]
pub struct MemoryHome(Option<Arc<Shared>>);

struct Shared {
    device: DeviceMemory,
    way: Way,
    told: Told,
}

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
        Self(Some(Arc::new(Shared {
            device,
            way,
            told: Told::default(),
        })))
    }

    /// Whether this is host memory that no device has to know.
    pub fn is_host(&self) -> bool {
        self.0.is_none()
    }

    /// Bytes that were allocated here and that the device knows, and those that it did not take, which are copied.
    pub fn bytes(&self) -> (u64, u64) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let told = self.0.as_ref().map(|shared| &shared.told);
        told.map_or((0, 0), |told| {
            (count(&told.known_bytes), count(&told.refused_bytes))
        })
    }

    /// Allocates zeroed memory.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<HostBuffer, OpenvinoError> {
        let Some(shared) = &self.0 else {
            return HostBuffer::new(bytes);
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
