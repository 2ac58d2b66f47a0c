//! Tokens that a model finds likely within prompts, for calibration (sd.npu 3.3).

use super::data::DataSet;
use anyhow::{Context, Result};
use heg_draft::Likely;
use heg_runtime::Loaded;
use heg_runtime::engine::{Engine, Request, Speculation, Update};
use heg_runtime::exec::ExecutorOptions;
use heg_spec::shipped;
use heg_text::TokenLogProbs;
use std::path::Path;
use std::sync::Arc;
use xtask::fail::Fail;

/// Runs a bundle to find the likeliest tokens after each token of every prompt. Prompts that it cannot process get
/// none.
pub(super) fn find(bundle: &Path, data: &mut DataSet) -> Result<()> {
    let refuse = || Fail::input(format!("cannot run `{}`", bundle.display()));
    let loader = Loaded::open(bundle)
        .and_then(|loaded| loaded.loader(&shipped::soc("host-cpu")?))
        .with_context(refuse)?;
    let options = ExecutorOptions::default();
    let engine = Engine::start_single(loader, options, Speculation::Off).with_context(refuse)?;
    for exchange in &mut data.exchanges {
        exchange.likely = likely(&engine, &exchange.prompt);
    }
    Ok(())
}

/// The likely tokens of a prompt; `None` if the model cannot process it.
fn likely(engine: &Engine, prompt: &[u32]) -> Option<Arc<[Likely]>> {
    let request = Request {
        tokens_max: 1,
        log_probs: Some(Likely::COUNT as u32),
        prompt_log_probs: Some(Likely::COUNT as u32),
        ..Request::reactive(prompt.to_vec())
    };
    let mut rows: Vec<Likely> = Vec::with_capacity(prompt.len());
    for update in engine.generate(request) {
        match update {
            Update::Prompt(scores) => rows.extend(scores.iter().map(row)),
            Update::Token { log_probs, .. } => rows.extend(log_probs.as_deref().map(row)),
            Update::Accepted { .. } | Update::Vector(_) | Update::Finished(_) => {}
        }
    }
    (rows.len() == prompt.len()).then(|| rows.into())
}

fn row(score: &TokenLogProbs) -> Likely {
    let likeliest = score.top.iter();
    Likely::new(likeliest.map(|it| (it.token, it.log_probability.exp())))
}
