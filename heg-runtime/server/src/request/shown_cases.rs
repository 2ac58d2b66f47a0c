//! Cases of the routes whose requests become chat's: what each becomes, or the error for it.

use serde_json::Value;

use super::{Bound, ChatRequest, PromptBounds};
use crate::error::Result;
use crate::tools::Tooling;

pub(super) const BOUNDS: PromptBounds = PromptBounds {
    tokens: 1024,
    bounded_by: Bound::Context,
    token_bytes: 16,
};

/// Returns a body with the fields of a case in place of its own, or beside them.
pub(super) fn body(mut body: Value, fields: &str) -> String {
    let given: Value = serde_json::from_str(fields).unwrap();
    for (name, value) in given.as_object().unwrap() {
        body[name] = value.clone();
    }
    body.to_string()
}

/// Returns the input of the template for each case, or its error.
pub(super) fn shown(cases: &[&str], parse: impl Fn(&str) -> Result<ChatRequest>) -> String {
    let mut text = String::new();
    for case in cases {
        text.push_str(case);
        text.push('\n');
        match parse(case) {
            Ok(request) => {
                for message in &request.conversation.messages {
                    text.push_str(&format!("  {}\n", serde_json::to_string(message).unwrap()));
                }
                for tool in &request.tooling.tools {
                    text.push_str(&format!("  tool {tool}\n"));
                }
                let Tooling {
                    choice,
                    calls,
                    format,
                    ..
                } = request.tooling;
                text.push_str(&format!("  {choice:?} {calls:?} {format:?}"));
                text.push_str(&format!(" ignored {:?}", request.params.ignored));
                let switches: Vec<&str> = request.switches.iter().map(|it| it.field).collect();
                if !switches.is_empty() {
                    text.push_str(&format!(" for the template {switches:?}"));
                }
                text.push('\n');
            }
            Err(error) => {
                let status = error.status().as_u16();
                text.push_str(&format!("  {status} {error}\n"));
            }
        }
    }
    text
}
