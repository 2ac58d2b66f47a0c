//! The answers of reference implementations, from the `golden.json` beside a model's fixture.

use std::path::Path;

use serde::Deserialize;

/// A prompt and the reference's answer in f32.
#[derive(Debug, Clone, Deserialize)]
pub struct Case {
    /// The prompt.
    pub input_ids: Vec<u32>,
    /// The logits after the prompt; empty if the model's file has none.
    #[serde(default)]
    pub logits: Vec<f32>,
    /// The hidden state of the last token after the embedding, after layers, and behind the last norm.
    #[serde(default)]
    pub hidden_last_position: Vec<Vec<f32>>,
    /// The score of the prompt, if the model's file has one.
    #[serde(default)]
    pub score: Option<f32>,
    /// The position of a pair's second text, if the prompt is a pair.
    #[serde(default)]
    pub second_at: Option<u32>,
    /// The vector of the prompt; empty if the model's file has none.
    #[serde(default)]
    pub vector: Vec<f32>,
    /// The greedy answer; empty if the model's file has none.
    #[serde(default)]
    pub greedy_ids: Vec<u32>,
}

/// Returns the cases of a family of [`crate::FAMILIES`], [`crate::ENCODERS`] or [`crate::RERANKERS`].
pub fn family(name: &str) -> std::io::Result<Vec<Case>> {
    cases(&crate::fixture(&format!("golden/{name}")))
}

/// Returns the golden prompts of a model folder.
pub fn prompts(model: &Path) -> std::io::Result<Vec<Vec<u32>>> {
    let cases = cases(model)?.into_iter();
    Ok(cases.map(|case| case.input_ids).collect())
}

fn cases(model: &Path) -> std::io::Result<Vec<Case>> {
    cases_of(&model.join("golden.json"))
}

/// Returns the cases of a file.
pub fn cases_of(file: &Path) -> std::io::Result<Vec<Case>> {
    #[derive(Deserialize)]
    struct File {
        cases: Vec<Case>,
    }
    let text = std::fs::read_to_string(file)?;
    Ok(serde_json::from_str::<File>(&text)?.cases)
}
