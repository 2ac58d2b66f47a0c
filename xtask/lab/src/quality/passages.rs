//! The scored passages: prompts with the f32 model's own greedy answers, or prompts with their held-out answers.

use super::model::Model;
use anyhow::{Context, Result};
use heg_runtime::Loaded;
use heg_runtime::exec::Executor;
use heg_runtime::score::Passage;
use heg_runtime::text::{Conversation, Message, Special, most_likely};
use heg_sched::{Logits, chunks};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The choice of passages.
#[derive(Default)]
pub(super) struct Scored {
    /// Number of positions in all, about; `None`: whole answers.
    pub(super) positions: Option<usize>,
    /// Prompts that models answer, one JSON object with its `text` a line; `None`: our own.
    pub(super) prompts: Option<String>,
}

/// The passages. `model` answers the prompts.
pub(super) fn passages(
    kind: Model,
    folder: &Path,
    loaded: &Loaded,
    model: &mut Executor,
    scored: &Scored,
) -> Result<Vec<Passage>> {
    match kind {
        Model::Smollm2 | Model::Gemma3 => answered(loaded, model, scored),
        Model::Agent30m => held_out(
            folder,
            loaded,
            scored.positions.unwrap_or(HELD_OUT_POSITIONS),
        ),
    }
}

/// The prompts, each with the model's own answer, as long as its share of the positions.
fn answered(loaded: &Loaded, model: &mut Executor, scored: &Scored) -> Result<Vec<Passage>> {
    let tokenizer = loaded.tokenizer()?;
    // A base model has no template.
    let template = loaded.chat_template().ok();
    let prompts: Vec<Value> = lines(scored.prompts.as_deref().unwrap_or(PROMPTS))?;
    let share = |positions: usize| (positions / prompts.len().max(1)).clamp(1, ANSWER_TOKENS_MAX);
    let answer_tokens = scored.positions.map_or(ANSWER_TOKENS_MAX, share);
    let mut passages = Vec::new();
    for prompt in &prompts {
        let text = prompt["text"].as_str().context("a prompt has no text")?;
        let mut tokens = match &template {
            Some(template) => {
                let conversation = Conversation {
                    messages: vec![Message::new("user", text)],
                    add_generation_prompt: true,
                    ..Conversation::default()
                };
                tokenizer.encode(&template.render(&conversation)?, Special::AsWritten)?
            }
            None => tokenizer.encode(text, Special::Add)?,
        };
        let from = tokens.len();
        tokens.extend(greedy(model, &tokens, answer_tokens)?);
        passages.push(Passage::new(tokens, from, model.manifest())?);
    }
    Ok(passages)
}

/// Greedy tokens up to and including one that ends the answer.
fn greedy(model: &mut Executor, prompt: &[u32], tokens_max: usize) -> Result<Vec<u32>> {
    let mut sequence = model.sequence()?;
    let mut next = 0;
    for chunk in chunks(prompt.len(), model.options().chunk_tokens) {
        let logits = match chunk.end == prompt.len() {
            true => Logits::LastRows,
            false => Logits::None,
        };
        next = most_likely(model.prefill(&mut sequence, &prompt[chunk], logits)?);
    }
    let mut answer = vec![next];
    while answer.len() < tokens_max && !model.manifest().text.eos_ids.contains(&next) {
        next = most_likely(model.decode(&mut [&mut sequence], &[next])?);
        answer.push(next);
    }
    Ok(answer)
}

/// Held-out prompts of a trained model with their expected answers.
fn held_out(folder: &Path, loaded: &Loaded, positions: usize) -> Result<Vec<Passage>> {
    let path = folder.join("eval.jsonl");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let tokenizer = loaded.tokenizer()?;
    let (mut passages, mut scored) = (Vec::new(), 0);
    for line in lines(&text)? {
        let part = |key| {
            line[key]
                .as_str()
                .with_context(|| format!("a line has no {key}"))
        };
        let mut tokens = tokenizer.encode(part("prompt")?, Special::AsWritten)?;
        let from = tokens.len();
        let answer = format!("{}<|eot_id|>", part("answer")?);
        tokens.extend(tokenizer.encode(&answer, Special::AsWritten)?);
        let passage = Passage::new(tokens, from, loaded.bundle().manifest())?;
        scored += passage.scored();
        passages.push(passage);
        if scored >= positions {
            break;
        }
    }
    Ok(passages)
}

fn lines(text: &str) -> Result<Vec<Value>> {
    let parsed = text.lines().map(serde_json::from_str);
    parsed
        .collect::<Result<_, _>>()
        .context("a line is no JSON")
}

/// Our own texts: six languages, code, a table query, JSON, emoji.
const PROMPTS: &str = include_str!("prompts.jsonl");

/// Longest answer. Chosen: small models repeat themselves soon after.
const ANSWER_TOKENS_MAX: usize = 48;

/// Positions of held-out answers. Chosen: as many as 20 answers of the greatest length have.
const HELD_OUT_POSITIONS: usize = 20 * ANSWER_TOKENS_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prompt_has_a_text() {
        let prompts = lines(PROMPTS).unwrap();
        assert_eq!(prompts.len(), 20);
        assert!(prompts.iter().all(|prompt| prompt["text"].is_string()));
    }
}
