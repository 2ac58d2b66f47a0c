//! When a kernel of a prompt waits although its lane is free: for memory pressure, for a side of higher priority,
//! for the chunks that its remainder belongs to (§4.3; v1 6.3, 6.4).

use super::AgentXpu;
use super::stage::Entry;
use crate::costs::{Cost, Costs};
use crate::event::Kernel;
use crate::prefill::{Prefill, Step};
use crate::request::{Class, Lane, Micros, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// Whether a kernel may start beside what runs on the other lanes.
    pub(super) fn may_start(&self, id: RequestId, lane: Lane, class: Class, cost: Cost) -> bool {
        if !self.pressure_admits(cost, class) {
            return false;
        }
        let entry = self.ledger.get(id);
        if lane == Lane::Npu && entry.is_some_and(|entry| self.must_wait_for_decode(entry, cost)) {
            return false;
        }
        if self.prefills.backfill == Some(id) {
            // It must be out of the way when the reactive kernel beside it ends (v1 6.3).
            let ends = self.now + Micros::from_f64(cost.latency_us);
            let reactive = self
                .lanes
                .all_running()
                .filter(|(_, r)| r.class == Class::Reactive);
            return reactive
                .map(|(_, r)| r.ends)
                .max()
                .is_some_and(|until| ends <= until);
        }
        true
    }

    /// Whether a kernel on the NPU is memory-bound and requests of a more urgent class decode: the side of lower
    /// priority waits for the other (§4.3).
    pub(super) fn must_wait_for_decode(&self, entry: &Entry, cost: Cost) -> bool {
        self.is_memory_bound(cost)
            && !entry.own.overdue
            && self
                .decoding_class()
                .is_some_and(|decoding| decoding < entry.class())
    }

    /// Whether a kernel draws enough bandwidth to slow down decoding beside it.
    pub(super) fn is_memory_bound(&self, cost: Cost) -> bool {
        let share = self.policy.prefill.defer_memory_bound;
        share.is_some_and(|share| cost.bandwidth > share)
    }

    /// Whether the remainder waits for its chunks on the NPU: it need not be done before them, and while it
    /// waits, decoding may come to the end of its iteration (§4.3).
    pub(super) fn is_deferred(
        &self,
        entry: &Entry,
        prefill: &Prefill,
        step: Step,
        lane: Lane,
        cost: Cost,
    ) -> bool {
        let remainder = step.kernel != Kernel::Mha && step.part >= prefill.chunks();
        if !self.policy.prefill.defer_remainder
            || !remainder
            || lane == Lane::Npu
            || entry.own.overdue
            || self.decode.is_idle()
        {
            return false;
        }
        self.remainder_start(prefill, step, cost)
            .is_some_and(|start| self.now < start)
    }

    /// When the remainder has to start to end together with the last chunk at the same kernel; `None` when no
    /// chunk is behind it.
    fn remainder_start(&self, prefill: &Prefill, step: Step, cost: Cost) -> Option<Micros> {
        let behind = prefill.chunks_behind(step.done);
        if behind == 0 {
            return None;
        }
        let running = self.lanes.running(Lane::Npu)?;
        let rest = running.ends.since(self.now).0 as f64;
        let others = (behind - 1) as f64 * running.cost.latency_us;
        Some(self.now + Micros::from_f64((rest + others - cost.latency_us).max(0.0)))
    }

    /// When a deferred remainder may start, for the timer.
    pub(super) fn next_deferral(&self) -> Option<Micros> {
        if !self.policy.prefill.defer_remainder || self.decode.is_idle() {
            return None;
        }
        let entry = self.ledger.get(self.prefills.foreground?)?;
        let prefill = entry.prefill()?;
        let step = prefill
            .ready()
            .find(|step| step.kernel != Kernel::Mha && step.part >= prefill.chunks())?;
        let (lane, cost) = self.lane_of(entry.submission.id, entry, prefill, step)?;
        let start = self.remainder_start(prefill, step, cost)?;
        (lane != Lane::Npu && start > self.now).then_some(start)
    }
}
