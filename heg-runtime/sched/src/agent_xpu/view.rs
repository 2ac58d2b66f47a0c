//! The part of the scheduler's state that rules may see.

use super::AgentXpu;
use super::prefills::Slot;
use super::stage::Entry;
use crate::costs::{Call, Cost, Costs, WorkStage};
use crate::lanes::Running;
use crate::prefill::{Prefill, Step};
use crate::request::{Class, Lane, Micros, RequestId};

/// The questions that a rule may ask; none of them changes any state.
pub(crate) trait View {
    /// The current time.
    fn now(&self) -> Micros;

    /// The launch that runs on a lane.
    fn running(&self, lane: Lane) -> Option<&Running>;

    /// Share of the peak bandwidth that all running launches want together.
    fn pressure(&self) -> f64;

    /// The lane of dynamic kernels.
    fn dynamic_lane(&self) -> Option<Lane>;

    /// The cost of a call on a lane.
    fn cost(&self, lane: Lane, call: Call) -> Option<Cost>;

    /// Power that a lane draws in a stage of work, in W; `None` if it is unknown.
    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64>;

    /// Whether any request decodes.
    fn decodes(&self) -> bool;

    /// The most urgent class of the iteration that has begun; if there is none, of the requests for the next one.
    fn decoding_class(&self) -> Option<Class>;

    /// The request whose prompt is in progress.
    fn foreground(&self) -> Option<&Entry>;

    /// Whether a request fills bubbles beside another one's prompt.
    fn fills_bubbles(&self, id: RequestId) -> bool;

    /// The lane on which a kernel of a prompt belongs, and its cost there.
    fn lane_of(&self, entry: &Entry, prefill: &Prefill, step: Step) -> Option<(Lane, Cost)>;
}

impl<C: Costs> View for AgentXpu<C> {
    fn now(&self) -> Micros {
        self.now
    }

    fn running(&self, lane: Lane) -> Option<&Running> {
        self.lanes.running(lane)
    }

    fn pressure(&self) -> f64 {
        self.lanes.pressure()
    }

    fn dynamic_lane(&self) -> Option<Lane> {
        self.dynamic_lane()
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        self.costs.cost(lane, call)
    }

    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64> {
        self.costs.watts(lane, stage)
    }

    fn decodes(&self) -> bool {
        !self.decode.is_idle()
    }

    fn decoding_class(&self) -> Option<Class> {
        self.decoding_class()
    }

    fn foreground(&self) -> Option<&Entry> {
        self.ledger.get(self.prefills.holder(Slot::Foreground)?)
    }

    fn fills_bubbles(&self, id: RequestId) -> bool {
        self.prefills.holds(Slot::Backfill, id)
    }

    fn lane_of(&self, entry: &Entry, prefill: &Prefill, step: Step) -> Option<(Lane, Cost)> {
        self.lane_of(entry.id(), entry, prefill, step)
    }
}
