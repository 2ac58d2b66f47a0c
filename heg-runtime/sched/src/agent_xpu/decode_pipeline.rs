//! The decode pipeline: continuous batching on the iGPU, an iteration at a time (§4.3 to §4.5).
//!
//! An iteration is launched as one run of layers, which gives way to a prefill between two of them and goes on
//! later: its batch stays as it is until every request in it has its token.

use std::sync::Arc;

use super::AgentXpu;
use super::company::CONTEXT_STEP;
use super::gates::Proposal;
use crate::batch::{Candidate, next_batch, with_drafts};
use crate::costs::{Call, Cost, Costs};
use crate::event::{Actions, DecodeRun, Decoding, Work};
use crate::isolation::Isolation;
use crate::ledger::Outcome;
use crate::request::{Class, Lane, RequestId};

/// The requests that decode, and the iteration under way.
#[derive(Debug, Default)]
pub(super) struct Decode {
    /// Requests past their prefill, in the order in which they came here.
    requests: Vec<RequestId>,
    /// The iteration that has begun on the lane of dynamic kernels.
    pub(super) iteration: Option<Iteration>,
    /// The verification that has begun on the NPU (`second_lane`).
    pub(super) aside: Option<Iteration>,
    /// Who makes iterations fail.
    pub(super) isolation: Isolation,
}

#[derive(Debug, Clone)]
pub(super) struct Iteration {
    pub(super) batch: Arc<[Decoding]>,
    /// The most urgent class in it.
    pub(super) class: Class,
    pub(super) layers_done: u32,
    /// Whose activations it is in.
    pub(super) lane: Lane,
}

impl Iteration {
    fn holds(&self, id: RequestId) -> bool {
        self.batch.iter().any(|member| member.request == id)
    }
}

/// An iteration that could be launched now.
pub(super) struct NextIteration {
    iteration: Iteration,
    run: DecodeRun,
    cost: Cost,
}

impl NextIteration {
    /// What gates judge of it.
    pub(super) fn proposal(&self) -> Proposal<'static> {
        Proposal::Iteration {
            class: self.iteration.class,
            lane: self.iteration.lane,
            cost: self.cost,
        }
    }

    /// Whether its layers are one kernel each.
    pub(super) fn is_fused(&self) -> bool {
        self.run.fused
    }
}

impl Decode {
    pub(super) fn join(&mut self, id: RequestId) {
        self.requests.push(id);
    }

    pub(super) fn leave(&mut self, id: RequestId) {
        self.requests.retain(|other| *other != id);
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = &RequestId> + Clone {
        self.requests.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is nothing to decode.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether a request is part of an iteration that has begun.
    pub(super) fn holds(&self, id: RequestId) -> bool {
        let begun = [&self.iteration, &self.aside].into_iter().flatten();
        begun.into_iter().any(|iteration| iteration.holds(id))
    }

    /// Whether an iteration has begun on the lane that decodes.
    pub(super) fn has_begun(&self) -> bool {
        self.iteration.is_some()
    }

    /// Where the iteration of a batch stands.
    fn slot(&mut self, batch: &[Decoding]) -> &mut Option<Iteration> {
        let is_aside = self.aside.as_ref().is_some_and(|it| *it.batch == *batch);
        match is_aside {
            true => &mut self.aside,
            false => &mut self.iteration,
        }
    }

    /// Drops the iteration of a batch, which has begun; its requests have no token from it.
    pub(super) fn abandon(&mut self, batch: &[Decoding]) {
        *self.slot(batch) = None;
    }
}

impl<C: Costs> AgentXpu<C> {
    /// The iteration that the lane could begin, or go on with, now.
    pub(super) fn next_iteration(&self, lane: Lane) -> Option<NextIteration> {
        if self.decodes() {
            // On the lane that stood in for this one while it was away.
            return None;
        }
        let next = self.planned_iteration(lane)?;
        self.may_start(next.proposal()).then_some(next)
    }

    /// The same, whether or not a gate holds it back.
    pub(super) fn planned_iteration(&self, lane: Lane) -> Option<NextIteration> {
        let begun = self.decode.iteration.clone();
        let iteration = begun.or_else(|| self.compose(lane))?;
        let run = DecodeRun {
            batch: Arc::clone(&iteration.batch),
            layers: iteration.layers_done..self.model.layers,
            fused: self.policy.decode.fused_layer && Decoding::rows_of(&iteration.batch) == 1,
        };
        let cost = self.decode_cost(lane, &run)?;
        Some(NextIteration {
            iteration,
            run,
            cost,
        })
    }

    /// Launches what [`next_iteration`](Self::next_iteration) found.
    pub(super) fn start_iteration(
        &mut self,
        lane: Lane,
        next: NextIteration,
        actions: &mut Actions,
    ) {
        self.note_iteration(&next);
        let class = next.iteration.class;
        self.decode.iteration = Some(next.iteration);
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

    /// Drops an iteration that gave way on a lane that is not the one of dynamic kernels any more: its hidden states are
    /// in the activations of that lane.
    pub(super) fn drop_stray_iteration(&mut self, actions: &mut Actions) {
        let iteration = self.decode.iteration.as_ref();
        let Some(iteration) = iteration.filter(|it| it.layers_done > 0) else {
            return;
        };
        let stays = self.dynamic_lane() == Some(iteration.lane);
        if stays || self.decodes() {
            return;
        }
        let iteration = self.decode.iteration.take();
        for member in iteration.iter().flat_map(|it| it.batch.iter()) {
            self.settle(member.request, actions);
        }
    }

    /// Whether a reactive request decodes and the NPU's next kernel is a proactive one's.
    pub(super) fn decodes_more_urgently(&self) -> bool {
        let next = self.next_prefill(Lane::Npu).map(|next| next.class);
        next == Some(Class::Proactive) && self.most_urgent() == Some(Class::Reactive)
    }

    /// The most urgent class of the iteration that has begun, or of those that the next one is for.
    pub(super) fn decoding_class(&self) -> Option<Class> {
        let begun = self.decode.iteration.as_ref();
        begun.map_or_else(|| self.most_urgent(), |iteration| Some(iteration.class))
    }

    /// The most urgent class among those that decode.
    fn most_urgent(&self) -> Option<Class> {
        let ids = self.decode.requests.iter();
        ids.filter_map(|id| self.class_of(*id)).min()
    }

    /// Requests that could be in the next iteration.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        self.candidates_where(|id| !self.decode.holds(id))
    }

    /// The same of those for which `is_free` holds.
    pub(super) fn candidates_where(&self, is_free: impl Fn(RequestId) -> bool) -> Vec<Candidate> {
        let candidate = |id: &RequestId| {
            let entry = self.ledger.get(*id)?;
            let may = entry.may_run() && is_free(*id);
            (may && self.may_start(Proposal::Token { entry })).then(|| Candidate {
                id: *id,
                class: entry.class(),
                context: entry.context(),
                overdue: entry.own.overdue,
                draft: entry.draft(self.model.context_tokens),
            })
        };
        let mut candidates: Vec<Candidate> =
            self.decode.requests.iter().filter_map(candidate).collect();
        self.decode.isolation.narrow(&mut candidates, |it| it.id);
        candidates
    }

    fn compose(&self, lane: Lane) -> Option<Iteration> {
        let candidates = self.candidates();
        let batch = next_batch(&self.policy.decode, &candidates);
        self.note_batch(&candidates, &batch);
        let batch = self.bearable(lane, batch);
        let class = batch.iter().map(|candidate| candidate.class).min()?;
        let time = |batch: &[Decoding]| self.iteration_us(lane, batch);
        let batch = with_drafts(&batch, &self.policy, time);
        Some(Iteration {
            batch,
            class,
            layers_done: 0,
            lane,
        })
    }

    /// What a run takes: its layers, and the head, which comes after the last one.
    pub(super) fn decode_cost(&self, lane: Lane, run: &DecodeRun) -> Option<Cost> {
        let call = Call::iteration(lane, &run.batch, run.fused);
        self.layers_cost(lane, call, run.layers.len())
    }

    /// What so many layers of an iteration take, and the head.
    pub(super) fn layers_cost(&self, lane: Lane, layer: Call, layers: usize) -> Option<Cost> {
        let (Call::Layer { rows, .. } | Call::Verify { rows, .. }) = layer else {
            return None;
        };
        let layer = self.costs.cost(lane, layer)?;
        let head = self.costs.cost(lane, Call::Head { rows })?;
        Some(Cost {
            latency_us: layer.latency_us * layers as f64 + head.latency_us,
            bandwidth: layer.bandwidth,
        })
    }

    /// What a whole iteration takes, roughly: for comparing numbers of rows.
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

    /// A run came to its end, or to the layer at which it gave way.
    pub(super) fn decoded(
        &mut self,
        run: &DecodeRun,
        layers: u32,
        outcome: Outcome<'_>,
        actions: &mut Actions,
    ) {
        let layers_of_model = self.model.layers;
        let slot = self.decode.slot(&run.batch);
        let Some(iteration) = slot else {
            return;
        };
        if layers < layers_of_model {
            iteration.layers_done = layers.clamp(run.layers.start, run.layers.end);
            if iteration.layers_done == 0 {
                // It has not begun: until it does, others may join.
                *slot = None;
            }
            return;
        }
        *slot = None;
        let ids = run.batch.iter().map(|member| member.request);
        self.decode.isolation.succeeded(ids);
        for member in run.batch.iter() {
            if let Some(entry) = self.ledger.get_mut(member.request) {
                entry.waits_since = self.now;
                entry.succeeded();
            }
            self.emit(member.request, outcome, actions);
        }
    }
}
