//! A proactive prompt that fills a bubble beside a reactive one is out of the way when the bubble ends (v1 6.3).

use super::{AgentXpu, Costs, Gate, Proposal};
use crate::request::{Class, Micros};

#[derive(Debug, Default)]
pub(super) struct Bubble;

impl<C: Costs> Gate<C> for Bubble {
    fn holds_back(&self, scheduler: &AgentXpu<C>, proposal: Proposal<'_>) -> bool {
        let Proposal::Prompt { entry, cost, .. } = proposal else {
            return false;
        };
        if scheduler.prefills.backfill != Some(entry.id()) {
            return false;
        }
        let ends = scheduler.now + Micros::from_f64(cost.latency_us);
        let running = scheduler.lanes.all_running();
        let reactive = running.filter(|(_, running)| running.class == Class::Reactive);
        let until = reactive.map(|(_, running)| running.ends).max();
        until.is_none_or(|until| ends > until)
    }
}
