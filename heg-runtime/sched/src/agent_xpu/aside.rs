//! A short reactive prompt has the iGPU while the NPU has another one (`prefill.short_prompts_aside`).
//!
//! Prompts of a class run one by one, since each uses a device fully; but a prompt shorter than a chunk belongs to the
//! iGPU anyway, and one of several chunks can do with the NPU meanwhile.

use super::AgentXpu;
use crate::costs::Costs;
use crate::event::Actions;
use crate::mechanism::Mechanism;
use crate::request::{Class, Lane, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// Lets a waiting short prompt begin beside the one under way. An overdue prompt has the iGPU before it, and so have
    /// answers that somebody waits for.
    pub(super) fn start_aside(&mut self, actions: &mut Actions) {
        let prefills = &self.prefills;
        let free = prefills.aside.is_none() && prefills.overdue.is_none();
        if !self.policy.prefill.short_prompts_aside
            || prefills.reactive.is_empty()
            || !free
            || !self.lanes.is_present(Lane::Npu)
            || self.decodes_for_somebody()
            || !self
                .prefills
                .foreground
                .is_some_and(|id| self.has_chunks(id))
        {
            return;
        }
        let mut waiting = self.prefills.reactive.iter().copied();
        let short = waiting.find(|id| self.is_short(*id));
        if let Some(id) = short
            && self.begin(id, actions)
        {
            self.prefills.aside = Some(id);
            self.tally.note(Mechanism::ShortPromptsAside);
        }
    }

    /// Whether a reactive prompt has chunks for the NPU.
    fn has_chunks(&self, id: RequestId) -> bool {
        let entry = self.ledger.get(id);
        entry.is_some_and(|entry| {
            let chunks = entry.prefill().map_or(0, |prefill| prefill.chunks());
            entry.class() == Class::Reactive && chunks > 0
        })
    }

    /// Whether what is new of a prompt is shorter than a chunk.
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
