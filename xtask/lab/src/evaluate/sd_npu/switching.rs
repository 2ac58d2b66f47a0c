//! Switching graphs (sd.npu 3.2): the delay before decoding can begin after a prompt alone, according to the plan.
//!
//! This applies to kernels that contain their weights, like the paper's: HEG's weights are inputs, so that both forms
//! are resident with almost no memory and nothing is switched.

use super::Subject;
use super::hardware::{Hardware, LONG_TOKENS, ModelShapes, SHORT_TOKENS};
use heg_sched::{
    Call, Costs, Lane, LayerKernel, SwitchedBlock, Switching, best_ready_us, plan, times,
};

/// Layers of a block. Chosen, since the paper does not say: six or seven blocks.
const BLOCK_LAYERS: u32 = 4;

/// Bytes read per second by a load: the sequential rate of UFS 4.0 (Samsung, 2022). The driver's additional work is
/// unknown.
const LOAD_BYTES_PER_SEC: f64 = 4.2e9;

/// Numbers of 256-token chunks of the prompts during which graphs are switched.
pub(super) const CHUNKS: [usize; 4] = [1, 2, 4, 8];

/// The ways to switch, in the order of their columns.
pub(super) const WAYS: [Switching; 4] = [
    Switching::Resident,
    Switching::Progressive,
    Switching::Async,
    Switching::Sync,
];

/// The cost of switching with a model on a machine.
pub(super) struct Switch {
    pub(super) machine: String,
    pub(super) model: &'static str,
    pub(super) chunks: usize,
    /// Time of the prompt alone.
    pub(super) prefill_us: f64,
    /// Time until decoding can begin, by [`WAYS`].
    pub(super) ready_us: [f64; WAYS.len()],
    /// Time until decoding can begin under the best possible plan.
    pub(super) best_us: f64,
}

impl Switch {
    /// The time of the progressive plan relative to the best one's.
    pub(super) fn against_best(&self) -> f64 {
        self.ratio(Switching::Progressive) * self.prefill_us / self.best_us
    }

    /// Time until decoding can begin, relative to that of the prompt alone.
    pub(super) fn ratio(&self, way: Switching) -> f64 {
        let at = WAYS.iter().position(|it| *it == way);
        at.map_or(f64::NAN, |at| self.ready_us[at] / self.prefill_us)
    }
}

/// Switching on all machines with all models and numbers of chunks.
pub(super) fn switches(subject: &Subject) -> Vec<Switch> {
    let mut switches = Vec::new();
    for machine in &subject.machines {
        for model in &subject.models {
            switches.extend(CHUNKS.map(|chunks| switch(machine, *model, chunks)));
        }
    }
    switches
}

/// Switching during a prompt of this number of chunks.
pub(super) fn switch(machine: &Hardware, model: ModelShapes, chunks: usize) -> Switch {
    let blocks = blocks(machine, model, chunks);
    let ready = |way| times(&blocks, chunks, &plan(way, &blocks, chunks)).ready_us();
    Switch {
        machine: machine.name().to_owned(),
        model: model.name,
        chunks,
        prefill_us: times(&blocks, chunks, &[]).prefill_us,
        ready_us: WAYS.map(ready),
        best_us: best_ready_us(&blocks, chunks),
    }
}

/// The blocks of a model.
fn blocks(machine: &Hardware, model: ModelShapes, chunks: usize) -> Vec<SwitchedBlock> {
    let long = machine.costs(model);
    let short = heg_sim::AnalyticCosts {
        chunk_tokens: SHORT_TOKENS,
        ..long.clone()
    };
    // A chunk in the middle of the prompt.
    let context = LONG_TOKENS * (chunks as u32 + 1) / 2;
    let us = |costs: &heg_sim::AnalyticCosts, lane, kernel, tokens| {
        let call = Call::Prefill {
            kernel,
            tokens,
            context,
        };
        costs
            .cost(lane, call)
            .map_or(f64::NAN, |cost| cost.latency_us)
    };
    let token_wise = |costs, tokens| {
        let kernels = [LayerKernel::Qkv, LayerKernel::Ffn];
        kernels
            .map(|kernel| us(costs, Lane::Npu, kernel, tokens))
            .iter()
            .sum::<f64>()
    };
    let attention = us(&long, Lane::Igpu, LayerKernel::Mha, LONG_TOKENS);
    let calls = f64::from(LONG_TOKENS / SHORT_TOKENS);
    let layers = f64::from(BLOCK_LAYERS);
    let block = SwitchedBlock {
        long_us: layers * (token_wise(&long, LONG_TOKENS) + attention),
        short_us: layers * (calls * token_wise(&short, SHORT_TOKENS) + attention),
        load_us: 1e6 * layers * model.layer_bytes() / LOAD_BYTES_PER_SEC,
    };
    vec![block; (model.dimensions.layers / BLOCK_LAYERS) as usize]
}
