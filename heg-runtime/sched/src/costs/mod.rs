//! A scheduler's knowledge of speed: the annotations of a bundle for one SoC, behind a trait.

use std::rc::Rc;

mod cached;
mod slowdowns;

pub use cached::CachedCosts;
pub use slowdowns::{KernelBound, LaneLoad, Slowdowns};

use super::event::{Decoding, LayerKernel, WarmKernel, Work};
use super::order::LayerOrder;
use super::request::{Lane, Micros};

/// One call of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// A kernel over `tokens` tokens, whose last one sees `context`.
    Prefill {
        /// The kernel.
        kernel: LayerKernel,
        /// c: tokens of the call.
        tokens: u32,
        /// n: tokens that the last one sees.
        context: u32,
    },
    /// One layer for `rows` rows that see `context` tokens together; as one kernel if `fused`, which needs
    /// a single row.
    Layer {
        /// b: rows of the batch.
        rows: u32,
        /// Σ n: tokens that the rows see, added up.
        context: u32,
        /// Whether the layer is one kernel.
        fused: bool,
    },
    /// One layer for the rows of a single request on static kernels, its last token and a draft; the last row sees
    /// `context` tokens.
    Verify {
        /// c: rows of the request.
        rows: u32,
        /// n: tokens that the last row sees.
        context: u32,
    },
    /// The head on `rows` rows.
    Head {
        /// b: rows of the batch.
        rows: u32,
    },
}

impl Call {
    /// Returns the call of one layer for a batch.
    pub fn layer(batch: &[Decoding], fused: bool) -> Self {
        Self::Layer {
            rows: Decoding::rows_of(batch),
            context: batch.iter().map(|member| member.context).sum(),
            fused,
        }
    }

    /// Returns the call of one layer of an iteration on a lane; the NPU has static kernels, which take one request at
    /// a time.
    pub fn iteration(lane: Lane, batch: &[Decoding], fused: bool) -> Self {
        match (lane, batch) {
            (Lane::Npu, [member]) => Self::Verify {
                rows: member.rows(),
                context: member.context + member.drafted,
            },
            _ => Self::layer(batch, fused),
        }
    }
}

/// The cost of a call while nothing else runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Time, in µs; positive and finite.
    pub latency_us: f64,
    /// Share of the peak DRAM bandwidth that it draws, from 0 to 1.
    pub bandwidth: f64,
}

impl Cost {
    /// Returns the load of the call on a lane.
    pub fn on(self, lane: Lane) -> LaneLoad {
        LaneLoad {
            lane,
            bandwidth: self.bandwidth,
        }
    }
}

/// The stage that a launch belongs to, on which the power of a device depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkStage {
    /// Kernels of prompts.
    Prefill,
    /// Decode iterations.
    Decode,
}

impl WorkStage {
    /// Returns the stage of a launch; it is decoding only if the launch has no prompt tokens.
    pub fn of(work: &Work) -> Self {
        match work {
            Work::Prefill { .. } | Work::Head(_) => Self::Prefill,
            Work::Decode(_) => Self::Decode,
            Work::Mixed { prompts, .. } if prompts.is_empty() => Self::Decode,
            Work::Mixed { .. } => Self::Prefill,
        }
    }
}

/// Predictions for one model on one SoC.
pub trait Costs {
    /// The shape of the model.
    fn model(&self) -> ModelShape;

    /// The cost of a call on a lane; `None` if the lane has no kernel for it.
    fn cost(&self, lane: Lane, call: Call) -> Option<Cost>;

    /// The power that a lane draws while it runs kernels of a stage, in W; `None` if it is unknown.
    fn watts(&self, _lane: Lane, _stage: WorkStage) -> Option<f64> {
        None
    }

    /// The latency of a kernel beside another lane's, divided by its latency alone; 1 if that was not measured.
    fn slowdown(&self, _own: LaneLoad, _beside: LaneLoad) -> f64 {
        1.0
    }

    /// The cost of a static attention kernel on the NPU once it is loaded.
    fn warm_cost(&self, kernel: WarmKernel) -> Option<Cost>;

    /// Time to compile a static attention kernel.
    fn warm_up(&self, kernel: WarmKernel) -> Option<Micros>;
}

impl<C: Costs> Costs for &C {
    fn model(&self) -> ModelShape {
        (**self).model()
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        (**self).cost(lane, call)
    }

    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64> {
        (**self).watts(lane, stage)
    }

    fn slowdown(&self, own: LaneLoad, beside: LaneLoad) -> f64 {
        (**self).slowdown(own, beside)
    }

    fn warm_cost(&self, kernel: WarmKernel) -> Option<Cost> {
        (**self).warm_cost(kernel)
    }

    fn warm_up(&self, kernel: WarmKernel) -> Option<Micros> {
        (**self).warm_up(kernel)
    }
}

impl<C: Costs + ?Sized> Costs for Rc<C> {
    fn model(&self) -> ModelShape {
        (**self).model()
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        (**self).cost(lane, call)
    }

    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64> {
        (**self).watts(lane, stage)
    }

    fn slowdown(&self, own: LaneLoad, beside: LaneLoad) -> f64 {
        (**self).slowdown(own, beside)
    }

    fn warm_cost(&self, kernel: WarmKernel) -> Option<Cost> {
        (**self).warm_cost(kernel)
    }

    fn warm_up(&self, kernel: WarmKernel) -> Option<Micros> {
        (**self).warm_up(kernel)
    }
}

/// The properties of a model that a scheduler needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    /// Decoder layers.
    pub layers: u32,
    /// The order of a layer's kernels in a prompt.
    pub order: LayerOrder,
    /// Tokens of a full prefill segment: the chunk of the NPU's kernels.
    pub chunk_tokens: u32,
    /// Longest context, in tokens.
    pub context_tokens: u32,
    /// Bytes of a token in the KV cache, over all layers.
    pub kv_bytes_per_token: u64,
}
