//! Tools and the form of an answer: from a request's `tools`, `tool_choice` and `response_format` to what the chat
//! template shows and what the sampler may choose; from the answer's text to OpenAI's `tool_calls`.

use serde_json::Value;

use super::error::Result;
use super::fields::Fields;

/// What a request says of tools and of the form of the answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tooling {
    /// The tools, as the template shows them.
    pub tools: Vec<Value>,
}

impl Tooling {
    /// Takes the fields that belong to it.
    pub(super) fn take(fields: &mut Fields) -> Result<Self> {
        let tools = fields.list("tools")?.unwrap_or_default();
        fields.take("parallel_tool_calls");
        fields.only(
            "tool_choice",
            |value| value == "auto",
            "lets the model choose",
        )?;
        fields.only(
            "response_format",
            |value| value["type"] == "text",
            "answers in text",
        )?;
        Ok(Self { tools })
    }
}
