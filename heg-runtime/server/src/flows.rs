//! The names that clients give their flows.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::account::Scope;
use heg_runtime::engine::Engine;
use heg_sched::FlowId;

/// Creates flows, and is told when they end.
pub(super) trait FlowSource {
    /// Creates a flow.
    fn new_flow(&self) -> FlowId;
    /// Ends a flow: it has no further calls.
    fn end_flow(&self, flow: FlowId);
}

impl FlowSource for Engine {
    fn new_flow(&self) -> FlowId {
        self.new_flow()
    }

    fn end_flow(&self, flow: FlowId) {
        self.end_flow(flow);
    }
}

/// The name of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum FlowName {
    /// A `flow_id`.
    Given(String),
    /// A `supersede_key` without a `flow_id`: requests that supersede each other share their prefix.
    Superseding(String),
    /// The name of a kept conversation: responses that continue each other share their prefix.
    Conversation(String),
}

/// Flows by name. Each client has its own namespace with a bounded number of names; the least recently used one is
/// dropped first.
#[derive(Debug, Default)]
pub(super) struct Flows {
    known: Mutex<BTreeMap<Scope, Known>>,
}

/// The flows of one client.
#[derive(Debug, Default)]
struct Known {
    by_name: HashMap<FlowName, (FlowId, u64)>,
    /// Number of uses so far.
    uses: u64,
}

impl Flows {
    /// Returns the client's flow of a name, and creates it if there is none.
    pub(super) fn named(&self, engine: &impl FlowSource, scope: Scope, name: FlowName) -> FlowId {
        let mut known = self.lock();
        let known = known.entry(scope).or_default();
        known.uses += 1;
        let now = known.uses;
        if let Some((flow, used)) = known.by_name.get_mut(&name) {
            *used = now;
            return *flow;
        }
        if known.by_name.len() >= FLOWS_MAX {
            let oldest = known.by_name.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone())
                && let Some((flow, _)) = known.by_name.remove(&oldest)
            {
                engine.end_flow(flow);
            }
        }
        let flow = engine.new_flow();
        known.by_name.insert(name, (flow, now));
        flow
    }

    /// Ends a client's flow; `None` if it has none of that name.
    pub(super) fn end(
        &self,
        engine: &impl FlowSource,
        scope: Scope,
        name: &FlowName,
    ) -> Option<()> {
        let (flow, _) = self.lock().get_mut(&scope)?.by_name.remove(name)?;
        engine.end_flow(flow);
        Some(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Scope, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maximum number of flows of a client. Chosen: more conversations than a machine has memory for caches.
const FLOWS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[derive(Default)]
    struct Source {
        next: Cell<u64>,
        ended: RefCell<Vec<FlowId>>,
    }

    impl FlowSource for Source {
        fn new_flow(&self) -> FlowId {
            FlowId(self.next.replace(self.next.get() + 1))
        }

        fn end_flow(&self, flow: FlowId) {
            self.ended.borrow_mut().push(flow);
        }
    }

    fn given(name: usize) -> FlowName {
        FlowName::Given(name.to_string())
    }

    #[test]
    fn a_client_neither_sees_nor_ends_the_flows_of_another() {
        let (flows, source) = (Flows::default(), Source::default());
        let (ours, theirs) = (Scope::Client(0), Scope::Client(1));
        let flow = flows.named(&source, ours, given(0));
        assert_ne!(flow, flows.named(&source, theirs, given(0)));
        assert_eq!(flows.end(&source, Scope::Loopback, &given(0)), None);
        // Clients cannot get around the limit by creating many flows.
        for name in 0..3 * FLOWS_MAX {
            flows.named(&source, theirs, given(name));
        }
        assert_eq!(flow, flows.named(&source, ours, given(0)));
        assert!(!source.ended.borrow().contains(&flow));
        assert_eq!(source.ended.borrow().len(), 2 * FLOWS_MAX);
        assert_eq!(flows.end(&source, ours, &given(0)), Some(()));
        assert!(source.ended.borrow().contains(&flow));
    }
}
