//! The evaluation prompts of the trained models.

use std::path::{Path, PathBuf};

use heg_text::Message;
use serde::Deserialize;
use serde_json::Value;

/// A prompt with its right answer.
#[derive(Debug, Clone, Deserialize)]
pub struct Question {
    /// Number of the question, from 0.
    pub id: usize,
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// The offered tools.
    pub tools: Option<Vec<Value>>,
    /// The conversation as text, by the model's template.
    pub prompt: String,
    /// The right answer.
    pub answer: String,
    /// Whether the reference implementation answered it correctly in f32.
    pub correct_float32: bool,
}

/// Returns all 200 questions of a model.
pub fn questions(model: &Path) -> std::io::Result<Vec<Question>> {
    let text = std::fs::read_to_string(model.join("eval.jsonl"))?;
    let questions = text.lines().map(serde_json::from_str);
    let questions: Vec<Question> = questions.collect::<Result<_, _>>()?;
    assert_eq!(questions.len(), 200);
    Ok(questions)
}

/// Returns the folder of the larger model, if it exists: in `$HEG_MODELS`, or in `../shared/models` beside the
/// workspace.
pub fn agent_30m(test: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models");
    let models = std::env::var_os("HEG_MODELS").map_or(beside, PathBuf::from);
    let model = models.join("agent-30m");
    if model.is_dir() {
        return Some(model);
    }
    crate::skipped(&format!("{test} (no agent-30m)"));
    None
}
