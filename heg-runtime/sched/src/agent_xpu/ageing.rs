//! When a proactive prompt has waited long enough to have the iGPU beside a reactive one (§4.5, `ageing.prompts_from`).
//!
//! An overdue request has a place in every iteration. Its prompt has the iGPU then too, or, where the policy counts from
//! its turn, when it has waited as long since no other proactive prompt is before it: what reactive prompts lose by that
//! helps those that they hold up, and not those that wait for each other.

use heg_spec::policy::AgeingStart;

use super::AgentXpu;
use crate::costs::Costs;
use crate::mechanism::Mechanism;
use crate::request::{Micros, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// It is the turn of the proactive prompt that nobody of its class is before.
    pub(super) fn note_turn(&mut self) {
        let front = || self.prefills.proactive.front().copied();
        let next = self.prefills.buffered.or_else(front);
        if let Some(entry) = next.and_then(|id| self.ledger.get_mut(id)) {
            entry.own.turn.get_or_insert(self.now);
        }
    }

    /// Whether the prompt of a request is to have the iGPU beside a reactive one.
    pub(super) fn presses(&self, id: RequestId) -> bool {
        let Some((ageing, entry)) = self.policy.ageing.zip(self.ledger.get(id)) else {
            return false;
        };
        let threshold = Micros::from_millis(ageing.threshold_ms);
        let has_waited = match ageing.prompts_from {
            AgeingStart::Arrival => true,
            AgeingStart::Turn => {
                let turn = entry.own.turn;
                turn.is_some_and(|turn| self.now.since(turn) >= threshold)
            }
        };
        if entry.own.overdue && !has_waited {
            self.tally.note(Mechanism::AgeingFromTurn);
        }
        entry.own.overdue && has_waited
    }
}
