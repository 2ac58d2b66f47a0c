//! The static attention kernels of the NPU: compiled, being compiled, and refused (§4.3).

use std::collections::BTreeSet;

use crate::costs::{Cost, Costs};
use crate::event::{Action, Actions, Segment, WarmKernel};

/// Number of kernels that stay when no request needs them, in case one comes: each is a megabyte or two, and
/// takes seconds of the CPU. Chosen: all multiples of the step up to a context of 4096.
const KEPT_MAX: usize = 16;

/// The compiled kernels, the one that is being compiled, and those that the device refuses.
#[derive(Debug, Default)]
pub(super) struct Warmth {
    ready: BTreeSet<WarmKernel>,
    compiling: Option<(WarmKernel, Wanted)>,
    refused: BTreeSet<WarmKernel>,
    /// The requests ([`Prefills::revision`]) for which it was last decided which kernels to compile and to
    /// drop; `None` if something else has changed.
    ///
    /// [`Prefills::revision`]: super::prefills::Prefills::revision
    decided_at: Option<u64>,
}

/// The device for which a kernel is being compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// The present device.
    Here,
    /// A device that has gone since.
    Elsewhere,
}

impl Warmth {
    /// Takes in a compiled kernel, perhaps for a device that has gone since.
    pub(super) fn warmed(&mut self, kernel: WarmKernel, actions: &mut Actions) {
        match self.arrived(kernel) {
            Some(Wanted::Here) => {
                self.ready.insert(kernel);
            }
            Some(Wanted::Elsewhere) => actions.push(Action::Unload(kernel)),
            None => {}
        }
    }

    /// Notes that a kernel cannot be compiled, so that it is not tried again on this device.
    pub(super) fn failed(&mut self, kernel: WarmKernel) {
        if self.arrived(kernel) == Some(Wanted::Here) {
            self.refused.insert(kernel);
        }
    }

    /// Ends the compilation that was asked for; returns its device.
    fn arrived(&mut self, kernel: WarmKernel) -> Option<Wanted> {
        let (_, wanted) = self.compiling.take_if(|(asked, _)| *asked == kernel)?;
        self.decided_at = None;
        Some(wanted)
    }

    /// Reconsiders all kernels, since a device came back.
    pub(super) fn reconsider(&mut self) {
        self.decided_at = None;
    }

    /// The cost of attention over a segment with the best compiled kernel.
    pub(super) fn cost(&self, costs: &impl Costs, segment: Segment) -> Option<Cost> {
        self.ready
            .iter()
            .filter(|k| k.tokens >= segment.tokens && k.context >= segment.context())
            .filter_map(|kernel| costs.warm_cost(*kernel))
            .min_by(|a, b| a.latency_us.total_cmp(&b.latency_us))
    }

    /// Forgets the kernels of a device that is gone.
    pub(super) fn forget(&mut self, actions: &mut Actions) {
        self.decided_at = None;
        if let Some((_, wanted)) = &mut self.compiling {
            *wanted = Wanted::Elsewhere;
        }
        self.refused.clear();
        for kernel in std::mem::take(&mut self.ready) {
            actions.push(Action::Unload(kernel));
        }
    }

    /// Notes the requests, by [`Prefills::revision`], for which it is decided now which kernels to compile and to drop.
    /// Returns false if that was decided for them before.
    ///
    /// [`Prefills::revision`]: super::prefills::Prefills::revision
    pub(super) fn decide_for(&mut self, revision: u64) -> bool {
        self.decided_at.replace(revision) != Some(revision)
    }

    /// Drops kernels that no request needs if there are too many.
    pub(super) fn drop_surplus(&mut self, wanted: &BTreeSet<WarmKernel>, actions: &mut Actions) {
        let surplus = self.ready.len().saturating_sub(KEPT_MAX);
        // The longest contexts are the rarest.
        let idle = self.ready.iter().rev().copied();
        let idle = idle.filter(|kernel| !wanted.contains(kernel));
        for kernel in idle.take(surplus).collect::<Vec<_>>() {
            self.ready.remove(&kernel);
            actions.push(Action::Unload(kernel));
        }
    }

    /// Whether a kernel is being compiled; another one has to wait for it.
    pub(super) fn is_compiling(&self) -> bool {
        self.compiling.is_some()
    }

    /// Whether a kernel is neither compiled nor refused by the device.
    pub(super) fn lacks(&self, kernel: &WarmKernel) -> bool {
        !self.ready.contains(kernel) && !self.refused.contains(kernel)
    }

    /// Asks for a kernel.
    pub(super) fn compile(&mut self, kernel: WarmKernel, actions: &mut Actions) {
        self.compiling = Some((kernel, Wanted::Here));
        actions.push(Action::Warm(kernel));
    }
}
