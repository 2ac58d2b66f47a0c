//! The decode pipeline: continuous batching on the iGPU, an iteration at a time (§4.3 to §4.5).
//!
//! An iteration is launched as one run of layers, which gives way to a prefill between two of them and goes on
//! later: its batch stays as it is until every request in it has its token.

use super::AgentXpu;
use super::decodes::{Iteration, Reached};
use super::rules::{Proposal, Verdict};
use crate::batch::{CONTEXT_STEP, Candidate, next_batch, with_drafts};
use crate::costs::{Call, Cost, Costs};
use crate::event::{Actions, DecodeRun, Decoding, Work};
use crate::ledger::Outcome;
use crate::request::{Class, Lane, RequestId};
use heg_spec::bug;

/// An iteration that could be launched now.
pub(super) struct NextIteration {
    iteration: Iteration,
    run: DecodeRun,
    cost: Cost,
}

impl NextIteration {
    /// The proposal that rules judge.
    pub(super) fn proposal(&self) -> Proposal<'static> {
        Proposal::Iteration {
            class: self.iteration.class(),
            lane: self.iteration.lane(),
            cost: self.cost,
        }
    }

    /// Whether its layers are one kernel each.
    pub(super) fn is_fused(&self) -> bool {
        self.run.fused
    }
}

impl<C: Costs> AgentXpu<C> {
    /// Returns the iteration that the lane could begin, or continue, now.
    pub(super) fn next_iteration(&self, lane: Lane) -> Option<NextIteration> {
        if self.decodes() {
            // An iteration still runs on the lane that stood in for this one while it was away.
            return None;
        }
        let next = self.planned_iteration(lane)?;
        self.may_start(next.proposal()).then_some(next)
    }

    /// Returns the iteration that the lane could begin or continue, even if a rule holds it back.
    pub(super) fn planned_iteration(&self, lane: Lane) -> Option<NextIteration> {
        let begun = self.decode.iteration().cloned();
        let iteration = begun.or_else(|| self.compose(lane))?;
        let is_one = Decoding::rows_of(iteration.batch()) == 1;
        let run = iteration.rest(self.model.layers, self.policy.decode.fused_layer && is_one);
        let cost = self.decode_cost(lane, &run)?;
        Some(NextIteration {
            iteration,
            run,
            cost,
        })
    }

    /// Launches the iteration that [`next_iteration`](Self::next_iteration) found.
    pub(super) fn start_iteration(
        &mut self,
        lane: Lane,
        next: NextIteration,
        actions: &mut Actions,
    ) {
        self.note_iteration(&next);
        let class = next.iteration.class();
        self.decode.begin(next.iteration);
        self.launch(lane, class, Work::Decode(next.run), next.cost, actions);
    }

    /// Whether an iteration runs on a lane of dynamic kernels.
    fn decodes(&self) -> bool {
        let mut running = self.lanes.all_running();
        running.any(|(lane, running)| lane != Lane::Npu && matches!(running.work, Work::Decode(_)))
    }

    /// Whether a request is part of the iteration that has begun, or of one that a lane is to stop.
    pub(super) fn decode_holds(&self, id: RequestId) -> bool {
        self.decode.holds(id) || !self.lanes.stops(id).is_empty()
    }

    /// Drops an iteration that gave way on a lane that is no longer the one of dynamic kernels: its hidden states are
    /// in the activations of that lane.
    pub(super) fn drop_stray_iteration(&mut self, actions: &mut Actions) {
        let iteration = self.decode.iteration();
        let Some(iteration) = iteration.filter(|it| it.is_between_layers()) else {
            return;
        };
        let stays = self.dynamic_lane() == Some(iteration.lane());
        if stays || self.decodes() {
            return;
        }
        let iteration = self.decode.take_iteration();
        for member in iteration.iter().flat_map(|it| it.batch()) {
            self.settle(member.request, actions);
        }
    }

    /// Whether a reactive request decodes and the NPU's next kernel is a proactive one's.
    pub(super) fn decodes_more_urgently(&self) -> bool {
        let next = self.next_prefill(Lane::Npu).map(|next| next.class);
        next == Some(Class::Proactive) && self.most_urgent() == Some(Class::Reactive)
    }

    /// The most urgent class of the iteration that has begun; if there is none, of the requests for the next one.
    pub(super) fn decoding_class(&self) -> Option<Class> {
        let begun = self.decode.iteration().map(Iteration::class);
        begun.or_else(|| self.most_urgent())
    }

    /// The most urgent class among the requests that decode.
    fn most_urgent(&self) -> Option<Class> {
        let ids = self.decode.requests();
        ids.filter_map(|id| self.class_of(*id)).min()
    }

    /// Requests that could be in the next iteration.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        self.candidates_where(|id| !self.decode.holds(id))
    }

    /// Requests that could be in the next iteration and for which `is_free` holds.
    pub(super) fn candidates_where(&self, is_free: impl Fn(RequestId) -> bool) -> Vec<Candidate> {
        let candidate = |id: &RequestId| {
            let entry = self.ledger.get(*id)?;
            // Work that a lane is to stop may still write to the request's memory (v1 6.5).
            let stops = !self.lanes.stops(*id).is_empty();
            let may = entry.may_run() && is_free(*id) && !stops;
            may.then(|| Candidate {
                id: *id,
                class: entry.class(),
                client: entry.client(),
                waits_since: entry.waits_since,
                context: entry.context(),
                overdue: entry.own.is_overdue(),
                draft: entry.draft(self.model.context_tokens),
            })
        };
        let mut candidates: Vec<Candidate> = self.decode.requests().filter_map(candidate).collect();
        self.decode.isolation().narrow(&mut candidates, |it| it.id);
        candidates
    }

    fn compose(&self, lane: Lane) -> Option<Iteration> {
        let candidates = self.candidates();
        let batch = next_batch(&self.policy.decode, &candidates, self.ledger.clients());
        self.note_batch(&candidates, &batch);
        let batch = self.bearable(lane, batch);
        let class = batch.iter().map(|candidate| candidate.class).min()?;
        let time = |batch: &[Decoding]| self.iteration_us(lane, batch);
        let batch = with_drafts(&batch, &self.policy, time);
        Some(Iteration::new(batch, class, lane))
    }

    /// Returns a batch without the answers that rules leave out of it.
    pub(super) fn bearable(&self, lane: Lane, mut batch: Vec<Candidate>) -> Vec<Candidate> {
        let proposal = Proposal::Batch {
            lane,
            batch: &batch,
        };
        if let (Verdict::First(members), _) = self.judged(proposal) {
            batch.truncate(members);
        }
        batch
    }

    /// The cost of a run: its layers, and the head, which comes after the last one.
    pub(super) fn decode_cost(&self, lane: Lane, run: &DecodeRun) -> Option<Cost> {
        let call = Call::iteration(lane, &run.batch, run.fused);
        self.layers_cost(lane, call, run.layers.len())
    }

    /// The cost of `layers` layers of an iteration, and the head.
    pub(super) fn layers_cost(&self, lane: Lane, layer: Call, layers: usize) -> Option<Cost> {
        let (Call::Layer { rows, .. } | Call::Verify { rows, .. }) = layer else {
            bug!("an iteration has a call that is of no layer");
            return None;
        };
        let layer = self.costs.cost(lane, layer)?;
        let head = self.costs.cost(lane, Call::Head { rows })?;
        Some(Cost {
            latency_us: layer.latency_us * layers as f64 + head.latency_us,
            bandwidth: layer.bandwidth,
        })
    }

    /// Approximate time of a whole iteration, in µs, for comparing numbers of rows.
    pub(super) fn iteration_us(&self, lane: Lane, batch: &[Decoding]) -> Option<f64> {
        let rows = Decoding::rows_of(batch);
        let context: u32 = batch.iter().map(|member| member.context).sum();
        let call = Call::Layer {
            rows,
            context: context.next_multiple_of(CONTEXT_STEP),
            fused: self.policy.decode.fused_layer && rows == 1,
        };
        let layers = self.model.layers as usize;
        Some(self.layers_cost(lane, call, layers)?.latency_us)
    }

    /// Notes that a run came to its end, or to the layer at which it gave way.
    pub(super) fn decoded(
        &mut self,
        run: &DecodeRun,
        layers: u32,
        outcome: Outcome<'_>,
        actions: &mut Actions,
    ) {
        if self.decode.reached(run, layers, self.model.layers) == Reached::Part {
            return;
        }
        let ids = run.batch.iter().map(|member| member.request);
        self.decode.isolation_mut().succeeded(ids);
        for member in run.batch.iter() {
            if let Some(entry) = self.ledger.get_mut(member.request) {
                entry.waits_since = self.now;
                entry.succeeded();
            }
            self.emit(member.request, outcome, actions);
        }
    }
}
