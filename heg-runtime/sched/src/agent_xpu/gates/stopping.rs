//! A request does not decode while a lane is to stop what it ran of it (v1 6.5).

use super::{AgentXpu, Costs, Gate, Proposal};

#[derive(Debug, Default)]
pub(super) struct Stopping;

impl<C: Costs> Gate<C> for Stopping {
    fn holds_back(&self, scheduler: &AgentXpu<C>, proposal: Proposal<'_>) -> bool {
        let Proposal::Token { entry } = proposal else {
            return false;
        };
        !scheduler.lanes.stops(entry.id()).is_empty()
    }
}
