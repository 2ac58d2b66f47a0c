//! The remainder of a prompt waits for the chunks that it belongs to: it need not be done before them, and while it
//! waits, decoding may come to the end of its iteration (§4.3).

use super::{AgentXpu, Cost, Costs, Gate, Lane, Micros, Prefill, Proposal, Step};
use crate::event::Kernel;
use crate::mechanism::Mechanism;

#[derive(Debug, Default)]
pub(super) struct Remainder;

impl<C: Costs> Gate<C> for Remainder {
    fn holds_back(&self, scheduler: &AgentXpu<C>, proposal: Proposal<'_>) -> bool {
        let Proposal::Prompt {
            entry,
            lane,
            cost,
            step: Some((prefill, step)),
        } = proposal
        else {
            return false;
        };
        let remainder = step.kernel != Kernel::Mha && step.part >= prefill.chunks();
        if !scheduler.policy.prefill.defer_remainder
            || !remainder
            || lane == Lane::Npu
            || entry.own.overdue
            || scheduler.decode.is_idle()
        {
            return false;
        }
        let start = scheduler.remainder_start(prefill, step, cost);
        let waits = start.is_some_and(|start| scheduler.now < start);
        if waits {
            scheduler.tally.note(Mechanism::RemainderDeferral);
        }
        waits
    }

    fn opens_at(&self, scheduler: &AgentXpu<C>) -> Option<Micros> {
        if !scheduler.policy.prefill.defer_remainder || scheduler.decode.is_idle() {
            return None;
        }
        let entry = scheduler.ledger.get(scheduler.prefills.foreground?)?;
        let prefill = entry.prefill()?;
        let step = prefill
            .ready()
            .find(|step| step.kernel != Kernel::Mha && step.part >= prefill.chunks())?;
        let (lane, cost) = scheduler.lane_of(entry.id(), entry, prefill, step)?;
        let start = scheduler.remainder_start(prefill, step, cost)?;
        (lane != Lane::Npu && start > scheduler.now).then_some(start)
    }
}

impl<C: Costs> AgentXpu<C> {
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
}
