//! Composes the next iteration, and bounds its time.

use std::sync::Arc;

use super::SingleLane;
use super::client_turns::kernel_of;
use super::progress::Entry;
use crate::batch::{Candidate, with_drafts};
use crate::costs::{Call, Costs};
use crate::event::{Decoding, Segment};
use crate::mechanism::Mechanism;
use crate::request::{Micros, PromptLogits, RequestId};
use crate::rows::in_equal_rows;

impl<C: Costs> SingleLane<C> {
    /// Returns the requests that decode, as many as a batch takes.
    pub(super) fn decoding(&self, eligible: &[&Entry]) -> Arc<[Decoding]> {
        let decoding = eligible.iter().filter(|entry| entry.own.decodes);
        let most = match self.ledger.clients().are_several() {
            true => usize::MAX,
            false => self.policy.decode.batch_max as usize,
        };
        let mut batch: Vec<Candidate> = decoding
            .take(most)
            .map(|entry| Candidate {
                id: entry.id(),
                class: entry.class(),
                client: entry.client(),
                waits_since: entry.waits_since,
                context: entry.context(),
                overdue: false,
                draft: entry.draft(self.model.context_tokens),
            })
            .collect();
        if self.ledger.clients().are_several() {
            let all = batch;
            batch = in_equal_rows(&self.policy.decode, &all, self.ledger.clients());
            let is_left_out = |it: &Candidate| batch.iter().all(|member| member.id != it.id);
            if all.iter().take(batch.len()).any(is_left_out) {
                self.tally.note(Mechanism::ClientTurns);
            }
        }
        let time = |batch: &[Decoding]| {
            let us = |call| Some(self.costs.cost(self.lane, call)?.latency_us);
            let layer = us(Call::layer(batch, false))?;
            let rows = Decoding::rows_of(batch);
            Some(layer * f64::from(self.model.layers) + us(Call::Head { rows })?)
        };
        with_drafts(&batch, &self.policy, time)
    }

    /// Returns parts of prompts that fill the budget beside `decoding` rows; at least one part if no request decodes.
    pub(super) fn prompts(
        &self,
        eligible: &[&Entry],
        decoding: u32,
    ) -> Arc<[(RequestId, Segment)]> {
        let budget = self.policy.limits.tokens_per_iteration;
        let mut left = match decoding {
            0 => budget.max(1),
            some => budget.saturating_sub(some),
        };
        let mut prompts = Vec::new();
        let waiting = eligible.iter().filter(|entry| !entry.own.decodes);
        let mut waiting: Vec<&Entry> = waiting.copied().collect();
        self.sort_by_turn(&mut waiting);
        for entry in waiting {
            let rest = entry.prompt_tokens - entry.own.cached;
            let tokens = match entry.submission.prompt_logits {
                PromptLogits::LastRow | PromptLogits::AllRows => left.min(rest),
                // One that is longer than the budget runs alone.
                PromptLogits::WholePrompt if prompts.is_empty() && decoding == 0 => rest,
                PromptLogits::WholePrompt if rest > left => 0,
                PromptLogits::WholePrompt => rest,
            };
            if tokens == 0 {
                break;
            }
            left = left.saturating_sub(tokens);
            let segment = Segment {
                position: entry.own.cached,
                tokens,
            };
            prompts.push((entry.id(), segment));
        }
        prompts.into()
    }

    /// Returns the time after which an iteration counts as hung: a generous multiple of its parts one after the
    /// other.
    pub(super) fn patience(&self, batch: &[Decoding], prompts: &[(RequestId, Segment)]) -> Micros {
        let layers = f64::from(self.model.layers);
        let mut total = if batch.is_empty() {
            0.0
        } else {
            self.latency_us(Call::layer(batch, false))
        };
        for (_, segment) in prompts {
            for kernel in self.model.order.kernels() {
                total += self.latency_us(kernel_of(kernel, *segment));
            }
        }
        let limits = &self.policy.limits;
        Micros::from_f64(total * layers * f64::from(limits.timeout_factor))
            .max(Micros::from_millis(limits.timeout_min_ms))
    }
}
