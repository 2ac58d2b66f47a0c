//! Prompts of real data sets, in a model's chat template.

use anyhow::{Context, Result};
use heg_text::{ChatTemplate, Conversation, Message, Special, Tokenizer};
use serde::Deserialize;
use std::fs;
use std::path::Path;
use xtask::fail::Fail;

/// A prompt and its reference answer.
pub(super) struct Question {
    pub(super) prompt: Vec<u32>,
    pub(super) reference: Vec<u32>,
}

#[derive(Deserialize)]
struct Line {
    prompt: String,
    /// The messages of the prompt, if known; otherwise the prompt contains them.
    #[serde(default)]
    messages: Option<Vec<Message>>,
    #[serde(default)]
    tools: Option<Vec<serde_json::Value>>,
    #[serde(default, alias = "answer")]
    reference: Option<String>,
}

impl Line {
    fn conversation(&mut self) -> Conversation {
        match self.messages.take() {
            Some(messages) => Conversation {
                messages,
                tools: self.tools.take().unwrap_or_default(),
                add_generation_prompt: true,
                ..Conversation::default()
            },
            None => conversation(&self.prompt),
        }
    }
}

/// Reads questions of `FOLDER/NAME.jsonl`: the first `count` with a reference and a prompt of at most `tokens_max`
/// tokens.
pub(super) fn questions(
    folder: &Path,
    name: &str,
    (tokenizer, template): (&Tokenizer, &ChatTemplate),
    (count, tokens_max): (usize, usize),
) -> Result<Vec<Question>> {
    let path = folder.join(format!("{name}.jsonl"));
    let text = fs::read_to_string(&path)
        .with_context(|| Fail::input(format!("cannot read `{}`", path.display())))?;
    let mut questions = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if questions.len() == count {
            break;
        }
        let at = || format!("`{}`, line {}", path.display(), number + 1);
        let mut line: Line = serde_json::from_str(line).with_context(at)?;
        let conversation = line.conversation();
        let Some(reference) = line.reference else {
            continue;
        };
        let text = template.render(&conversation).with_context(at)?;
        let prompt = tokenizer
            .encode(&text, Special::AsWritten)
            .with_context(at)?;
        let reference = tokenizer
            .encode(&reference, Special::AsWritten)
            .with_context(at)?;
        if prompt.len() <= tokens_max && reference.len() > 1 {
            questions.push(Question { prompt, reference });
        }
    }
    Ok(questions)
}

/// Parses a prompt in which each message follows a line `<|ROLE|>`, and the last such line asks for the answer.
fn conversation(prompt: &str) -> Conversation {
    let mut messages: Vec<Message> = Vec::new();
    let mut role = "user";
    for part in prompt.split("<|") {
        let (named, content) = part.split_once("|>\n").unwrap_or((role, part));
        role = named;
        let content = content.strip_suffix('\n').unwrap_or(content);
        // Templates of small models support neither tools nor two messages of a role in a row; the user gives results.
        let role = if role == "tool" { "user" } else { role };
        if !content.is_empty() {
            messages.push(Message::new(role, content));
        }
    }
    Conversation {
        messages,
        add_generation_prompt: true,
        ..Conversation::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stand_behind_lines_with_their_role() {
        let prompt = "<|system|>\nBe kind.\n<|user|>\nA question\nof two lines\n<|assistant|>\n";
        let messages = conversation(prompt).messages;
        let found: Vec<&str> = messages.iter().map(Message::role).collect();
        assert_eq!(found, ["system", "user"]);
    }
}
