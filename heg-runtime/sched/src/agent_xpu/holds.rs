//! What requests wait for, by the same rules that keep them waiting.

use super::AgentXpu;
use super::gates::Proposal;
use super::stage::{Entry, Phase};
use crate::batch::{Candidate, next_batch};
use crate::costs::{Cost, Costs};
use crate::event::Work;
use crate::hold::{Hold, HoldReason};
use crate::prefill::{Prefill, Step};
use crate::request::{Class, Lane, RequestId};

/// Who could be in the next iteration, and who is.
struct NextBatch {
    candidates: Vec<RequestId>,
    /// Those that the caps leave in it.
    capped: Vec<RequestId>,
    /// Those of them that reactive answers bear.
    borne: Vec<RequestId>,
}

impl<C: Costs> AgentXpu<C> {
    /// Appends what requests wait for.
    pub(super) fn append_holds(&self, holds: &mut Vec<Hold>) {
        let batch = self.next_batch();
        for (request, entry) in self.ledger.iter() {
            let why = match &entry.own.phase {
                _ if self.lanes.runs(request) => None,
                _ if !self.lanes.stops(request).is_empty() => Some(HoldReason::Stopping),
                Phase::Decode => self.answer_hold(entry, &batch),
                Phase::Prefill(prefill) if self.prefills.is_active(request) => {
                    self.prompt_hold(entry, prefill)
                }
                Phase::Queued | Phase::Prefill(_) => Some(self.queue_hold(entry)),
            };
            holds.extend(why.map(|why| Hold { request, why }));
        }
    }

    /// What a prompt that is not under way waits for.
    fn queue_hold(&self, entry: &Entry) -> HoldReason {
        let begun = !matches!(entry.own.phase, Phase::Queued);
        match self.goes_before(entry, begun) {
            Some(other) if begun => HoldReason::Preempted(other),
            Some(other) => HoldReason::Prompt(other),
            None if self.kv.writes_to_flash() => HoldReason::Flash,
            None => HoldReason::Memory,
        }
    }

    /// The request whose prompt keeps a waiting one from its turn; `None` where that is next, and lacks room.
    fn goes_before(&self, entry: &Entry, begun: bool) -> Option<RequestId> {
        let (id, class) = (entry.id(), entry.class());
        let reactive = class == Class::Reactive;
        let foreground = self.prefills.foreground;
        if let Some(current) = foreground.filter(|it| !(reactive && self.preempts(id, *it))) {
            return Some(current);
        }
        // Room that a reactive prompt waits for is not given to a proactive one that has none.
        let starving = (!reactive && !begun)
            .then(|| self.admissible(Class::Reactive))
            .flatten();
        let next = starving.or_else(|| self.admissible(class));
        let one_at_a_time = || foreground.or_else(|| self.decode.requests().next().copied());
        next.or_else(one_at_a_time).filter(|next| *next != id)
    }

    /// What the next kernel of a prompt under way waits for.
    fn prompt_hold(&self, entry: &Entry, prefill: &Prefill) -> Option<HoldReason> {
        let (placed, step) = match prefill.head_is_ready() {
            true => (self.head_lane(entry), None),
            false => {
                let step = prefill.ready().next()?;
                (self.lane_of(entry.id(), entry, prefill, step), Some(step))
            }
        };
        let Some((lane, cost)) = placed else {
            return Some(HoldReason::NoLane);
        };
        Some(self.kernel_hold(entry, (lane, cost), step.map(|step| (prefill, step))))
    }

    fn kernel_hold(
        &self,
        entry: &Entry,
        (lane, cost): (Lane, Cost),
        step: Option<(&Prefill, Step)>,
    ) -> HoldReason {
        if let Some(running) = self.lanes.running(lane) {
            let overdue = self.prefills.overdue.filter(|id| *id != entry.id());
            return match overdue.filter(|id| running.work.is_of(*id)) {
                Some(overdue) => HoldReason::Overdue(overdue),
                None if matches!(running.work, Work::Decode(_)) && self.answers_go_first(lane) => {
                    HoldReason::Answers
                }
                None => HoldReason::Lane(lane),
            };
        }
        if !self.lanes.is_free(lane) {
            return HoldReason::Reset(lane);
        }
        let proposal = Proposal::Prompt {
            entry,
            lane,
            cost,
            step,
        };
        self.held_back(proposal).unwrap_or(HoldReason::Answers)
    }

    /// Whether decoding keeps the lane of dynamic kernels although a prompt has a kernel for it.
    fn answers_go_first(&self, lane: Lane) -> bool {
        !self.policy.decode.prefill_first
            || self.takes_turns(lane)
            || self.would_hold_up_reactive(lane)
            || self.would_hold_up_answer(lane)
    }

    /// What an answer waits for.
    fn answer_hold(&self, entry: &Entry, batch: &NextBatch) -> Option<HoldReason> {
        let id = entry.id();
        let Some(lane) = self.dynamic_lane() else {
            return Some(HoldReason::NoLane);
        };
        if !self.decode.holds(id) {
            if !batch.candidates.contains(&id) {
                return entry.may_run().then_some(HoldReason::Trial);
            } else if !batch.capped.contains(&id) {
                return Some(HoldReason::BatchFull);
            } else if !batch.borne.contains(&id) {
                return Some(HoldReason::Company);
            } else if self.decode.has_begun() {
                return Some(HoldReason::Iteration);
            }
        }
        if self.lanes.running(lane).is_some() {
            return Some(HoldReason::Lane(lane));
        }
        if !self.lanes.is_free(lane) {
            return Some(HoldReason::Reset(lane));
        }
        self.held_back(self.planned_iteration(lane)?.proposal())
    }

    fn next_batch(&self) -> NextBatch {
        let ids = |batch: &[Candidate]| batch.iter().map(|candidate| candidate.id).collect();
        // As for an iteration that begins anew: of those in the one under way, too.
        let candidates = self.candidates_where(|_| true);
        let capped = next_batch(&self.policy.decode, &candidates);
        let (candidates, kept) = (ids(&candidates), ids(&capped));
        let borne = match self.dynamic_lane() {
            Some(lane) => ids(&self.bearable(lane, capped)),
            None => Vec::new(),
        };
        NextBatch {
            candidates,
            capped: kept,
            borne,
        }
    }
}
