//! Lets proactive answers decode beside reactive ones while that slows them little (`decode.reactive_slowdown_max`).
//!
//! Rows of an iteration share the weights that it reads: on a CPU the first few cost next to nothing, on other
//! devices more may.

use super::AgentXpu;
use crate::batch::Candidate;
use crate::costs::{Call, Costs};
use crate::request::{Class, Lane};

/// Contexts are compared in steps of this many tokens, so that cached costs serve many iterations. Chosen: a row
/// reads little for that many tokens, compared with the weights.
pub(super) const CONTEXT_STEP: u32 = 256;

impl<C: Costs> AgentXpu<C> {
    /// Returns a batch without its last proactive answers, as far as they would slow down reactive ones more than the
    /// policy allows. Overdue ones stay: they have waited enough.
    pub(super) fn bearable(&self, lane: Lane, mut batch: Vec<Candidate>) -> Vec<Candidate> {
        let times = self.policy.decode.reactive_slowdown_max;
        let Some(times) = times.filter(|_| !self.lanes.is_present(Lane::Npu)) else {
            return batch;
        };
        let is_reactive = |member: &Candidate| member.class == Class::Reactive;
        // Reactive candidates stand first, overdue ones next.
        let reactive = batch.partition_point(is_reactive);
        let certain = batch.partition_point(|member| is_reactive(member) || member.overdue);
        if reactive == 0 || certain == batch.len() {
            return batch;
        }
        let layers = self.model.layers as usize;
        let time_us = |rows: usize| {
            let members = batch.get(..rows)?;
            let context: u32 = members.iter().map(|member| member.context).sum();
            let call = Call::Layer {
                rows: rows as u32,
                context: context.next_multiple_of(CONTEXT_STEP),
                fused: false,
            };
            Some(self.layers_cost(lane, call, layers)?.latency_us)
        };
        let Some(alone_us) = time_us(reactive) else {
            return batch;
        };
        let bears = |rows: &usize| time_us(*rows).is_some_and(|us| us <= alone_us * times);
        let more = (certain + 1..=batch.len()).take_while(bears).count();
        batch.truncate(certain + more);
        batch
    }
}
