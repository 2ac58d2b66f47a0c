//! Costs that cache their last answers.

use std::cell::Cell;

use crate::{
    Call, Cost, Costs, Lane, LaneLoad, LayerKernel, Micros, ModelShape, WarmKernel, WorkStage,
};

/// Number of cached answers; a power of two. Chosen: a run of a 28-layer model asks for fewer at a time.
const SLOTS: usize = 4096;

/// A direct-mapped cache of exact answers in front of slower costs; it changes nothing but the time of an answer.
#[derive(Debug)]
pub struct CachedCosts<C> {
    costs: C,
    slots: Box<[Cell<Slot>]>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    key: u64,
    answer: Option<Cost>,
}

impl<C: Costs> CachedCosts<C> {
    /// Caches the answers of `costs`, which must give the same answer each time.
    pub fn new(costs: C) -> Self {
        let empty = Slot {
            key: u64::MAX,
            answer: None,
        };
        Self {
            costs,
            slots: vec![Cell::new(empty); SLOTS].into_boxed_slice(),
        }
    }
}

impl<C: Costs> Costs for CachedCosts<C> {
    fn model(&self) -> ModelShape {
        self.costs.model()
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        let Some(key) = key(lane, call) else {
            return self.costs.cost(lane, call);
        };
        // Fibonacci hashing: the high bits of the product depend on all bits of the key.
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOTS.ilog2());
        let slot = &self.slots[hash as usize];
        if slot.get().key == key {
            return slot.get().answer;
        }
        let answer = self.costs.cost(lane, call);
        slot.set(Slot { key, answer });
        answer
    }

    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64> {
        self.costs.watts(lane, stage)
    }

    fn slowdown(&self, own: LaneLoad, beside: LaneLoad) -> f64 {
        self.costs.slowdown(own, beside)
    }

    fn warm_cost(&self, kernel: WarmKernel) -> Option<Cost> {
        self.costs.warm_cost(kernel)
    }

    fn warm_up(&self, kernel: WarmKernel) -> Option<Micros> {
        self.costs.warm_up(kernel)
    }
}

/// Returns a unique number for each call; `None` for calls larger than any real one.
fn key(lane: Lane, call: Call) -> Option<u64> {
    let (kind, rows, context) = match call {
        Call::Prefill {
            kernel: LayerKernel::Qkv,
            tokens,
            context,
        } => (0, tokens, context),
        Call::Prefill {
            kernel: LayerKernel::Mha,
            tokens,
            context,
        } => (1, tokens, context),
        Call::Prefill {
            kernel: LayerKernel::Ffn,
            tokens,
            context,
        } => (2, tokens, context),
        Call::Layer {
            rows,
            context,
            fused,
        } => (3 + u64::from(fused), rows, context),
        Call::Head { rows } => (5, rows, 0),
        Call::Verify { rows, context } => (6, rows, context),
    };
    // Widths of the fields: 3 bits, 2 bits, 24 bits, 32 bits.
    let fits = rows < 1 << 24;
    fits.then(|| kind << 58 | (lane as u64) << 56 | u64::from(rows) << 32 | u64::from(context))
}
