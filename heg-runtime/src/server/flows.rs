//! Names that clients give their flows.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::engine::Engine;
use crate::sched::FlowId;

/// What a flow is known by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum FlowName {
    /// A `flow_id`.
    Given(String),
    /// A `supersede_key` without a `flow_id`: the requests that take each other's place share their prefix.
    Superseding(String),
}

/// Flows by name: a bounded number, of which the one unused for longest goes first.
#[derive(Debug, Default)]
pub(super) struct Flows {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    by_name: HashMap<FlowName, (FlowId, u64)>,
    /// Number of uses so far.
    uses: u64,
}

impl Flows {
    /// The flow of a name, new if there is none.
    pub(super) fn named(&self, engine: &Engine, name: FlowName) -> FlowId {
        let mut known = self.lock();
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

    /// Ends a flow; `None` if there is none of that name.
    pub(super) fn end(&self, engine: &Engine, name: &FlowName) -> Option<()> {
        let (flow, _) = self.lock().by_name.remove(name)?;
        engine.end_flow(flow);
        Some(())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Chosen: more conversations than a machine's memory keeps caches for.
const FLOWS_MAX: usize = 1024;
