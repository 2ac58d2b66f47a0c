//! What the scheduler believes of a machine's speed: what is known of it, unless the machine says that lanes are to be
//! taken for slower or faster than they are.

use heg_sched::{Call, Cost, Costs, Lane, Micros, ModelShape, WarmKernel, WorkStage};

/// Times by which the scheduler takes each lane for slower than it is.
pub(super) type Beliefs = [f64; Lane::ALL.len()];

/// Costs that are believed.
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

    fn warm_cost(&self, kernel: WarmKernel) -> Option<Cost> {
        self.known.warm_cost(kernel)
    }

    fn warm_up(&self, kernel: WarmKernel) -> Option<Micros> {
        self.known.warm_up(kernel)
    }
}
