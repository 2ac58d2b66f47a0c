//! Messages of Anthropic's Messages API as input of chat templates: their content blocks, and calls of tools, each of
//! which the next message has to answer.

use serde_json::{Value, json};

use super::ignored::Ignored;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, describe};
use crate::message::THOUGHT;
use heg_runtime::RuntimeError;
use heg_text::Message;

/// A conversation while its messages are read.
#[derive(Default)]
pub(super) struct Turns {
    messages: Vec<Message>,
    /// Ids of the calls that the next message has to answer.
    open_calls: Vec<String>,
}

impl Turns {
    /// Adds a system message, unless it is empty.
    pub(super) fn system(&mut self, text: String) {
        if !text.is_empty() {
            self.messages.push(Message::new("system", text));
        }
    }

    /// Reads all messages. The names of parts that have no effect are added to `ignored`.
    pub(super) fn read(mut self, list: Vec<Value>, ignored: &mut Ignored) -> Result<Vec<Message>> {
        if list.is_empty() {
            return Err(messages_error("at least one message", "an empty list"));
        }
        let mut ends_with_assistant = false;
        for (place, value) in list.into_iter().enumerate() {
            let path = format!("messages[{place}]");
            let mut message = Fields::of(value, &path)?;
            let role = message.needed_text("role")?;
            ends_with_assistant = role == "assistant";
            let blocks = blocks(&mut message, &path)?;
            match role.as_str() {
                "user" => self.user(blocks, &path, ignored)?,
                "assistant" => self.assistant(blocks, &path, ignored)?,
                "system" if place > 0 => self.operator(blocks, &path, ignored)?,
                _ => return Err(message.wrong("role", roles(place), &role.into())),
            }
            message.end()?;
        }
        if ends_with_assistant {
            return Err(ApiError::Unsupported {
                field: "messages".to_owned(),
                found: "a conversation that ends with the assistant's message".to_owned(),
                limit: "answers with a new message, and continues none",
            });
        }
        Ok(self.messages)
    }

    /// Reads a message of the user: results of calls, which are messages of their own to templates, then text.
    fn user(&mut self, blocks: Vec<Fields>, path: &str, ignored: &mut Ignored) -> Result<()> {
        let mut text = None::<String>;
        for mut block in blocks {
            let kind = block.needed_text("type")?;
            match (kind.as_str(), self.open_calls.first()) {
                ("tool_result", _) => self.result(block, ignored)?,
                ("text", None) => {
                    let piece = text_block(block, ignored)?;
                    text.get_or_insert_default().push_str(&piece);
                }
                ("text", Some(open)) => return Err(unanswered(path, open)),
                _ => return Err(no_such_block(&block, &kind, "text or tool_result")),
            }
        }
        if let Some(open) = self.open_calls.first() {
            return Err(unanswered(path, open));
        }
        if let Some(text) = text {
            self.messages.push(Message::new("user", text));
        }
        Ok(())
    }

    /// Reads a message of the application amid the conversation.
    fn operator(&mut self, blocks: Vec<Fields>, path: &str, ignored: &mut Ignored) -> Result<()> {
        if let Some(open) = self.open_calls.first() {
            return Err(unanswered(path, open));
        }
        let mut text = String::new();
        for block in blocks {
            text.push_str(&only_text(block, ignored)?);
        }
        self.system(text);
        Ok(())
    }

    fn result(&mut self, mut block: Fields, ignored: &mut Ignored) -> Result<()> {
        let id = block.needed_text("tool_use_id")?;
        let Some(place) = self.open_calls.iter().position(|open| *open == id) else {
            let expected = "the id of a `tool_use` in the message before, answered once";
            return Err(block.wrong("tool_use_id", expected, &id.into()));
        };
        self.open_calls.remove(place);
        let text = match block.take("content") {
            None => String::new(),
            Some(content) => text_of(&block, "content", content, ignored)?,
        };
        ignored.take(&mut block, "cache_control");
        if block.flag("is_error")? == Some(true) {
            ignored.add("is_error");
        }
        block.end()?;
        let message = json!({"role": "tool", "tool_call_id": id, "content": text});
        self.push(message)
    }

    fn assistant(&mut self, blocks: Vec<Fields>, path: &str, ignored: &mut Ignored) -> Result<()> {
        if let Some(open) = self.open_calls.first() {
            return Err(unanswered(path, open));
        }
        let (mut thought, mut text, mut calls) = (String::new(), String::new(), Vec::new());
        for mut block in blocks {
            let kind = block.needed_text("type")?;
            match kind.as_str() {
                "text" => text.push_str(&text_block(block, ignored)?),
                "tool_use" => calls.push(self.call(block, ignored)?),
                "thinking" => thought.push_str(&thinking(block)?),
                // Only Anthropic can read it.
                "redacted_thinking" => ignored.add("messages.redacted_thinking"),
                _ => return Err(no_such_block(&block, &kind, "text, thinking or tool_use")),
            }
        }
        let mut message = json!({"role": "assistant", "content": text});
        if !thought.is_empty() {
            message[THOUGHT] = thought.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        self.push(message)
    }

    fn call(&mut self, mut block: Fields, ignored: &mut Ignored) -> Result<Value> {
        let id = block.needed_text("id")?;
        if self.open_calls.contains(&id) {
            let expected = "an id that no other call of the message has";
            return Err(block.wrong("id", expected, &id.into()));
        }
        let name = block.needed_text("name")?;
        let input = block.map("input")?;
        let input = input.ok_or_else(|| block.absent("input", "an object"))?;
        ignored.take(&mut block, "cache_control");
        block.take("caller");
        block.end()?;
        self.open_calls.push(id.clone());
        Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}}))
    }

    fn push(&mut self, message: Value) -> Result<()> {
        let message = Message::try_from(message).map_err(RuntimeError::from)?;
        self.messages.push(message);
        Ok(())
    }
}

/// Returns the roles that the message at this place may have. A conversation begins with its first turn, for there is a
/// field `system`.
fn roles(place: usize) -> &'static str {
    match place {
        0 => "user or assistant",
        _ => "user, assistant or system",
    }
}

/// Takes the content of a message as blocks; a text is one block.
fn blocks(message: &mut Fields, path: &str) -> Result<Vec<Fields>> {
    let expected = "a text or a list of content blocks";
    let list = match message.take("content") {
        Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
        Some(Value::Array(list)) if !list.is_empty() => list,
        Some(other) => return Err(message.wrong("content", expected, &other)),
        None => return Err(message.absent("content", expected)),
    };
    let blocks = list.into_iter().enumerate();
    blocks
        .map(|(place, block)| Fields::of(block, &format!("{path}.content[{place}]")))
        .collect()
}

/// Returns the text of a field that is a text or a list of text blocks.
pub(super) fn text_of(
    fields: &Fields,
    name: &str,
    value: Value,
    ignored: &mut Ignored,
) -> Result<String> {
    let list = match value {
        Value::String(text) => return Ok(text),
        Value::Array(list) => list,
        other => return Err(fields.wrong(name, "a text or a list of text blocks", &other)),
    };
    let mut text = String::new();
    for (place, block) in list.into_iter().enumerate() {
        let path = format!("{}[{place}]", fields.path_of(name));
        text.push_str(&only_text(Fields::of(block, &path)?, ignored)?);
    }
    Ok(text)
}

/// Returns the text of a block that may only be a text.
fn only_text(mut block: Fields, ignored: &mut Ignored) -> Result<String> {
    match block.needed_text("type")?.as_str() {
        "text" => text_block(block, ignored),
        kind => Err(no_such_block(&block, kind, "text")),
    }
}

/// Returns the text of a text block, whose type was taken.
fn text_block(mut block: Fields, ignored: &mut Ignored) -> Result<String> {
    let text = block.needed_text("text")?;
    if text.is_empty() {
        return Err(block.wrong("text", "at least one letter", &text.into()));
    }
    for name in ["cache_control", "citations"] {
        ignored.take(&mut block, name);
    }
    block.end()?;
    Ok(text)
}

/// Returns the text of a thinking block, whose type was taken.
fn thinking(mut block: Fields) -> Result<String> {
    let text = block.needed_text("thinking")?;
    // Those of this server are empty.
    block.text("signature")?;
    block.end()?;
    Ok(text)
}

/// Returns the error for a block that this message cannot have.
fn no_such_block(block: &Fields, kind: &str, expected: &'static str) -> ApiError {
    let found = kind.into();
    match kind {
        "image" | "document" | "search_result" | "container_upload" => {
            block.unsupported("type", &found, "reads and writes text")
        }
        _ => block.wrong("type", expected, &found),
    }
}

fn unanswered(path: &str, call: &str) -> ApiError {
    ApiError::Field {
        field: path.to_owned(),
        expected: "first a `tool_result` for each `tool_use` of the message before",
        found: format!("none for {}", describe(&call.into())),
    }
}

fn messages_error(expected: &'static str, found: &str) -> ApiError {
    ApiError::Field {
        field: "messages".to_owned(),
        expected,
        found: found.to_owned(),
    }
}
