//! Switching graphs (sd.npu 3.2): the delay before decoding can begin after a prompt alone, according to the plan.
//!
//! This applies to kernels that contain their weights, like the paper's: HEG's weights are inputs, so that both forms
//! are resident with almost no memory and nothing is switched.

use super::Subject;
use super::best_plan::best_ready_us;
use super::hardware::{Hardware, LONG_TOKENS, ModelShapes, SHORT_TOKENS};
use heg_sched::{Call, Costs, Lane, LayerKernel, Load, SwitchedBlock, plan, times};

/// Layers of a block. Chosen, since the paper does not say: six or seven blocks.
const BLOCK_LAYERS: u32 = 4;

/// Bytes read per second by a load: the sequential rate of UFS 4.0 (Samsung, 2022). The driver's additional work is
/// unknown.
const LOAD_BYTES_PER_SEC: f64 = 4.2e9;

/// Numbers of 256-token chunks of the prompts during which graphs are switched.
pub(super) const CHUNKS: [usize; 4] = [1, 2, 4, 8];

/// The ways to switch, in the order of their columns.
pub(super) const WAYS: [Way; 4] = [Way::Resident, Way::Progressive, Way::Async, Way::Sync];

/// A way to switch: HEG's two, and the two that the paper measures its own beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// All graphs are loaded all the time.
    Resident,
    /// Loads are hidden behind as much computation as they take, from the last block on.
    Progressive,
    /// A block's graph is loaded as soon as the block has computed the last chunk.
    Async,
    /// All graphs are loaded after the prompt.
    Sync,
}

impl Way {
    /// The loads of a prompt of `chunks` chunks, in order.
    fn plan(self, blocks: &[SwitchedBlock], chunks: usize) -> Vec<Load> {
        let steps = blocks.len() * chunks;
        let each = |step: &dyn Fn(usize) -> usize| {
            let loads = (0..blocks.len()).map(|block| Load {
                block,
                step: step(block),
            });
            loads.collect()
        };
        match self {
            Self::Resident => Vec::new(),
            Self::Progressive => plan(blocks, chunks),
            Self::Async => each(&|block| steps - blocks.len() + block + 1),
            Self::Sync => each(&|_| steps),
        }
    }
}

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
        self.ratio(Way::Progressive) * self.prefill_us / self.best_us
    }

    /// Time until decoding can begin, relative to that of the prompt alone.
    pub(super) fn ratio(&self, way: Way) -> f64 {
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
    let ready = |way: Way| times(&blocks, chunks, &way.plan(&blocks, chunks)).ready_us();
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

#[cfg(test)]
mod tests {
    //! Plans against the optimal one.

    use super::*;
    use heg_spec::Seeded;

    /// Blocks as a model has them: alike, except for the last one, which includes the head.
    fn blocks(random: &mut Seeded) -> Vec<SwitchedBlock> {
        let mut between = |least: f64, most: f64| least + (most - least) * random.unit();
        let count = between(2.0, 9.0) as usize;
        let (long_us, slower) = (between(20.0, 60.0), between(1.0, 1.3));
        let (load, last) = (between(0.3, 2.5), between(0.8, 1.5));
        let block = |at: usize| {
            let size = if at + 1 == count { last } else { 1.0 };
            SwitchedBlock {
                long_us: long_us * size,
                short_us: long_us * slower * size,
                load_us: long_us * load * size,
            }
        };
        (0..count).map(block).collect()
    }

    #[test]
    fn every_plan_loads_every_block_once_and_the_progressive_one_is_near_the_best() {
        let mut random = Seeded::new(1);
        for case in 0..24 {
            let (blocks, chunks) = (blocks(&mut random), 1 + case % 3);
            let best_us = best_ready_us(&blocks, chunks);
            for way in [Way::Progressive, Way::Async, Way::Sync] {
                let loads = way.plan(&blocks, chunks);
                let mut loaded: Vec<usize> = loads.iter().map(|load| load.block).collect();
                loaded.sort_unstable();
                assert_eq!(loaded, (0..blocks.len()).collect::<Vec<_>>());
                let ready_us = times(&blocks, chunks, &loads).ready_us();
                assert!(ready_us >= best_us - 1e-6, "{way:?} {ready_us} {best_us}");
                let is_near = way != Way::Progressive || ready_us <= best_us * 1.1;
                assert!(is_near, "{ready_us} {best_us} {blocks:?} {chunks}");
            }
        }
    }
}
