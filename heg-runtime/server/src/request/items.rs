//! Items of OpenAI's Responses API as input of chat templates: messages, calls of functions, and their outputs.
//!
//! A call belongs to the assistant's message before it. The items of an answer become the same messages whether the
//! server adds them to a conversation that it keeps, or the client sends them back.

use serde_json::{Value, json};

use super::ignored::Ignored;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, describe};
use crate::message::{THOUGHT, read_arguments};
use crate::tools::value_bytes;

/// The messages of a conversation, in chat's form, without the instructions of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct History {
    pub(crate) messages: Vec<Value>,
    /// Ids of the calls that have no output yet.
    open_calls: Vec<String>,
}

impl History {
    /// Returns the memory of the messages, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.messages.iter().map(value_bytes).sum()
    }

    /// Adds what the assistant thought, which belongs to its next message.
    pub(crate) fn thought(&mut self, text: &str) {
        self.messages
            .push(json!({"role": "assistant", "content": "", THOUGHT: text}));
    }

    /// Adds the assistant's text, to what it thought before if it did.
    pub(crate) fn answer(&mut self, text: &str) {
        match self.messages.last_mut() {
            Some(message) if is_thought(message) => message["content"] = text.into(),
            _ => self
                .messages
                .push(json!({"role": "assistant", "content": text})),
        }
    }

    /// Adds a call, to the assistant's message before it if there is one.
    pub(crate) fn call(&mut self, id: &str, name: &str, arguments: &str) {
        self.open_calls.push(id.to_owned());
        let mut call = json!({
            "id": id, "type": "function", "function": {"name": name, "arguments": arguments}
        });
        read_arguments(&mut call);
        match self.messages.last_mut() {
            Some(message) if message["role"] == "assistant" => match &mut message["tool_calls"] {
                Value::Array(calls) => calls.push(call),
                none => *none = vec![call].into(),
            },
            _ => self
                .messages
                .push(json!({"role": "assistant", "content": "", "tool_calls": [call]})),
        }
    }

    /// Adds the `input` of a request. The names of parts that have no effect are added to `ignored`.
    pub(super) fn read(&mut self, input: Value, ignored: &mut Ignored) -> Result<()> {
        match input {
            Value::String(text) => self.said("user", text, "input")?,
            Value::Array(list) => {
                for (place, item) in list.into_iter().enumerate() {
                    let path = format!("input[{place}]");
                    self.item(Fields::of(item, &path)?, &path, ignored)?;
                }
            }
            other => {
                return Err(ApiError::Field {
                    field: "input".to_owned(),
                    expected: "a text or a list of items",
                    found: describe(&other),
                });
            }
        }
        if self.messages.is_empty() {
            return Err(ApiError::Field {
                field: "input".to_owned(),
                expected: "at least one item",
                found: "an empty list".to_owned(),
            });
        }
        self.check_answered("input")
    }

    fn item(&mut self, mut item: Fields, path: &str, ignored: &mut Ignored) -> Result<()> {
        let kind = item.text("type")?;
        // Names and states of items, which the client has from earlier answers.
        for name in ["id", "status", "phase", "caller"] {
            item.take(name);
        }
        match kind.as_deref() {
            None | Some("message") => self.message(&mut item, path)?,
            Some("function_call") => {
                let id = item.needed_text("call_id")?;
                if self.open_calls.contains(&id) {
                    let expected = "an id that no other call has";
                    return Err(item.wrong("call_id", expected, &id.into()));
                }
                let name = name(&mut item)?;
                let arguments = item.needed_text("arguments")?;
                self.call(&id, &name, &arguments);
            }
            Some("function_call_output") if item.get("call_id").is_none() => {
                self.note(&mut item, path)?;
            }
            Some("function_call_output") => self.output(&mut item)?,
            Some("reasoning") => self.reasoning(&mut item, ignored)?,
            Some("item_reference") => {
                let limit = "keeps whole conversations (`previous_response_id`)";
                return Err(item.unsupported("type", &"item_reference".into(), limit));
            }
            Some(kind) => {
                let limit = "knows messages, and calls of functions that the client runs";
                return Err(item.unsupported("type", &kind.into(), limit));
            }
        }
        item.end()
    }

    fn message(&mut self, item: &mut Fields, path: &str) -> Result<()> {
        let role = item.needed_text("role")?;
        let role = match role.as_str() {
            "developer" => "system",
            "user" | "system" | "assistant" => &role,
            _ => {
                let expected = "user, assistant, system or developer";
                return Err(item.wrong("role", expected, &role.into()));
            }
        };
        let parts = match role {
            "assistant" => &["output_text", "refusal"][..],
            _ => &["input_text"],
        };
        let text = content(item, "content", parts)?;
        self.said(role, text, path)
    }

    fn said(&mut self, role: &str, text: String, path: &str) -> Result<()> {
        if role == "assistant" {
            self.answer(&text);
            return Ok(());
        }
        self.check_answered(path)?;
        self.messages.push(json!({"role": role, "content": text}));
        Ok(())
    }

    /// Reads what the assistant thought. Of reasoning by OpenAI's models there is only a summary, and what OpenAI alone
    /// can read.
    fn reasoning(&mut self, item: &mut Fields, ignored: &mut Ignored) -> Result<()> {
        item.take("summary");
        item.take("encrypted_content");
        let text = match item.get("content") {
            None => String::new(),
            Some(_) => content(item, "content", &["reasoning_text"])?,
        };
        match text.is_empty() {
            true => ignored.add("input.reasoning"),
            false => self.thought(&text),
        }
        Ok(())
    }

    fn output(&mut self, item: &mut Fields) -> Result<()> {
        let id = item.needed_text("call_id")?;
        let Some(place) = self.open_calls.iter().position(|open| *open == id) else {
            let expected = "the id of a `function_call` before it, answered once";
            return Err(item.wrong("call_id", expected, &id.into()));
        };
        self.open_calls.remove(place);
        let text = content(item, "output", &["input_text"])?;
        self.messages
            .push(json!({"role": "tool", "tool_call_id": id, "content": text}));
        Ok(())
    }

    /// Reads an output that no call asked for: what a function of the client says of itself, which is nobody's word but
    /// the user's.
    fn note(&mut self, item: &mut Fields, path: &str) -> Result<()> {
        if item.get("name").is_none() {
            return Err(item.absent("call_id", "a text"));
        }
        let name = name(item)?;
        let text = content(item, "output", &["input_text"])?;
        self.said("user", format!("{name}: {text}"), path)
    }

    fn check_answered(&self, path: &str) -> Result<()> {
        match self.open_calls.first() {
            None => Ok(()),
            Some(open) => Err(ApiError::Field {
                field: path.to_owned(),
                expected: "a `function_call_output` for each `function_call` before",
                found: format!("none for {}", describe(&open.as_str().into())),
            }),
        }
    }
}

/// Whether a message has nothing but what the assistant thought.
fn is_thought(message: &Value) -> bool {
    let has_more = message["content"] != "" || message.get("tool_calls").is_some();
    message.get(THOUGHT).is_some() && !has_more
}

/// Takes the name of a function, and its namespace.
fn name(item: &mut Fields) -> Result<String> {
    let name = item.needed_text("name")?;
    Ok(qualified(item.text("namespace")?.as_deref(), &name))
}

/// Returns the name by which the model knows a function, with its namespace if it has one. OpenAI allows no point in either.
pub(crate) fn qualified(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}.{name}"),
        None => name.to_owned(),
    }
}

/// Takes a text, or a list of parts of these types.
fn content(item: &mut Fields, name: &str, types: &[&str]) -> Result<String> {
    let expected = "a text or a list of parts with text";
    let list = match item.take(name) {
        Some(Value::String(text)) => return Ok(text),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(item.wrong(name, expected, &other)),
        None => return Err(item.absent(name, expected)),
    };
    let mut text = String::new();
    for (place, part) in list.into_iter().enumerate() {
        let path = format!("{}[{place}]", item.path_of(name));
        let mut part = Fields::of(part, &path)?;
        let kind = part.needed_text("type")?;
        match kind.as_str() {
            "input_image" | "input_file" | "input_audio" => {
                return Err(part.unsupported("type", &kind.into(), "reads and writes text"));
            }
            "refusal" if types.contains(&"refusal") => text.push_str(&part.needed_text("refusal")?),
            kind if types.contains(&kind) => text.push_str(&part.needed_text("text")?),
            _ => {
                let expected = match types {
                    ["input_text"] => "input_text",
                    ["reasoning_text"] => "reasoning_text",
                    _ => "output_text or refusal",
                };
                return Err(part.wrong("type", expected, &kind.into()));
            }
        }
        part.take("annotations");
        part.take("logprobs");
        part.end()?;
    }
    Ok(text)
}
