//! What a scheduler knows of speed: the annotations of a bundle for one SoC, behind a trait.

use std::rc::Rc;

mod cached;

pub use cached::CachedCosts;

use super::event::{Decoding, Kernel, WarmKernel, Work};
use super::request::{Lane, Micros};

/// One call of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// A kernel over `tokens` tokens, of which the last sees `context`.
    Prefill {
        /// Which kernel.
        kernel: Kernel,
        /// c.
        tokens: u32,
        /// n.
        context: u32,
    },
    /// One layer for `rows` requests that see `context` tokens together; fused where `fused` says so, which
    /// needs a single row.
    Layer {
        /// b.
        rows: u32,
        /// Σ n.
        context: u32,
        /// Whether it is one kernel.
        fused: bool,
    },
    /// One layer for the rows of a single request on static kernels, of which the last sees `context` tokens: its last token
    /// and a draft.
    Verify {
        /// c.
        rows: u32,
        /// n.
        context: u32,
    },
    /// The head on `rows` rows.
    Head {
        /// b.
        rows: u32,
    },
}

impl Call {
    /// One layer for a batch.
    pub fn layer(batch: &[Decoding], fused: bool) -> Self {
        Self::Layer {
            rows: Decoding::rows_of(batch),
            context: batch.iter().map(|member| member.context).sum(),
            fused,
        }
    }

    /// One layer of an iteration on a lane: on the NPU of static kernels, which take one request at a time.
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

/// What a call takes when nothing else runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Time, in µs; positive and finite.
    pub latency_us: f64,
    /// Share of the peak DRAM bandwidth that it draws, from 0 to 1.
    pub bandwidth: f64,
}

/// What a launch is part of: devices draw power by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkStage {
    /// Kernels of prompts.
    Prefill,
    /// Decode iterations.
    Decode,
}

impl WorkStage {
    /// What a launch belongs to; decoding only if it has one token of each request only.
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
    /// The model.
    fn model(&self) -> ModelShape;

    /// What a call takes on a lane; `None` where the lane has no kernel for it.
    fn cost(&self, lane: Lane, call: Call) -> Option<Cost>;

    /// What a lane draws while it runs kernels of a stage, in W, where that is known.
    fn watts(&self, _lane: Lane, _stage: WorkStage) -> Option<f64> {
        None
    }

    /// What a static attention kernel takes on the NPU once it is there.
    fn warm_cost(&self, kernel: WarmKernel) -> Option<Cost>;

    /// Time to compile it.
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

    fn warm_cost(&self, kernel: WarmKernel) -> Option<Cost> {
        (**self).warm_cost(kernel)
    }

    fn warm_up(&self, kernel: WarmKernel) -> Option<Micros> {
        (**self).warm_up(kernel)
    }
}

impl<C: Costs> Costs for Rc<C> {
    fn model(&self) -> ModelShape {
        (**self).model()
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        (**self).cost(lane, call)
    }

    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64> {
        (**self).watts(lane, stage)
    }

    fn warm_cost(&self, kernel: WarmKernel) -> Option<Cost> {
        (**self).warm_cost(kernel)
    }

    fn warm_up(&self, kernel: WarmKernel) -> Option<Micros> {
        (**self).warm_up(kernel)
    }
}

/// What a scheduler has to know of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    /// Decoder layers.
    pub layers: u32,
    /// Tokens of a full prefill segment: the chunk of the NPU's kernels.
    pub chunk_tokens: u32,
    /// Longest context.
    pub context_tokens: u32,
    /// Bytes that a token takes in the KV cache, all layers together.
    pub kv_bytes_per_token: u64,
}
