//! The models with known shapes: `configs/NAME.json` of this crate is the published config.json of the repository named
//! beside it, and a new model is a new file with a line here.

use crate::fail::Fail;
use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use serde_json::Value;

/// A model's published configuration.
pub(super) struct Model {
    pub(super) config: Value,
    /// Whether the published file repeats the tied embedding as `lm_head.weight`.
    pub(super) stores_tied_head: bool,
}

/// The names that `--like` accepts; clap suggests the nearest for any other.
pub(super) fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(MODELS.iter().map(|(name, _)| *name))
}

pub(super) fn find(name: &str) -> Result<Model> {
    let (_, text) = MODELS
        .iter()
        .find(|(known, _)| *known == name)
        .with_context(|| Fail::input(format!("no model is called `{name}`")))?;
    let config = serde_json::from_str(text).with_context(|| format!("configs/{name}.json"))?;
    Ok(Model {
        config,
        stores_tied_head: STORES_TIED_HEAD.contains(&name),
    })
}

macro_rules! published {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../configs/", $name, ".json")),
        )
    };
}

const MODELS: [(&str, &str); 14] = [
    published!("llama-3.2-1b"),   // meta-llama/Llama-3.2-1B
    published!("llama-3.2-3b"),   // meta-llama/Llama-3.2-3B
    published!("llama-3.1-8b"),   // meta-llama/Llama-3.1-8B
    published!("qwen2.5-0.5b"),   // Qwen/Qwen2.5-0.5B-Instruct
    published!("qwen2.5-1.5b"),   // Qwen/Qwen2.5-1.5B-Instruct
    published!("qwen3-0.6b"),     // Qwen/Qwen3-0.6B
    published!("qwen3-4b"),       // Qwen/Qwen3-4B
    published!("phi-4-mini"),     // microsoft/Phi-4-mini-instruct
    published!("mistral-7b"),     // mistralai/Mistral-7B-Instruct-v0.3
    published!("gemma-2-2b"),     // google/gemma-2-2b
    published!("gemma-3-1b"),     // google/gemma-3-1b-it
    published!("smollm3-3b"),     // HuggingFaceTB/SmolLM3-3B
    published!("olmo-2-7b"),      // allenai/OLMo-2-1124-7B
    published!("granite-3.1-2b"), // ibm-granite/granite-3.1-2b-instruct
];

/// Qwen3-0.6B's file has 1.50 GB, although its 596 million parameters take 1.19 GB.
const STORES_TIED_HEAD: [&str; 1] = ["qwen3-0.6b"];
