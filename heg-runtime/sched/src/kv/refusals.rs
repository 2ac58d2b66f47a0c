//! Refused reservations: memory that the budget has and the machine lacks.

use super::KvBudget;

/// Number of times that a request's memory is asked for. Chosen: every remedy is tried each time, and no request
/// waits for long behind one that cannot be helped.
const ATTEMPTS: u32 = 3;

/// A request's consecutive refusals, and the condition for the next attempt.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Refusals {
    count: u32,
    /// Times that memory had become free by the last refusal ([`KvBudget::releases`]).
    waits_since: Option<u64>,
}

impl Refusals {
    /// Counts a refusal; returns false if no further attempt is worthwhile.
    pub(crate) fn again(&mut self) -> bool {
        self.count += 1;
        self.count < ATTEMPTS
    }

    /// Postpones the next attempt until memory has become free.
    pub(crate) fn wait(&mut self, kv: &KvBudget) {
        self.waits_since = Some(kv.releases);
    }

    /// Whether an attempt would be in vain: no memory became free since the last one, and some is in use.
    pub(crate) fn wait_for(&self, kv: &KvBudget) -> bool {
        self.waits_since == Some(kv.releases) && kv.used > kv.held()
    }
}
