//! The progress of a request on a single device.

use crate::ledger;

/// A request in this scheduler's ledger.
pub(super) type Entry = ledger::Entry<Progress>;

/// State of a request that only this scheduler needs.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// Tokens of its prompt that are in the cache; the ledger counts those of its answer.
    pub(super) cached: u32,
    /// Whether its whole prompt is in the cache, so that it gives a token in each iteration.
    pub(super) decodes: bool,
}

impl ledger::Progress for Progress {
    fn cached(&self, context: u32) -> u32 {
        match self.decodes {
            true => context.saturating_sub(1),
            false => self.cached,
        }
    }

    fn decodes(&self) -> bool {
        self.decodes
    }
}

impl Entry {
    /// Notes that this number of leading tokens of the prompt is in the cache.
    pub(super) fn reach(&mut self, cached: u32) {
        self.own = Progress {
            cached,
            decodes: cached >= self.prompt_tokens,
        };
    }
}
