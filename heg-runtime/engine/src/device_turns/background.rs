//! The time that background jobs of each engine have had a lane: the engine with the least comes first (Goyal et al., Start-time
//! Fair Queueing, SIGCOMM 1996), so that short work of one model does not wait for long work of another.

use std::collections::BTreeMap;
use std::time::Duration;

use super::EngineNumber;

/// The time that each engine's background jobs have had the lane.
#[derive(Debug, Default)]
pub(super) struct BackgroundTime {
    had: BTreeMap<EngineNumber, Duration>,
    /// The time that the engine whose job ran last had had before it.
    level: Duration,
}

impl BackgroundTime {
    /// An engine has a job. However long it had none, it is at most [`CREDIT`] ahead of the others.
    pub(super) fn enter(&mut self, engine: EngineNumber) {
        let least = self.level.saturating_sub(CREDIT);
        let had = self.had.entry(engine).or_default();
        *had = least.max(*had);
    }

    /// A job of the engine had the lane for a time.
    pub(super) fn ran(&mut self, engine: EngineNumber, time: Duration) {
        let had = self.had.entry(engine).or_default();
        self.level = self.level.max(*had);
        *had += time;
    }

    /// The time that counts as the engine's.
    pub(super) fn had(&self, engine: EngineNumber) -> Duration {
        self.had.get(&engine).copied().unwrap_or_default()
    }
}

/// Time that an engine that had no jobs may have before others. Chosen: vectors of some tens of passages.
pub(super) const CREDIT: Duration = Duration::from_millis(100);
