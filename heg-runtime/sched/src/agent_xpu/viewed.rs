//! The scheduler as its rules see it, and what they decide.

use super::AgentXpu;
use super::decodes::Decode;
use super::next::Next;
use super::prefills::Prefills;
use super::rules::{Proposal, Verdict};
use super::stage::{Entry, Stage};
use super::turns::Turns;
use super::view::View;
use crate::costs::{Call, Cost, Costs, LaneLoad, ModelShape, WorkStage};
use crate::event::Segment;
use crate::hold::HoldReason;
use crate::lanes::Lanes;
use crate::ledger::Ledger;
use crate::mechanism::Mechanism;
use crate::prefill::{Prefill, Step};
use crate::request::{Class, Lane, Micros};

impl<C: Costs> View for AgentXpu<C> {
    fn now(&self) -> Micros {
        self.now
    }

    fn model(&self) -> ModelShape {
        self.model
    }

    fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    fn ledger(&self) -> &Ledger<Stage> {
        &self.ledger
    }

    fn prefills(&self) -> &Prefills {
        &self.prefills
    }

    fn decode(&self) -> &Decode {
        &self.decode
    }

    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn dynamic_lane(&self) -> Option<Lane> {
        self.dynamic_lane()
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        self.costs.cost(lane, call)
    }

    fn slowdown(&self, own: LaneLoad, beside: LaneLoad) -> f64 {
        self.costs.slowdown(own, beside)
    }

    fn warm_cost(&self, segment: Segment) -> Option<Cost> {
        self.warmth.cost(&self.costs, segment)
    }

    fn layers_cost(&self, lane: Lane, layer: Call, layers: usize) -> Option<Cost> {
        self.layers_cost(lane, layer, layers)
    }

    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64> {
        self.costs.watts(lane, stage)
    }

    fn decoding_class(&self) -> Option<Class> {
        self.decoding_class()
    }

    fn lane_of(&self, entry: &Entry, prefill: &Prefill, step: Step) -> Option<(Lane, Cost)> {
        self.lane_of(entry, prefill, step)
    }

    fn next_prefill(&self, lane: Lane) -> Option<Next> {
        self.next_prefill(lane)
    }

    fn left_us(&self, entry: &Entry) -> f64 {
        self.left_us(entry)
    }
}

impl<C: Costs> AgentXpu<C> {
    /// Returns the verdict of the rules on a proposal, and the mechanism whose rule decided.
    pub(super) fn judged(&self, proposal: Proposal<'_>) -> (Verdict, Option<Mechanism>) {
        self.rules.judge(self, proposal, &self.tally)
    }

    /// Whether a rule is for a proposal, and none before it is against it.
    pub(super) fn goes(&self, proposal: Proposal<'_>) -> bool {
        self.judged(proposal).0 == Verdict::Go
    }

    /// Whether no rule holds the work back.
    pub(super) fn may_start(&self, proposal: Proposal<'_>) -> bool {
        self.held_back(proposal).is_none()
    }

    /// Returns the reason why a rule holds work back; `None` if no rule does.
    pub(super) fn held_back(&self, proposal: Proposal<'_>) -> Option<HoldReason> {
        match self.judged(proposal) {
            (Verdict::Wait, Some(mechanism)) => Some(HoldReason::Rule(mechanism)),
            _ => None,
        }
    }

    /// Whether a prompt's attention or head would have to wait on the NPU by a rule that moves it to another lane.
    pub(super) fn is_diverted(&self, entry: &Entry, cost: Cost) -> bool {
        let proposal = Proposal::Prompt {
            entry,
            lane: Lane::Npu,
            cost,
            step: None,
        };
        self.rules.divert(self, proposal, &self.tally)
    }

    /// The earliest time at which a rule may let work start by time alone.
    pub(super) fn next_opening(&self) -> Option<Micros> {
        self.rules.next_opening(self)
    }
}
