//! Gives proactive prompts a share of the one lane beside reactive decoding (`decode.proactive_share`).

use super::AgentXpu;
use crate::costs::{Cost, Costs};
use crate::request::{Class, Lane};

/// The lane time that proactive prompts have saved up.
#[derive(Debug, Default)]
pub(super) struct ProactiveShare {
    /// Time that they are owed beside reactive decoding, in µs.
    owed_us: f64,
}

impl ProactiveShare {
    /// Clears the debt after proactive prompts had their turn.
    pub(super) fn paid(&mut self) {
        self.owed_us = 0.0;
    }
}

impl<C: Costs> AgentXpu<C> {
    /// Whether a proactive prompt would go before reactive decoding with all of its kernels, because there is no NPU
    /// to take most of them. Prefill-first is meant for the short part of a prompt that the iGPU has (§4.3); if it
    /// has all of it, the classes decide.
    pub(super) fn would_hold_up_reactive(&self, lane: Lane) -> bool {
        !self.lanes.is_present(Lane::Npu)
            && self.decodes_reactive()
            && self.next_prefill(lane).map(|next| next.class) == Some(Class::Proactive)
    }

    /// Whether proactive prompts have waited for reactive decoding long enough to run their next kernel.
    pub(super) fn is_owed(&self, lane: Lane) -> bool {
        let next = self.next_prefill(lane);
        next.is_some_and(|next| self.share.owed_us >= next.cost.latency_us)
    }

    /// Adds a share of a decode run's time to the debt to proactive prompts.
    pub(super) fn owe(&mut self, lane: Lane, cost: Cost) {
        let Some(share) = self.policy.decode.proactive_share else {
            return;
        };
        if self.would_hold_up_reactive(lane) {
            self.share.owed_us += cost.latency_us * share / (1.0 - share);
        } else {
            self.share.paid();
        }
    }
}
