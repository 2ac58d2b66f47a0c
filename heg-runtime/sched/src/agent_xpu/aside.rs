//! Gives the iGPU to a second reactive prompt while the NPU has the first
//! (`prefill.short_prompts_aside`, `prefill.long_prompts_aside_ms`).
//!
//! Prompts of a class run one by one, since each uses a device fully; but a prompt shorter than a chunk belongs to
//! the iGPU anyway, and one of several chunks can run on the NPU alone meanwhile. Two long prompts have a device
//! each: together they take as long as one after the other on both, and neither device idles.

use super::AgentXpu;
use super::prefills::Slot;
use crate::costs::Costs;
use crate::event::Actions;
use crate::mechanism::Mechanism;
use crate::prefill::Prefill;
use crate::request::{Class, Lane, Micros, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// Lets a waiting prompt begin beside the one in progress. An overdue prompt has the iGPU before it, and so have
    /// reactive and overdue answers.
    pub(super) fn start_aside(&mut self, actions: &mut Actions) {
        let prefills = &self.prefills;
        let free =
            prefills.holder(Slot::Aside).is_none() && prefills.holder(Slot::Overdue).is_none();
        let policy = &self.policy.prefill;
        let (short, long) = (
            policy.short_prompts_aside,
            policy.long_prompts_aside_ms.is_some(),
        );
        if !(short || long)
            || prefills.queue(Class::Reactive).is_empty()
            || !free
            || !self.lanes.is_present(Lane::Npu)
            || self.decodes_for_somebody(self.aside_patience())
            || !self
                .prefills
                .holder(Slot::Foreground)
                .is_some_and(|id| self.has_chunks(id))
        {
            return;
        }
        let mut waiting = self.queue_by_turn(Class::Reactive).into_iter();
        let several = self.goes_by_client();
        let may = |id: RequestId| {
            let another = |client| self.may_begin_another(Class::Reactive, client);
            !several || self.has_begun(id) || self.client_of(id).is_some_and(another)
        };
        let next = waiting.find(|id| match self.is_short(*id) {
            true => short && may(*id),
            false => long && may(*id),
        });
        let Some(id) = next else {
            return;
        };
        let mechanism = match self.is_short(id) {
            true => Mechanism::ShortPromptsAside,
            false => Mechanism::LongPromptsAside,
        };
        if self.begin(id, actions) {
            self.prefills.give(Slot::Aside, Some(id));
            self.tally.note(mechanism);
        }
    }

    /// The time for which a prompt aside may keep a reactive answer from its next token.
    fn aside_patience(&self) -> Micros {
        Micros::from_millis(self.policy.prefill.long_prompts_aside_ms.unwrap_or(0))
    }

    /// Whether a prompt aside leaves the iGPU to answers for now. A short one does not: it ends soon anyway.
    pub(super) fn aside_gives_way(&self, prefill: &Prefill) -> bool {
        prefill.chunks() > 0 && self.decodes_for_somebody(self.aside_patience())
    }

    /// Whether a reactive prompt has chunks for the NPU.
    fn has_chunks(&self, id: RequestId) -> bool {
        let entry = self.ledger.get(id);
        entry.is_some_and(|entry| {
            let chunks = entry.prefill().map_or(0, |prefill| prefill.chunks());
            entry.class() == Class::Reactive && chunks > 0
        })
    }

    /// Whether the new part of a prompt is shorter than a chunk.
    fn is_short(&self, id: RequestId) -> bool {
        let entry = self.ledger.get(id);
        entry.is_some_and(|entry| match entry.prefill() {
            Some(prefill) => prefill.chunks() == 0,
            None => {
                let new = entry
                    .prompt_tokens
                    .saturating_sub(entry.submission.shared_tokens);
                new < self.model.chunk_tokens
            }
        })
    }
}
