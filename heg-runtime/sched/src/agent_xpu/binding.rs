//! Elastic binding: chooses the lane of a prompt's kernel at the time when it could start (§4.3).

use heg_spec::policy::NpuAttention;

use super::AgentXpu;
use super::prefills::Slot;
use super::stage::Entry;
use crate::costs::{Call, Cost, Costs};
use crate::event::{Kernel, Work};
use crate::partition::{LayerTimes, npu_chunks};
use crate::prefill::{Prefill, Step};
use crate::request::{Class, Lane, Micros, RequestId};

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
        id: RequestId,
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
        if step.kernel == Kernel::Mha {
            return self.attention_lane(entry, step, call);
        }
        let beside_overdue = self.prefills.holder(Slot::Overdue).is_some();
        let preferred = if self.prefills.holds(Slot::Overdue, id) {
            dynamic
        } else if beside_overdue || self.prefills.holds(Slot::Backfill, id) {
            npu
        } else if self.prefills.holds(Slot::Aside, id) {
            if self.aside_gives_way(prefill) {
                npu
            } else {
                dynamic
            }
        } else if step.part >= prefill.chunks() {
            if self.remainder_leaves_dynamic_lane(entry) {
                npu
            } else {
                dynamic
            }
        } else if step.part < self.npu_share(entry, prefill) {
            npu
        } else {
            dynamic
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

    /// Returns the number of a prompt's chunks that the NPU takes: all, unless the iGPU has nothing else, or nothing
    /// better, to do.
    fn npu_share(&self, entry: &Entry, prefill: &Prefill) -> usize {
        let policy = &self.policy.prefill;
        let splits = match entry.class() {
            Class::Reactive => {
                let spares = policy.split_beside_proactive_ms.is_some()
                    && !self.decodes_for_somebody(Micros(0));
                let free = self.decode.is_idle() || spares;
                policy.elastic && free && self.prefills.holder(Slot::Aside).is_none()
            }
            Class::Proactive => {
                let free = self.decode.is_idle() || self.prefill_lags();
                policy.balance && free
            }
        };
        if !splits || prefill.chunks() == 0 {
            return prefill.chunks();
        }
        self.layer_times(prefill).map_or(prefill.chunks(), |times| {
            npu_chunks(prefill.chunks(), times)
        })
    }

    /// Whether more proactive requests wait for their prefill than decode, and no reactive one decodes.
    ///
    /// An iteration takes about as long for many requests as for one: decoding loses little when it waits for
    /// more of them, and the prefill, on which all depend, goes on twice as fast (v1 6.5).
    fn prefill_lags(&self) -> bool {
        self.prefills.queue(Class::Proactive).len() > self.decode.len() && !self.decodes_reactive()
    }

    /// Whether a proactive remainder leaves the iGPU to other work; the NPU pads it.
    fn remainder_leaves_dynamic_lane(&self, entry: &Entry) -> bool {
        entry.class() == Class::Proactive && self.policy.prefill.balance && self.decodes_reactive()
    }

    /// Whether a request that is reactive or overdue decodes and has waited long for its next token: a reactive one
    /// for `patience`, an overdue one for `split_beside_proactive_ms`.
    pub(super) fn decodes_for_somebody(&self, patience: Micros) -> bool {
        let overdue_ms = self.policy.prefill.split_beside_proactive_ms.unwrap_or(0);
        let mut decoding = self.decode.requests().filter_map(|id| self.ledger.get(*id));
        decoding.any(|entry| {
            let may_wait = match entry.class() {
                Class::Reactive => patience,
                Class::Proactive if entry.own.is_overdue() => Micros::from_millis(overdue_ms),
                Class::Proactive => return false,
            };
            self.now.since(entry.waits_since) >= may_wait
        })
    }

    /// Whether a reactive request decodes.
    pub(super) fn decodes_reactive(&self) -> bool {
        let reactive = |id: &RequestId| self.class_of(*id) == Some(Class::Reactive);
        self.decode.requests().any(reactive)
    }

    fn layer_times(&self, prefill: &Prefill) -> Option<LayerTimes> {
        let dynamic = self.dynamic_lane()?;
        let latency = |lane, kernel, tokens, context| {
            let call = Call::Prefill {
                kernel,
                tokens,
                context,
            };
            Some(self.costs.cost(lane, call)?.latency_us)
        };
        let token_wise = |lane, tokens| {
            let qkv = latency(lane, Kernel::Qkv, tokens, tokens)?;
            Some(qkv + latency(lane, Kernel::Ffn, tokens, tokens)?)
        };
        let chunk = self.model.chunk_tokens;
        let attention: Option<f64> = prefill
            .segments()
            .map(|segment| latency(dynamic, Kernel::Mha, segment.tokens, segment.context()))
            .sum();
        let remainder = match prefill.remainder() {
            0 => 0.0,
            tokens => token_wise(dynamic, tokens)?,
        };
        Some(LayerTimes {
            npu_chunk_us: token_wise(Lane::Npu, chunk)?,
            igpu_chunk_us: token_wise(dynamic, chunk)?,
            igpu_fixed_us: attention? + remainder,
        })
    }

    /// Returns the lane of attention: the iGPU, or the NPU if a static kernel is loaded there and ends earlier.
    fn attention_lane(&self, entry: &Entry, step: Step, call: Call) -> Option<(Lane, Cost)> {
        let dynamic = self
            .dynamic_lane()
            .and_then(|lane| Some((lane, self.costs.cost(lane, call)?)));
        let npu = self
            .lanes
            .is_present(Lane::Npu)
            .then(|| match self.policy.prefill.attention {
                NpuAttention::Off => None,
                NpuAttention::WarmUp => self.warmth.cost(&self.costs, step.segment),
                NpuAttention::Bundle => self.costs.cost(Lane::Npu, call),
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
