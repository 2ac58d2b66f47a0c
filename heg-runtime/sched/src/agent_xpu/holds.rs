//! Reasons why requests wait, by the same rules that keep them waiting.

use super::AgentXpu;
use super::prefills::Slot;
use super::rules::{Proposal, Verdict};
use super::stage::{Entry, Phase};
use crate::batch::{Candidate, next_batch};
use crate::costs::{Cost, Costs};
use crate::event::Work;
use crate::hold::{Hold, HoldReason};
use crate::mechanism::Mechanism;
use crate::prefill::{Prefill, Step};
use crate::request::{Class, Lane, RequestId};

/// The candidates for the next iteration, and its members.
struct NextBatch {
    candidates: Vec<RequestId>,
    /// The candidates that the caps leave in it.
    capped: Vec<RequestId>,
    /// Those of the capped ones that do not slow reactive answers down too much.
    borne: Vec<RequestId>,
}

impl<C: Costs> AgentXpu<C> {
    /// Appends the waiting requests with their reasons.
    pub(super) fn append_holds(&self, holds: &mut Vec<Hold>) {
        let batch = self.next_batch();
        for (request, entry) in self.ledger.iter() {
            let why = match entry.own.phase() {
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

    /// Returns why a prompt that is not in progress waits.
    fn queue_hold(&self, entry: &Entry) -> HoldReason {
        let begun = !entry.own.is_queued();
        match self.goes_before(entry, begun) {
            Some(other) if self.are_strangers(entry.id(), other) => HoldReason::Turn,
            Some(other) if begun => HoldReason::Preempted(other),
            Some(other) => HoldReason::Prompt(other),
            None if self.kv.writes_to_flash() => HoldReason::Flash,
            None => HoldReason::Memory,
        }
    }

    /// Returns the request whose prompt goes before a waiting one; `None` if the waiting one is next, and lacks room.
    fn goes_before(&self, entry: &Entry, begun: bool) -> Option<RequestId> {
        let (id, class) = (entry.id(), entry.class());
        let reactive = class == Class::Reactive;
        let foreground = self.prefills.holder(Slot::Foreground);
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

    /// Returns why the next kernel of a prompt in progress waits.
    fn prompt_hold(&self, entry: &Entry, prefill: &Prefill) -> Option<HoldReason> {
        let (placed, step) = match prefill.head_is_ready() {
            true => (self.head_lane(entry), None),
            false => {
                let step = prefill.ready().next()?;
                (self.lane_of(entry, prefill, step), Some(step))
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
            let overdue = self
                .prefills
                .holder(Slot::Overdue)
                .filter(|id| *id != entry.id());
            if let Some(overdue) = overdue.filter(|id| running.work.is_of(*id)) {
                return HoldReason::Overdue(overdue);
            }
            return match self.judged(Proposal::Interruption { lane }) {
                (Verdict::Wait, Some(Mechanism::ClientTurns)) => HoldReason::Turn,
                (verdict, _)
                    if verdict != Verdict::Go && matches!(running.work, Work::Decode(_)) =>
                {
                    HoldReason::Answers
                }
                _ => HoldReason::Lane(lane),
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

    /// Returns why an answer waits.
    fn answer_hold(&self, entry: &Entry, batch: &NextBatch) -> Option<HoldReason> {
        let id = entry.id();
        let Some(lane) = self.dynamic_lane() else {
            return Some(HoldReason::NoLane);
        };
        if !self.decode.holds(id) {
            if !batch.candidates.contains(&id) {
                return entry.may_run().then_some(HoldReason::Trial);
            } else if !batch.capped.contains(&id) {
                let strangers = |other: &RequestId| self.are_strangers(id, *other);
                return Some(match batch.capped.iter().any(strangers) {
                    true => HoldReason::Turn,
                    false => HoldReason::BatchFull,
                });
            } else if !batch.borne.contains(&id) {
                return Some(HoldReason::Rule(Mechanism::ReactiveSlowdown));
            } else if self.decode.iteration().is_some() {
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
        // As for an iteration that begins anew: requests of the one in progress count, too.
        let candidates = self.candidates_where(|_| true);
        let capped = next_batch(&self.policy.decode, &candidates, self.ledger.clients());
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
