//! An overdue prompt takes turns with reactive decoding on the lane of dynamic kernels (§4.5).

use super::AgentXpu;
use super::prefills::Slot;
use crate::costs::Costs;
use crate::request::Lane;

/// The state of the turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Whether decoding is next.
    pub(super) decode_is_next: bool,
}

impl<C: Costs> AgentXpu<C> {
    /// Whether the next prefill kernel of the lane is an overdue request's, beside reactive decoding: its whole
    /// prefill runs there, and would suspend the reactive execution if it went first each time. If proactive prompts
    /// have their share of the lane, no turns are needed.
    pub(super) fn takes_turns(&self, lane: Lane) -> bool {
        let overdue = self.prefills.holder(Slot::Overdue);
        let shares =
            self.policy.decode.proactive_share.is_some() && !self.lanes.is_present(Lane::Npu);
        overdue.is_some()
            && !shares
            && self.decodes_reactive()
            && self.next_prefill(lane).map(|next| next.id) == overdue
    }
}
