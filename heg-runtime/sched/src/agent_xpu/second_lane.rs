//! Uses the NPU as a second lane of decoding: it verifies the draft of one request on its static kernels, which take
//! as long for a whole draft as for a token, while the lane of dynamic kernels decodes the others
//! (`decode.second_lane`).
//!
//! A verification gives way to prompts between two layers, and goes on when the NPU is free again. It is launched
//! if, by the predicted costs, both lanes together give more tokens per time than the one alone, although they
//! share bandwidth; if no reactive answer becomes slower by it; and, for a proactive answer, if a token takes no
//! more energy, as far as that is known.

use std::sync::Arc;

use super::AgentXpu;
use super::decodes::Iteration;
use super::rules::Proposal;
use crate::batch::{Candidate, next_batch, with_drafts};
use crate::costs::{Call, Cost, Costs, WorkStage};
use crate::event::{Actions, Decoding, Work};
use crate::mechanism::Mechanism;
use crate::request::{Class, Lane};

/// Rows of the smallest chunk of an NPU's kernels: a token and the draft behind it.
const ROWS_MAX: u32 = 32;

impl<C: Costs> AgentXpu<C> {
    /// Gives the NPU a verification if no prompt has work for it, and takes the NPU back for a prompt.
    pub(super) fn verify_aside(&mut self, actions: &mut Actions) {
        if !self.policy.decode.second_lane {
            return;
        }
        self.drop_stray_verification(actions);
        if !self.lanes.is_free(Lane::Npu) {
            if self.next_prefill(Lane::Npu).is_some() {
                self.ask_to_yield(Lane::Npu, actions);
            }
            return;
        }
        let begun = self.decode.aside().cloned();
        let Some(iteration) = begun.or_else(|| self.worth_verifying_aside()) else {
            return;
        };
        let run = iteration.rest(self.model.layers, false);
        let Some(cost) = self.decode_cost(Lane::Npu, &run) else {
            return;
        };
        let class = iteration.class();
        let proposal = Proposal::Iteration {
            class,
            lane: Lane::Npu,
            cost,
        };
        if !self.may_start(proposal) {
            return;
        }
        self.tally.note(Mechanism::SecondLane);
        self.decode.begin_aside(iteration);
        self.launch(Lane::Npu, class, Work::Decode(run), cost, actions);
    }

    /// Drops a verification that gave way if its request is not to run any more, or if the NPU is gone and its hidden
    /// states with it.
    fn drop_stray_verification(&mut self, actions: &mut Actions) {
        let aside = self.decode.aside().map(|it| it.batch().to_vec());
        let Some((batch, id)) = aside.and_then(|batch| {
            let id = batch.first()?.request;
            Some((batch, id))
        }) else {
            return;
        };
        let stays = self.lanes.is_present(Lane::Npu)
            && self.ledger.get(id).is_some_and(|entry| entry.may_run());
        if !stays && !self.lanes.runs(id) {
            self.decode.abandon(&batch);
            self.settle(id, actions);
        }
    }

    /// Returns the verification of the longest draft, if it is worth the NPU's time.
    fn worth_verifying_aside(&self) -> Option<Iteration> {
        let lane = self.dynamic_lane()?;
        let iterates = self.decode.iteration().is_some() || self.decode.isolation().is_searching();
        if iterates || self.policy.pressure.is_some() {
            return None;
        }
        let all = self.candidates();
        let failed = |candidate: &Candidate| {
            let entry = self.ledger.get(candidate.id);
            entry.is_none_or(|entry| entry.own.failed_on() == Some(Lane::Npu))
        };
        let drafted = |candidate: &Candidate| -> u32 {
            candidate.draft.iter().map(|reach| u32::from(*reach)).sum()
        };
        let able = (0..all.len()).filter(|at| drafted(&all[*at]) > 0 && !failed(&all[*at]));
        let longest = able.max_by_key(|at| drafted(&all[*at]))?;
        let together = self.composed(lane, &all)?;
        let mut others = all.clone();
        let own = others.remove(longest);
        let apart = self.composed(lane, &others)?;
        let rows_max = self.policy.decode.draft_rows_max.min(ROWS_MAX);
        let decoding = Decoding {
            request: own.id,
            context: own.context,
            drafted: rows_max.saturating_sub(1).min(own.draft.len() as u32),
        };
        let iteration = Iteration::new(Arc::from([decoding]), own.class, Lane::Npu);
        let run = iteration.rest(self.model.layers, false);
        let cost = self.decode_cost(Lane::Npu, &run)?;
        let entry = self.ledger.get(own.id)?;
        let waits = self.is_diverted(entry, cost);
        let watts = |lane| self.costs.watts(lane, WorkStage::Decode);
        let aside = Aside {
            own: &own,
            tokens: tokens_of(&own, decoding.drafted),
            cost,
            watts: watts(lane).zip(watts(Lane::Npu)),
        };
        (!waits && aside.pays(&together, &apart)).then_some(iteration)
    }

    /// Composes the iteration that the lane of dynamic kernels would run for these candidates.
    fn composed<'c>(&self, lane: Lane, candidates: &'c [Candidate]) -> Option<Composed<'c>> {
        let batch = self.bearable(
            lane,
            next_batch(&self.policy.decode, candidates, self.ledger.clients()),
        );
        batch.first()?;
        let time = |batch: &[Decoding]| self.iteration_us(lane, batch);
        let batch = with_drafts(&batch, &self.policy, time);
        let layer = self.costs.cost(lane, Call::layer(&batch, false))?;
        Some(Composed {
            us: time(&batch)?,
            bandwidth: layer.bandwidth,
            candidates,
            batch,
        })
    }
}

/// An iteration that could run, and the requests that it was composed from.
struct Composed<'c> {
    batch: Arc<[Decoding]>,
    candidates: &'c [Candidate],
    us: f64,
    bandwidth: f64,
}

impl Composed<'_> {
    /// Expected number of its tokens.
    fn tokens(&self) -> f64 {
        let tokens = |member: &Decoding| {
            let mut candidates = self.candidates.iter();
            let candidate = candidates.find(|candidate| candidate.id == member.request);
            candidate.map_or(0.0, |candidate| tokens_of(candidate, member.drafted))
        };
        self.batch.iter().map(tokens).sum()
    }

    /// Expected tokens per µs of a candidate.
    fn rate_of(&self, candidate: &Candidate) -> f64 {
        let mut batch = self.batch.iter();
        let member = batch.find(|member| member.request == candidate.id);
        member.map_or(0.0, |member| tokens_of(candidate, member.drafted) / self.us)
    }

    fn has_reactive(&self) -> bool {
        let is_in = |candidate: &Candidate| {
            let mut batch = self.batch.iter();
            batch.any(|member| member.request == candidate.id)
        };
        let mut reactive = self
            .candidates
            .iter()
            .filter(|it| it.class == Class::Reactive);
        reactive.any(is_in)
    }
}

/// Expected tokens of a request if `drafted` of its drafted tokens are verified.
fn tokens_of(candidate: &Candidate, drafted: u32) -> f64 {
    let drafted = candidate.draft.iter().take(drafted as usize);
    1.0 + drafted.map(|reach| f64::from(*reach) / 1000.0).sum::<f64>()
}

/// A verification on the NPU beside an iteration of the others.
struct Aside<'c> {
    own: &'c Candidate,
    tokens: f64,
    cost: Cost,
    /// Power of the lane of dynamic kernels and of the NPU, in W; `None` unless both are known.
    watts: Option<(f64, f64)>,
}

impl Aside<'_> {
    /// Whether the others `apart`, beside this verification, are better off than all `together`.
    fn pays(&self, together: &Composed<'_>, apart: &Composed<'_>) -> bool {
        // Both share the memory bandwidth, and slow down equally.
        let slower = (apart.bandwidth + self.cost.bandwidth).max(1.0);
        let own_rate = self.tokens / (self.cost.latency_us * slower);
        let apart_us = apart.us * slower;
        let rate = apart.tokens() / apart_us + own_rate;
        let rate_together = together.tokens() / together.us;
        let reactive_first = match self.own.class {
            Class::Reactive => own_rate >= together.rate_of(self.own),
            Class::Proactive => true,
        };
        let holds_up = apart.has_reactive() && apart_us > together.us;
        let wastes = self.own.class == Class::Proactive
            && self
                .watts
                .is_some_and(|(dynamic, npu)| (dynamic + npu) / rate > dynamic / rate_together);
        rate > rate_together && reactive_first && !holds_up && !wastes
    }
}
