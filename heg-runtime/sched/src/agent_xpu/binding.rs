//! Elastic binding: which lane a kernel of a prompt goes to, decided when it could start (§4.3).

use heg_spec::policy::NpuAttention;

use super::AgentXpu;
use super::stage::Entry;
use crate::costs::{Call, Cost, Costs};
use crate::event::{Kernel, Work};
use crate::partition::{LayerTimes, npu_chunks};
use crate::prefill::{Prefill, Step};
use crate::request::{Class, Lane, Micros, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// The head goes where its token is there first.
    pub(super) fn head_lane(&self, entry: &Entry) -> Option<(Lane, Cost)> {
        let call = Call::Head { rows: 1 };
        let npu = self.costs.cost(Lane::Npu, call);
        // Where it would have to wait for decoding, the iGPU is the better place.
        let waits = npu.is_some_and(|cost| self.must_wait_for_decode(entry, cost));
        let npu = Some(Lane::Npu).filter(|_| !waits);
        self.first_done([npu, self.dynamic_lane()], entry, call)
    }

    /// Of the lanes that can run a call, the one that ends first, counting what runs there now.
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
        // Where its last launch failed it is tried again only if there is no other place.
        let others = able.iter().any(|(lane, _)| entry.own.failed != Some(*lane));
        able.into_iter()
            .filter(|(lane, _)| !others || entry.own.failed != Some(*lane))
            .min_by(|a, b| self.end_of(a.0, a.1).total_cmp(&self.end_of(b.0, b.1)))
    }

    /// When a kernel would end on a lane, in µs from now. A decode run gives way at its next layer.
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

    /// Which lane a kernel of a prompt belongs to, and what it takes there.
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
        let beside_overdue = self.prefills.overdue.is_some();
        let preferred = if self.prefills.overdue == Some(id) {
            dynamic
        } else if beside_overdue || self.prefills.backfill == Some(id) {
            npu
        } else if self.prefills.aside == Some(id) {
            if self.aside_gives_way(prefill) {
                npu
            } else {
                dynamic
            }
        } else if step.part >= prefill.chunks() {
            if self.remainder_leaves_dynamic_lane(entry, step.segment.tokens) {
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
        let avoided = entry.own.failed.is_some() && preferred == entry.own.failed;
        let other = if preferred == npu { dynamic } else { npu };
        let choices = if avoided {
            [other, preferred]
        } else {
            [preferred, other]
        };
        choices.into_iter().flatten().find_map(at)
    }

    /// How many chunks of a prompt the NPU takes: all, unless the iGPU has nothing else to do, or nothing better.
    fn npu_share(&self, entry: &Entry, prefill: &Prefill) -> usize {
        let policy = &self.policy.prefill;
        let splits = match entry.class() {
            Class::Reactive => {
                let spares = policy.split_beside_proactive_ms.is_some()
                    && !self.decodes_for_somebody(Micros(0));
                let free = self.decode.is_idle() || spares;
                policy.elastic && free && self.prefills.aside.is_none()
            }
            Class::Proactive => {
                let free = self.decode.is_idle() || self.prefill_lags();
                policy.balance && free && self.backlog_asks_for_balance()
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
    /// more of them, and the prefill, which holds up all, goes on twice as fast (v1 6.5).
    fn prefill_lags(&self) -> bool {
        self.prefills.proactive_waiting() > self.decode.len() && !self.decodes_reactive()
    }

    /// Whether a proactive remainder leaves the iGPU to others; the NPU pads it.
    fn remainder_leaves_dynamic_lane(&self, entry: &Entry, tokens: u32) -> bool {
        let policy = &self.policy.prefill;
        let makes_room = || policy.balance && self.decodes_reactive();
        let queue_is_long = policy.balance && self.backlog_asks_for_balance();
        let least = policy.npu_remainder_tokens_min.filter(|_| !queue_is_long);
        let long = least.is_some_and(|least| tokens >= least);
        entry.class() == Class::Proactive && (long || makes_room())
    }

    /// Whether a request decodes for which somebody waits, or that is overdue, and it has waited long for its next token: a
    /// reactive one for `patience`.
    pub(super) fn decodes_for_somebody(&self, patience: Micros) -> bool {
        let overdue_ms = self.policy.prefill.split_beside_proactive_ms.unwrap_or(0);
        let mut decoding = self.decode.requests().filter_map(|id| self.ledger.get(*id));
        decoding.any(|entry| {
            let may_wait = match entry.class() {
                Class::Reactive => patience,
                Class::Proactive if entry.own.overdue => Micros::from_millis(overdue_ms),
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

    /// Attention belongs to the iGPU; to the NPU where a static kernel is at hand and ends earlier.
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
            // Where it would have to wait for decoding, the iGPU is the better place.
            .filter(|cost| !self.must_wait_for_decode(entry, *cost))
            .map(|cost| (Lane::Npu, cost));
        match (dynamic, npu) {
            (Some(a), Some(b)) => {
                let npu_first = self.end_of(b.0, b.1) < self.end_of(a.0, a.1);
                let avoids = |at: Lane| entry.own.failed == Some(at);
                let take_npu = (npu_first || avoids(a.0)) && !avoids(b.0);
                Some(if take_npu { b } else { a })
            }
            (one, other) => one.or(other),
        }
    }
}
