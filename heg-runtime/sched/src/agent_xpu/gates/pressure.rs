//! Memory pressure decides whether a kernel starts beside what runs (v1 6.4, Algorithm 1).

use super::{AgentXpu, Costs, Gate, Proposal};
use crate::mechanism::Mechanism;
use crate::request::Class;

#[derive(Debug, Default)]
pub(super) struct Pressure;

impl<C: Costs> Gate<C> for Pressure {
    fn holds_back(&self, scheduler: &AgentXpu<C>, proposal: Proposal<'_>) -> bool {
        let (cost, class) = match proposal {
            Proposal::Prompt { entry, cost, .. } => (cost, entry.class()),
            Proposal::Iteration { cost, class, .. } => (cost, class),
            Proposal::Token { .. } => return false,
        };
        let Some(tiers) = scheduler.policy.pressure else {
            return false;
        };
        let current = scheduler.lanes.pressure();
        if current == 0.0 {
            return false;
        }
        let note = |holds_back: bool| {
            if holds_back {
                scheduler.tally.note(Mechanism::Pressure);
            }
            holds_back
        };
        if current + cost.bandwidth > tiers.high {
            return note(true);
        }
        let both_memory_bound = || {
            let mut running = scheduler.lanes.all_running();
            cost.bandwidth >= tiers.medium
                && running.any(|(_, running)| running.cost.bandwidth >= tiers.medium)
        };
        note(class == Class::Proactive && current >= tiers.medium && both_memory_bound())
    }
}
