//! Kernels run side by side as far as the machine's power budget goes (v1 6.2): one alone always may, and what draws an
//! unknown power counts for nothing.

use super::{AgentXpu, Costs, Gate, Lane, Proposal};
use crate::costs::WorkStage;
use crate::mechanism::Mechanism;

#[derive(Debug, Default)]
pub(super) struct Power;

impl<C: Costs> Gate<C> for Power {
    fn holds_back(&self, scheduler: &AgentXpu<C>, proposal: Proposal<'_>) -> bool {
        let Some(budget) = scheduler.policy.limits.power_watts_max else {
            return false;
        };
        let watts = |lane: Lane, stage| scheduler.costs.watts(lane, stage).unwrap_or(0.0);
        let (own, stage) = match proposal {
            Proposal::Prompt { lane, .. } => (lane, WorkStage::Prefill),
            Proposal::Iteration { lane, .. } => (lane, WorkStage::Decode),
            Proposal::Token { .. } => return false,
        };
        // What runs on the lane itself gives way.
        let running = scheduler.lanes.all_running();
        let others = running.filter(|(lane, _)| *lane != own);
        let drawn: f64 = others
            .map(|(lane, it)| watts(lane, WorkStage::of(&it.work)))
            .sum();
        let all = drawn + watts(own, stage);
        let holds_back = drawn > 0.0 && all > f64::from(budget);
        if holds_back {
            scheduler.tally.note(Mechanism::PowerBudget);
        }
        holds_back
    }
}
