//! The counterpart of the paper's figure 5 (Agent.xpu v2, 3.1): what a batch costs, by its size and the length of prompts.

use super::Subject;
use crate::table::Markdown;
use heg_sched::{Call, Costs, Lane, LayerKernel};
use heg_sim::Platform;

/// Sizes of a batch.
const BATCHES: [u32; 5] = [1, 2, 4, 8, 16];

/// Prompt tokens, and what a decoded token sees.
const LENGTHS: [u32; 3] = [128, 512, 2048];

/// Times of batches on each lane that has the kernels, in ms.
pub(super) fn table(subject: &Subject) -> String {
    let sizes = BATCHES.map(|batch| batch.to_string());
    let head = ["model", "lane", "what", "tokens"].map(str::to_owned);
    let mut table = Markdown::new(head.into_iter().chain(sizes));
    for platform in &subject.platforms {
        for lane in [Lane::Npu, Lane::Igpu] {
            for (what, ms) in [
                ("prompts", prompts as fn(&Platform, Lane, u32, u32) -> _),
                ("a decode step", step),
            ] {
                for tokens in LENGTHS {
                    let times = BATCHES.map(|batch| ms(platform, lane, batch, tokens));
                    if times.iter().all(Option::is_none) {
                        continue;
                    }
                    let cell =
                        |ms: Option<f64>| ms.map_or("–".to_owned(), |ms| format!("{ms:.0}"));
                    let name = format!("{lane:?}").to_lowercase();
                    let row = [
                        platform.model.clone(),
                        name,
                        what.to_owned(),
                        tokens.to_string(),
                    ];
                    table.row(row.into_iter().chain(times.map(cell)));
                }
            }
        }
    }
    format!(
        "\n## What a batch costs (paper: figure 5)\n\n\
         Times in ms of batches of so many requests, by the machine's costs: of prompts of so many tokens, one after the other in\n\
         attention, and of a decode step whose requests see so many each.\n\n{}",
        table.text()
    )
}

/// All layers over the prompts of a batch.
fn prompts(platform: &Platform, lane: Lane, batch: u32, tokens: u32) -> Option<f64> {
    let kernel = |kernel, tokens, context| {
        let call = Call::Prefill {
            kernel,
            tokens,
            context,
        };
        Some(platform.costs.cost(lane, call)?.latency_us)
    };
    let rows = batch * tokens;
    let token_wise = kernel(LayerKernel::Qkv, rows, rows)? + kernel(LayerKernel::Ffn, rows, rows)?;
    let attention = f64::from(batch) * kernel(LayerKernel::Mha, tokens, tokens)?;
    let layers = f64::from(platform.costs.model().layers);
    Some(layers * (token_wise + attention) / 1e3)
}

/// A decode step of a batch.
fn step(platform: &Platform, lane: Lane, batch: u32, tokens: u32) -> Option<f64> {
    let us = |call| Some(platform.costs.cost(lane, call)?.latency_us);
    let layer = us(Call::Layer {
        rows: batch,
        context: batch * tokens,
        fused: false,
    })?;
    let head = us(Call::Head { rows: batch })?;
    Some((f64::from(platform.costs.model().layers) * layer + head) / 1e3)
}
