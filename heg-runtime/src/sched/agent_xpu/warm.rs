//! On-the-fly warm-up: static attention kernels that are compiled on the CPU while their request waits (§4.3).

use std::collections::BTreeSet;

use heg_spec::policy::NpuAttention;

use super::AgentXpu;
use crate::sched::costs::{Cost, Costs};
use crate::sched::event::{Action, Actions, Segment, WarmKernel};
use crate::sched::request::Lane;

/// Contexts are rounded up to this many tokens, so that requests of about the same length share a kernel.
/// Chosen: a chunk of the paper's.
const CONTEXT_STEP: u32 = 256;

/// Kernels that stay when no request is left for them, in case one comes: each is a megabyte or two, and takes
/// seconds of the CPU. Chosen: all multiples of the step up to a context of 4096.
const KEPT_MAX: usize = 16;

/// Kernels that are there, and the one that is being compiled.
#[derive(Debug, Default)]
pub(super) struct Warmth {
    ready: BTreeSet<WarmKernel>,
    compiling: Option<WarmKernel>,
    /// For which requests it was decided last what to compile and what to drop ([`Prefills::revision`]); none
    /// when something else has changed.
    ///
    /// [`Prefills::revision`]: super::prefill_pipeline::Prefills::revision
    decided_at: Option<u64>,
}

impl Warmth {
    pub(super) fn warmed(&mut self, kernel: WarmKernel) {
        if self.compiling == Some(kernel) {
            self.compiling = None;
            self.decided_at = None;
            self.ready.insert(kernel);
        }
    }

    /// A device came back: what could not be compiled may be now.
    pub(super) fn reconsider(&mut self) {
        self.decided_at = None;
    }

    /// What attention over a segment takes with the best kernel that is there.
    pub(super) fn cost(&self, costs: &impl Costs, segment: Segment) -> Option<Cost> {
        self.ready
            .iter()
            .filter(|k| k.tokens >= segment.tokens && k.context >= segment.context())
            .filter_map(|kernel| costs.warm_cost(*kernel))
            .min_by(|a, b| a.latency_us.total_cmp(&b.latency_us))
    }

    /// The device is gone, and its kernels with it.
    pub(super) fn forget(&mut self, actions: &mut Actions) {
        self.decided_at = None;
        for kernel in std::mem::take(&mut self.ready) {
            actions.push(Action::Unload(kernel));
        }
    }
}

impl<C: Costs> AgentXpu<C> {
    /// Compiles the kernel of the first waiting request that has none, and drops those that nobody wants where
    /// there are too many.
    pub(super) fn warm_up(&mut self, actions: &mut Actions) {
        if self.policy.prefill.attention != NpuAttention::WarmUp {
            return;
        }
        let revision = self.prefills.revision();
        if self.warmth.decided_at.replace(revision) == Some(revision) {
            return;
        }
        let wanted: BTreeSet<WarmKernel> = self
            .table
            .iter()
            .filter(|(_, entry)| !matches!(entry.phase, crate::sched::table::Phase::Decode))
            .map(|(_, entry)| self.kernel_for(entry.prompt_tokens))
            .collect();
        let unwanted = |kernel: &WarmKernel| !wanted.contains(kernel);
        let ready = &self.warmth.ready;
        let surplus = ready.len().saturating_sub(KEPT_MAX);
        // The longest contexts are the rarest.
        let idle = ready.iter().rev().copied().filter(unwanted);
        for kernel in idle.take(surplus).collect::<Vec<_>>() {
            self.warmth.ready.remove(&kernel);
            actions.push(Action::Unload(kernel));
        }
        if self.warmth.compiling.is_some() || !self.lanes.is_present(Lane::Npu) {
            return;
        }
        let next = self
            .prefills
            .waiting()
            .filter_map(|id| self.table.get(id))
            .map(|entry| self.kernel_for(entry.prompt_tokens))
            .find(|kernel| {
                !self.warmth.ready.contains(kernel) && self.costs.warm_up(*kernel).is_some()
            });
        if let Some(kernel) = next {
            self.warmth.compiling = Some(kernel);
            actions.push(Action::Warm(kernel));
        }
    }

    fn kernel_for(&self, prompt_tokens: u32) -> WarmKernel {
        WarmKernel {
            tokens: self.model.chunk_tokens,
            context: prompt_tokens.next_multiple_of(CONTEXT_STEP),
        }
    }
}
