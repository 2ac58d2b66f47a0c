//! The part of the scheduler's state that rules may see.

use super::decodes::Decode;
use super::next::Next;
use super::prefills::Prefills;
use super::stage::{Entry, Stage};
use super::turns::Turns;
use crate::costs::{Call, Cost, LaneLoad, ModelShape, WorkStage};
use crate::event::Segment;
use crate::lanes::Lanes;
use crate::ledger::Ledger;
use crate::prefill::{Prefill, Step};
use crate::request::{Class, Lane, Micros};

/// The states that the scheduler owns, and the questions that a rule may ask; none of them changes anything.
pub(crate) trait View {
    /// The current time.
    fn now(&self) -> Micros;

    /// The shape of the model.
    fn model(&self) -> ModelShape;

    /// The devices, and the work that runs on them.
    fn lanes(&self) -> &Lanes;

    /// All live requests.
    fn ledger(&self) -> &Ledger<Stage>;

    /// The prompts that wait, and the prompts in progress.
    fn prefills(&self) -> &Prefills;

    /// The requests that decode, and the iterations in progress.
    fn decode(&self) -> &Decode;

    /// The stage whose turn it is on the lane of dynamic kernels.
    fn turns(&self) -> &Turns;

    /// The lane of dynamic kernels.
    fn dynamic_lane(&self) -> Option<Lane>;

    /// The cost of a call on a lane.
    fn cost(&self, lane: Lane, call: Call) -> Option<Cost>;

    /// The latency of a kernel beside another lane's, divided by its latency alone.
    fn slowdown(&self, own: LaneLoad, beside: LaneLoad) -> f64;

    /// The cost of attention over a segment with the NPU's best compiled kernel.
    fn warm_cost(&self, segment: Segment) -> Option<Cost>;

    /// The cost of `layers` layers of an iteration, and the head.
    fn layers_cost(&self, lane: Lane, layer: Call, layers: usize) -> Option<Cost>;

    /// Power that a lane draws in a stage of work, in W; `None` if it is unknown.
    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64>;

    /// The most urgent class of the iteration that has begun; if there is none, of the requests for the next one.
    fn decoding_class(&self) -> Option<Class>;

    /// The lane on which a kernel of a prompt belongs, and its cost there.
    fn lane_of(&self, entry: &Entry, prefill: &Prefill, step: Step) -> Option<(Lane, Cost)>;

    /// The next work for a lane from the prompts in progress.
    fn next_prefill(&self, lane: Lane) -> Option<Next>;

    /// Estimated time that a prompt still needs, in µs.
    fn left_us(&self, entry: &Entry) -> f64;

    /// Whether a reactive request decodes.
    fn decodes_reactive(&self) -> bool {
        let decoding = self.decode().requests();
        let mut decoding = decoding.filter_map(|id| self.ledger().get(*id));
        decoding.any(|entry| entry.class() == Class::Reactive)
    }

    /// Whether a request that is reactive or overdue decodes and has waited long for its next token: a reactive one
    /// for `patience`, an overdue one for `overdue_patience`.
    fn decodes_for_somebody(&self, patience: Micros, overdue_patience: Micros) -> bool {
        let decoding = self.decode().requests();
        let mut decoding = decoding.filter_map(|id| self.ledger().get(*id));
        decoding.any(|entry| {
            let may_wait = match entry.class() {
                Class::Reactive => patience,
                Class::Proactive if entry.own.is_overdue() => overdue_patience,
                Class::Proactive => return false,
            };
            self.now().since(entry.waits_since) >= may_wait
        })
    }
}
