//! The keys and values that were copied between the host and a device's own memory: none where both work on the same.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of keys and values, since the start.
#[derive(Debug, Default)]
pub(super) struct Moved {
    brought: AtomicU64,
    taken: AtomicU64,
}

/// Bytes of keys and values that were copied, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MovedCaches {
    /// To the device.
    pub to_device_bytes: u64,
    /// To the host.
    pub to_host_bytes: u64,
}

impl Moved {
    pub(super) fn note_brought(&self, bytes: usize) {
        self.brought.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn note_taken(&self, bytes: usize) {
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn so_far(&self) -> MovedCaches {
        MovedCaches {
            to_device_bytes: self.brought.load(Ordering::Relaxed),
            to_host_bytes: self.taken.load(Ordering::Relaxed),
        }
    }
}
