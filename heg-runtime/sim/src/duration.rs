//! The duration of a launch that runs alone.

use std::collections::BTreeSet;

use heg_sched::{
    Call, Cost, Costs, Decoding, Lane, LayerKernel, RequestId, Segment, WarmKernel, Work,
};

/// Returns the cost of a launch when nothing else runs; `None` if the lane cannot run it.
///
/// - A decode run is its layers and, after the last, the head; its bandwidth is that of the layers.
/// - A mixed iteration is one layer after the other over all its rows: with T tokens in all, `qkv` and `ffn`
///   over T rows, attention of the decoding requests as one kernel of one query row over the sum of their
///   contexts, attention of each prompt part by itself; then the head for each request that gets a token,
///   including those whose part ends the prompt (`is_last`). Without prompts it is a decode run. Its bandwidth
///   is the mean over its time.
/// - Attention on the NPU costs as much as with the best of the `warm` kernels or, without one, the lane's own.
pub fn duration(
    costs: &impl Costs,
    lane: Lane,
    work: &Work,
    warm: &BTreeSet<WarmKernel>,
    is_last: impl Fn(&RequestId, u32) -> bool,
) -> Option<Cost> {
    let layers = costs.model().layers;
    match work {
        Work::Prefill {
            segment, kernel, ..
        } => {
            let (tokens, context) = (segment.tokens, segment.context());
            let fits = |k: &&WarmKernel| k.tokens >= tokens && k.context >= context;
            let warm = warm
                .iter()
                .filter(|_| lane == Lane::Npu && *kernel == LayerKernel::Mha)
                .filter(fits)
                .filter_map(|kernel| costs.warm_cost(*kernel))
                .min_by(|a, b| a.latency_us.total_cmp(&b.latency_us));
            let call = Call::Prefill {
                kernel: *kernel,
                tokens,
                context,
            };
            warm.or_else(|| costs.cost(lane, call))
        }
        Work::Head(_) => costs.cost(lane, Call::Head { rows: 1 }),
        Work::Decode(run) => {
            let rows = Decoding::rows_of(&run.batch);
            let layer = costs.cost(lane, Call::iteration(lane, &run.batch, run.fused))?;
            let mut total = Sum::default();
            total.add(layer, run.layers.len() as u32);
            if run.layers.end == layers {
                total.add(costs.cost(lane, Call::Head { rows })?, 1);
            }
            Some(Cost {
                bandwidth: layer.bandwidth,
                ..total.cost()
            })
        }
        Work::Mixed { batch, prompts } => mixed(costs, lane, batch, prompts, is_last),
    }
}

/// The cost of one iteration over decoding requests and parts of prompts.
fn mixed(
    costs: &impl Costs,
    lane: Lane,
    batch: &[Decoding],
    prompts: &[(RequestId, Segment)],
    is_last: impl Fn(&RequestId, u32) -> bool,
) -> Option<Cost> {
    let layers = costs.model().layers;
    let rows = Decoding::rows_of(batch);
    let mut total = Sum::default();
    let context = batch.iter().map(|member| member.context).sum();
    if prompts.is_empty() {
        let fused = false;
        let call = Call::Layer {
            rows,
            context,
            fused,
        };
        total.add(costs.cost(lane, call)?, layers);
    } else {
        let call = |kernel, tokens, context| Call::Prefill {
            kernel,
            tokens,
            context,
        };
        let tokens = rows + prompts.iter().map(|(_, part)| part.tokens).sum::<u32>();
        for kernel in [LayerKernel::Qkv, LayerKernel::Ffn] {
            total.add(costs.cost(lane, call(kernel, tokens, tokens))?, layers);
        }
        if rows > 0 {
            let attention = call(LayerKernel::Mha, 1, context);
            total.add(costs.cost(lane, attention)?, layers);
        }
        for (_, part) in prompts {
            let attention = call(LayerKernel::Mha, part.tokens, part.context());
            total.add(costs.cost(lane, attention)?, layers);
        }
    }
    let ends = prompts
        .iter()
        .filter(|(id, part)| is_last(id, part.context()));
    let heads = rows + ends.count() as u32;
    if heads > 0 {
        total.add(costs.cost(lane, Call::Head { rows: heads })?, 1);
    }
    Some(total.cost())
}

/// The sum of costs of consecutive kernels.
#[derive(Default)]
struct Sum {
    latency_us: f64,
    moved: f64,
}

impl Sum {
    fn add(&mut self, cost: Cost, times: u32) {
        let latency = cost.latency_us * f64::from(times);
        self.latency_us += latency;
        self.moved += latency * cost.bandwidth;
    }

    fn cost(&self) -> Cost {
        Cost {
            latency_us: self.latency_us,
            bandwidth: self.moved / self.latency_us.max(f64::MIN_POSITIVE),
        }
    }
}
