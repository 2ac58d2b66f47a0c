//! How far a request is on a single device.

use crate::ledger;

/// A request in this scheduler's ledger.
pub(super) type Entry = ledger::Entry<Progress>;

/// What only this scheduler knows of a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// Tokens of its prompt that are in the cache; what its answer adds is counted by the ledger.
    pub(super) cached: u32,
    /// Whether all of its prompt is there, so that it gives a token in each iteration.
    pub(super) decodes: bool,
}

impl ledger::Progress for Progress {
    fn cached(&self, context: u32) -> u32 {
        match self.decodes {
            true => context.saturating_sub(1),
            false => self.cached,
        }
    }
}

impl Entry {
    /// Counts leading tokens of the prompt as there.
    pub(super) fn reach(&mut self, cached: u32) {
        self.own = Progress {
            cached,
            decodes: cached >= self.prompt_tokens,
        };
    }
}
