//! Which mechanism a launch or a batch is owed to (`mechanism`). Rules that hold work back say it themselves.

use super::AgentXpu;
use super::decode_pipeline::NextIteration;
use super::prefill_pipeline::Next;
use crate::batch::Candidate;
use crate::costs::Costs;
use crate::event::Kernel;
use crate::mechanism::Mechanism;
use crate::request::{Class, Lane};

impl<C: Costs> AgentXpu<C> {
    /// A kernel of a prompt is about to start on a lane.
    pub(super) fn note_place(&self, lane: Lane, next: &Next) {
        let prefill = self.ledger.get(next.id).and_then(|entry| entry.prefill());
        let Some((step, prefill)) = next.kernel.zip(prefill) else {
            return;
        };
        let chunk = step.part < prefill.chunks();
        let owns_dynamic_lane =
            [self.prefills.overdue, self.prefills.aside].contains(&Some(next.id));
        let beside_npu = self.lanes.is_present(Lane::Npu) && !owns_dynamic_lane;
        match (lane, step.kernel) {
            (Lane::Npu, Kernel::Mha) => self.tally.note(Mechanism::NpuAttention),
            (_, Kernel::Mha) => {}
            (Lane::Npu, _) => {
                let padded = !chunk && next.class == Class::Proactive;
                if padded && self.policy.prefill.npu_remainder_tokens_min.is_some() {
                    self.tally.note(Mechanism::NpuRemainders);
                }
            }
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

    /// An iteration is about to start, or to go on.
    pub(super) fn note_iteration(&self, next: &NextIteration) {
        if next.is_fused() {
            self.tally.note(Mechanism::FusedLayer);
        }
    }

    /// A batch was chosen out of candidates, in the order in which they came.
    pub(super) fn note_batch(&self, candidates: &[Candidate], batch: &[Candidate]) {
        let policy = &self.policy.decode;
        let full = batch.len() >= policy.batch_max as usize;
        if batch.len() == candidates.len() || full || policy.reactive_batch_max.is_none() {
            return;
        }
        self.tally.note(Mechanism::ReactiveFirstBatch);
        let is_in = |candidate: &&Candidate| batch.iter().any(|it| it.id == candidate.id);
        let is_plain = |it: &&Candidate| it.class == Class::Proactive && !it.overdue;
        let mut behind = candidates.iter().filter(is_plain).skip_while(is_in);
        // Without the rule those that came first would be in.
        if policy.evict_longest && behind.any(|candidate| is_in(&candidate)) {
            self.tally.note(Mechanism::LongestLeftOut);
        }
    }
}
