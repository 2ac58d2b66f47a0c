//! Elastic binding: chooses the lane of a prompt's kernel at the time when it could start (§4.3).

use super::AgentXpu;
use super::rules::{Proposal, Verdict};
use super::stage::Entry;
use crate::costs::{Call, Cost, Costs};
use crate::event::{LayerKernel, Work};
use crate::prefill::{Prefill, Step};
use crate::request::Lane;

impl<C: Costs> AgentXpu<C> {
    /// Returns the lane on which the head's token is ready first.
    pub(super) fn head_lane(&self, entry: &Entry) -> Option<(Lane, Cost)> {
        let call = Call::Head { rows: 1 };
        let npu = self.costs.cost(Lane::Npu, call);
        // If it would have to wait for decoding on the NPU, the iGPU is the better place.
        let waits = npu.is_some_and(|cost| self.is_diverted(entry, cost));
        let npu = Some(Lane::Npu).filter(|_| !waits);
        self.first_done([npu, self.dynamic_lane()], entry, call)
    }

    /// Returns the lane that completes a call first, of those that can run it, counting the work that runs there now.
    fn first_done(
        &self,
        lanes: [Option<Lane>; 2],
        entry: &Entry,
        call: Call,
    ) -> Option<(Lane, Cost)> {
        let present = lanes
            .into_iter()
            .flatten()
            .filter(|lane| self.lanes.is_present(*lane));
        let able = present.filter_map(|lane| Some((lane, self.costs.cost(lane, call)?)));
        let able: Vec<(Lane, Cost)> = able.collect();
        // The lane of its last failed launch is tried again only if there is no other.
        let others = able
            .iter()
            .any(|(lane, _)| entry.own.failed_on() != Some(*lane));
        able.into_iter()
            .filter(|(lane, _)| !others || entry.own.failed_on() != Some(*lane))
            .min_by(|a, b| self.end_of(a.0, a.1).total_cmp(&self.end_of(b.0, b.1)))
    }

    /// Time at which a kernel would end on a lane, in µs from now. A decode run gives way at its next layer.
    fn end_of(&self, lane: Lane, cost: Cost) -> f64 {
        let wait = self.lanes.running(lane).map_or(0.0, |running| {
            let rest = running.ends.since(self.now).0 as f64;
            match &running.work {
                Work::Decode(run) => {
                    rest.min(running.cost.latency_us / run.layers.len().max(1) as f64)
                }
                _ => rest,
            }
        });
        wait + cost.latency_us
    }

    /// Returns the lane on which a kernel of a prompt belongs, and its cost there.
    pub(super) fn lane_of(
        &self,
        entry: &Entry,
        prefill: &Prefill,
        step: Step,
    ) -> Option<(Lane, Cost)> {
        let call = Call::Prefill {
            kernel: step.kernel,
            tokens: step.segment.tokens,
            context: step.segment.context(),
        };
        let npu = self.lanes.is_present(Lane::Npu).then_some(Lane::Npu);
        let dynamic = self.dynamic_lane();
        if step.kernel == LayerKernel::Mha {
            return self.attention_lane(entry, step, call);
        }
        let place = Proposal::Place {
            entry,
            prefill,
            step,
        };
        let preferred = match self.judged(place).0 {
            Verdict::OnNpu => npu,
            Verdict::OnDynamicLane => dynamic,
            _ if step.part < prefill.chunks() => npu,
            _ => dynamic,
        };
        let at = |lane: Lane| Some((lane, self.costs.cost(lane, call)?));
        let avoided = entry.own.failed_on().is_some() && preferred == entry.own.failed_on();
        let other = if preferred == npu { dynamic } else { npu };
        let choices = if avoided {
            [other, preferred]
        } else {
            [preferred, other]
        };
        choices.into_iter().flatten().find_map(at)
    }

    /// Returns the lane of attention: the iGPU, or the NPU if a static kernel is loaded there and ends earlier.
    fn attention_lane(&self, entry: &Entry, step: Step, call: Call) -> Option<(Lane, Cost)> {
        let dynamic = self
            .dynamic_lane()
            .and_then(|lane| Some((lane, self.costs.cost(lane, call)?)));
        let (segment, present) = (step.segment, self.lanes.is_present(Lane::Npu));
        let npu = present
            .then(|| match self.judged(Proposal::Attention { segment }).0 {
                Verdict::At(cost) => Some(cost),
                _ => None,
            })
            .flatten()
            // If it would have to wait for decoding on the NPU, the iGPU is the better place.
            .filter(|cost| !self.is_diverted(entry, *cost))
            .map(|cost| (Lane::Npu, cost));
        match (dynamic, npu) {
            (Some(a), Some(b)) => {
                let npu_first = self.end_of(b.0, b.1) < self.end_of(a.0, a.1);
                let avoids = |at: Lane| entry.own.failed_on() == Some(at);
                let take_npu = (npu_first || avoids(a.0)) && !avoids(b.0);
                Some(if take_npu { b } else { a })
            }
            (one, other) => one.or(other),
        }
    }
}
