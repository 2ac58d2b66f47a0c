//! A double of the cost model: lanes that the scheduler takes for slower or faster than they are.

use heg_sched::{Call, Cost, Costs, Lane, LaneLoad, Micros, ModelShape, WarmKernel, WorkStage};

/// Factor on the known latencies of each lane.
pub(super) type Beliefs = [f64; Lane::ALL.len()];

/// The known costs, with latencies that are wrong by a factor for each lane.
pub(super) struct Believed<C> {
    pub(super) known: C,
    pub(super) beliefs: Beliefs,
}

impl<C: Costs> Costs for Believed<C> {
    fn model(&self) -> ModelShape {
        self.known.model()
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        let cost = self.known.cost(lane, call)?;
        Some(Cost {
            latency_us: cost.latency_us * self.beliefs[lane as usize],
            ..cost
        })
    }

    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64> {
        self.known.watts(lane, stage)
    }

    fn slowdown(&self, own: LaneLoad, beside: LaneLoad) -> f64 {
        self.known.slowdown(own, beside)
    }

    fn warm_cost(&self, kernel: WarmKernel) -> Option<Cost> {
        self.known.warm_cost(kernel)
    }

    fn warm_up(&self, kernel: WarmKernel) -> Option<Micros> {
        self.known.warm_up(kernel)
    }
}
