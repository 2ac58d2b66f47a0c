//! Decides when a proactive prompt has waited long enough to have the iGPU beside a reactive one (§4.5,
//! `ageing.prompts_from`).
//!
//! An overdue request has a place in every iteration. Its prompt then has the iGPU too, unless the policy counts
//! from the prompt's turn: then it has the iGPU once it has waited as long since no other proactive prompt is
//! before it. The time that reactive prompts lose then helps the prompts that they hold up, and not those that wait
//! for each other.

use heg_spec::policy::AgeingStart;

use super::AgentXpu;
use crate::costs::Costs;
use crate::mechanism::Mechanism;
use crate::request::{Class, Micros, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// Notes the turn of the proactive prompt that is first in its class; with several clients, of each client's
    /// first.
    pub(super) fn note_turn(&mut self) {
        if self.ledger.clients().are_several() {
            for id in self.heads(Class::Proactive) {
                if let Some(entry) = self.ledger.get_mut(id) {
                    entry.own.note_turn(self.now);
                }
            }
            return;
        }
        let front = || self.prefills.queue(Class::Proactive).front().copied();
        let next = self.prefills.buffered().first().copied().or_else(front);
        if let Some(entry) = next.and_then(|id| self.ledger.get_mut(id)) {
            entry.own.note_turn(self.now);
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
                let turn = entry.own.turn();
                turn.is_some_and(|turn| self.now.since(turn) >= threshold)
            }
        };
        if entry.own.is_overdue() && !has_waited {
            self.tally.note(Mechanism::AgeingFromTurn);
        }
        entry.own.is_overdue() && has_waited
    }
}
