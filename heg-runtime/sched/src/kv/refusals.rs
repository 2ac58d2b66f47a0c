//! Memory that the budget has and the machine has not.

use super::KvBudget;

/// How often a request's memory is asked for. Chosen: what helps is tried each time, and nobody waits for long behind
/// a request that cannot be helped.
const ATTEMPTS: u32 = 3;

/// How often in a row a request's reservation was refused, and what it waits for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Refusals {
    count: u32,
    /// Memory that became free until the last refusal ([`KvBudget::releases`]).
    waits_since: Option<u64>,
}

impl Refusals {
    /// One more; false if it was the last that is worth it.
    pub(crate) fn again(&mut self) -> bool {
        self.count += 1;
        self.count < ATTEMPTS
    }

    /// It is tried again when memory has become free.
    pub(crate) fn wait(&mut self, kv: &KvBudget) {
        self.waits_since = Some(kv.releases);
    }

    /// Whether it would be in vain to try now: since the last time no memory became free, and somebody has some.
    pub(crate) fn wait_for(&self, kv: &KvBudget) -> bool {
        self.waits_since == Some(kv.releases) && kv.used > kv.held()
    }
}
