//! The iGPU rests after each launch, so that it works for a share of the time only and graphics has it meanwhile (4.1).

use super::{AgentXpu, Costs, Gate, Lane, Micros, Proposal};
use crate::mechanism::Mechanism;

#[derive(Debug, Default)]
pub(super) struct Graphics {
    /// When the iGPU has rested enough.
    rests_until: Micros,
}

impl<C: Costs> Gate<C> for Graphics {
    fn holds_back(&self, scheduler: &AgentXpu<C>, proposal: Proposal<'_>) -> bool {
        let on_igpu = match proposal {
            Proposal::Prompt { lane, .. } | Proposal::Iteration { lane, .. } => lane == Lane::Igpu,
            Proposal::Token { .. } => false,
        };
        let holds_back = on_igpu && scheduler.now < self.rests_until;
        if holds_back {
            scheduler.tally.note(Mechanism::IgpuShare);
        }
        holds_back
    }

    fn opens_at(&self, scheduler: &AgentXpu<C>) -> Option<Micros> {
        (self.rests_until > scheduler.now).then_some(self.rests_until)
    }
}

impl<C: Costs> AgentXpu<C> {
    /// A launch takes so long: afterwards its lane rests.
    pub(in crate::agent_xpu) fn rest_after(&mut self, lane: Lane, latency: Micros) {
        let percent = self.policy.limits.igpu_percent_max;
        if let Some(percent) = percent.filter(|_| lane == Lane::Igpu) {
            let whole = Micros(latency.0.saturating_mul(100) / u64::from(percent.max(1)));
            self.gates.graphics.rests_until = self.now + whole;
        }
    }
}
