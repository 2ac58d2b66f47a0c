//! Notes the mechanism behind a launch or a batch (`mechanism`). Rules that hold work back note themselves.

use super::AgentXpu;
use super::decode_pipeline::NextIteration;
use super::next::Next;
use super::prefills::Slot;
use crate::batch::Candidate;
use crate::costs::Costs;
use crate::event::LayerKernel;
use crate::mechanism::Mechanism;
use crate::request::{Class, Lane};

impl<C: Costs> AgentXpu<C> {
    /// Notes the mechanisms behind a prompt's kernel that is about to start on a lane.
    pub(super) fn note_place(&self, lane: Lane, next: &Next) {
        let prefill = self.ledger.get(next.id).and_then(|entry| entry.prefill());
        let Some((step, prefill)) = next.kernel.zip(prefill) else {
            return;
        };
        let chunk = step.part < prefill.chunks();
        let owns_dynamic_lane = [
            self.prefills.holder(Slot::Overdue),
            self.prefills.holder(Slot::Aside),
        ]
        .contains(&Some(next.id));
        let beside_npu = self.lanes.is_present(Lane::Npu) && !owns_dynamic_lane;
        match (lane, step.kernel) {
            (Lane::Npu, LayerKernel::Mha) => self.tally.note(Mechanism::NpuAttention),
            (_, LayerKernel::Mha) => {}
            (Lane::Npu, _) => {}
            (_, _) if !chunk || !beside_npu => {}
            (_, _) if next.class == Class::Proactive => self.tally.note(Mechanism::Balance),
            (_, _) => {
                self.tally.note(Mechanism::Split);
                if !self.decode.is_idle() {
                    self.tally.note(Mechanism::SplitBesideProactive);
                }
            }
        }
    }

    /// Notes the mechanisms behind an iteration that is about to start, or to go on.
    pub(super) fn note_iteration(&self, next: &NextIteration) {
        if next.is_fused() {
            self.tally.note(Mechanism::FusedLayer);
        }
    }

    /// Notes the mechanisms behind a batch that was chosen out of candidates, given in order of arrival.
    pub(super) fn note_batch(&self, candidates: &[Candidate], batch: &[Candidate]) {
        if self.ledger.clients().are_several() {
            let first = candidates.iter().take(batch.len());
            let is_left_out = |it: &Candidate| batch.iter().all(|member| member.id != it.id);
            if first.into_iter().any(is_left_out) {
                self.tally.note(Mechanism::ClientTurns);
            }
        }
        let policy = &self.policy.decode;
        let full = batch.len() >= policy.batch_max as usize;
        if batch.len() == candidates.len() || full || policy.reactive_batch_max.is_none() {
            return;
        }
        self.tally.note(Mechanism::ReactiveFirstBatch);
        let is_in = |candidate: &&Candidate| batch.iter().any(|it| it.id == candidate.id);
        let is_plain = |it: &&Candidate| it.class == Class::Proactive && !it.overdue;
        let mut behind = candidates.iter().filter(is_plain).skip_while(is_in);
        // Without the rule, the first arrivals would be in.
        if policy.evict_longest && behind.any(|candidate| is_in(&candidate)) {
            self.tally.note(Mechanism::LongestLeftOut);
        }
    }
}
