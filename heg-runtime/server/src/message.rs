//! Converts messages of OpenAI's API to the input of chat templates.
//!
//! Three things differ: content may come in parts, arguments of tool calls come as JSON in a string, and system
//! messages may have the role `developer`.

use serde_json::{Map, Value};

use super::error::{ApiError, Result};
use super::fields::describe;
use heg_text::Message;

/// Returns the messages of a conversation; at least one.
pub(super) fn messages(list: Vec<Value>) -> Result<Vec<Message>> {
    if list.is_empty() {
        return Err(ApiError::Field {
            field: "messages".to_owned(),
            expected: "at least one message",
            found: "an empty list".to_owned(),
        });
    }
    list.into_iter()
        .enumerate()
        .map(|(place, value)| message(place, value))
        .collect()
}

fn message(place: usize, value: Value) -> Result<Message> {
    let at = |rest: &str| format!("messages[{place}]{rest}");
    let Value::Object(mut fields) = value else {
        return Err(wrong(at(""), "an object", &value));
    };
    match fields.get("role") {
        Some(Value::String(role)) if role == "developer" => {
            fields.insert("role".to_owned(), "system".into());
        }
        Some(Value::String(_)) => {}
        other => {
            let found = other.unwrap_or(&Value::Null);
            return Err(wrong(at(".role"), "a text", found));
        }
    }
    let has = |name| fields.get(name).is_some_and(|value| !value.is_null());
    let has_other = has("tool_calls") || has(THOUGHT);
    match fields.remove("content") {
        Some(Value::Array(parts)) => {
            let text = joined(parts, &at(".content"))?;
            fields.insert("content".to_owned(), text.into());
        }
        Some(Value::String(text)) => {
            fields.insert("content".to_owned(), text.into());
        }
        // Templates print a missing text as such, so it becomes an empty one.
        None | Some(Value::Null) if has_other => {
            fields.insert("content".to_owned(), "".into());
        }
        other => {
            let found = other.unwrap_or_default();
            return Err(wrong(
                at(".content"),
                "a text or a list of text parts",
                &found,
            ));
        }
    }
    match fields.get_mut("tool_calls") {
        Some(Value::Array(calls)) => calls.iter_mut().for_each(read_arguments),
        Some(Value::Null) => {
            fields.remove("tool_calls");
        }
        Some(other) => return Err(wrong(at(".tool_calls"), "a list", other)),
        None => {}
    }
    let message = Message::try_from(Value::Object(fields));
    Ok(message.map_err(heg_runtime::RuntimeError::from)?)
}

/// Joins the text of a content that comes in parts.
pub(super) fn joined(parts: Vec<Value>, at: &str) -> Result<String> {
    let mut text = String::new();
    for (place, part) in parts.iter().enumerate() {
        let kind = part.get("type").and_then(Value::as_str);
        match (kind, part.get("text").and_then(Value::as_str)) {
            (Some("text"), Some(piece)) => text.push_str(piece),
            _ => {
                let found = part.get("type").unwrap_or(part);
                return Err(wrong(
                    format!("{at}[{place}]"),
                    "a part of type text",
                    found,
                ));
            }
        }
    }
    Ok(text)
}

/// Parses the arguments of a call, since templates expect an object.
pub(super) fn read_arguments(call: &mut Value) {
    let arguments = call.pointer_mut("/function/arguments");
    if let Some(arguments) = arguments
        && let Value::String(text) = arguments
        && let Ok(object) = serde_json::from_str::<Map<String, Value>>(text)
    {
        *arguments = Value::Object(object);
    }
}

fn wrong(field: String, expected: &'static str, found: &Value) -> ApiError {
    ApiError::Field {
        field,
        expected,
        found: describe(found),
    }
}

/// The field of a message with what the assistant thought before it. Templates know it by this name.
pub(super) const THOUGHT: &str = "reasoning_content";
