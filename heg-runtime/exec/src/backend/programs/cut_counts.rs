//! Counts of the products that a pair has cut, by what said how.

use std::sync::atomic::{AtomicU64, Ordering};

/// Products that two devices shared, or that one of them had whole, by what said so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CutCounts {
    /// Pieces of products that `heg profile` ran on these devices.
    pub measured: u64,
    /// The bundle's own partition for the machine.
    pub written: u64,
    /// Speeds that were measured while orders ran.
    pub online: u64,
}

/// The source of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CutSource {
    Measured,
    Written,
    Online,
}

/// Counts while devices run.
#[derive(Debug, Default)]
pub(super) struct CutCounter {
    measured: AtomicU64,
    written: AtomicU64,
    online: AtomicU64,
}

impl CutCounter {
    pub(super) fn count(&self, source: CutSource) {
        let counted = match source {
            CutSource::Measured => &self.measured,
            CutSource::Written => &self.written,
            CutSource::Online => &self.online,
        };
        counted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> CutCounts {
        let read = |counted: &AtomicU64| counted.load(Ordering::Relaxed);
        CutCounts {
            measured: read(&self.measured),
            written: read(&self.written),
            online: read(&self.online),
        }
    }
}
