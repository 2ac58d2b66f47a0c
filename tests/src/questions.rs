//! The evaluation prompts of the trained models.

use std::path::{Path, PathBuf};

use heg_text::Message;
use serde::Deserialize;
use serde_json::Value;

/// A prompt with its right answer.
#[derive(Debug, Clone, Deserialize)]
pub struct Question {
    /// From 0.
    pub id: usize,
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// Tools that are offered.
    pub tools: Option<Vec<Value>>,
    /// The same as text, by the model's template.
    pub prompt: String,
    /// What should be answered.
    pub answer: String,
    /// Whether the reference implementation answered it in f32.
    pub correct_float32: bool,
}

/// All 200 of a model.
pub fn questions(model: &Path) -> std::io::Result<Vec<Question>> {
    let text = std::fs::read_to_string(model.join("eval.jsonl"))?;
    let questions = text.lines().map(serde_json::from_str);
    let questions: Vec<Question> = questions.collect::<Result<_, _>>()?;
    assert_eq!(questions.len(), 200);
    Ok(questions)
}

/// The larger model, where it is: in `$HEG_MODELS`, or in `../shared/models` beside the workspace.
pub fn agent_30m(test: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models");
    let models = std::env::var_os("HEG_MODELS").map_or(beside, PathBuf::from);
    let model = models.join("agent-30m");
    if model.is_dir() {
        return Some(model);
    }
    println!("skipped: {test} (no agent-30m)");
    None
}
