//! Parsing of requests: the fields of a body, and headers that stand in for fields, checked and typed.
//!
//! A request for something that this server does not do is refused, never ignored. Only fields that do not affect
//! the answer (`user`, `cache_prompt`) are ignored, and named in the response. `served` checks the values that depend on the model, such as its
//! context.

mod blocks;
mod embeddings;
mod foreign;
mod ignored;
mod items;
mod messages;
mod params;
mod prediction;
mod prompt;
mod rerank;
mod responses;
#[cfg(test)]
mod shown_cases;

use serde_json::Value;

use super::bounded_json::{PromptField, Reader};
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::message::messages;
use super::tools::Tooling;
use heg_text::Conversation;

pub(crate) use embeddings::{EmbeddingsRequest, Encoding};
pub(super) use foreign::Switch;
use foreign::WITHOUT_EFFECT;
pub(super) use items::{History, qualified};
pub use messages::MessagesPurpose;
use params::OfRoute;
pub use params::{CompletionParams, Delivery, EchoPrompt, EndToken, Thoughts, TokenIds, Usage};
pub use prompt::{Bound, PromptBounds, PromptText};
pub use rerank::RerankRequest;
pub use responses::{ResponsesRequest, Storing};

/// A request to `/v1/chat/completions`.
#[derive(Debug)]
pub struct ChatRequest {
    /// The input of the chat template.
    pub conversation: Conversation,
    /// The tools that may be called, and the format of the answer.
    pub tooling: Tooling,
    /// The predicted answer.
    pub prediction: Option<String>,
    /// The fields that set variables of the chat template.
    pub switches: Vec<Switch>,
    /// The parameters common to both routes.
    pub params: CompletionParams,
}

/// A request to `/v1/completions`.
#[derive(Debug)]
pub struct CompletionRequest {
    /// The prompt.
    pub prompt: PromptText,
    /// The parameters common to both routes.
    pub params: CompletionParams,
}

impl ChatRequest {
    /// Reads a body; `headers` are fields that it may leave out, by the names in [`FIELD_HEADERS`].
    ///
    /// # Errors
    /// The first thing that is wrong, with the field's name.
    pub fn parse<'a>(
        body: &[u8],
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        bounds: &PromptBounds,
    ) -> Result<Self> {
        let (mut fields, _) = fields(body, headers, bounds, PromptField::Unknown)?;
        let ignored = foreign::translate(&mut fields)?;
        let list = fields
            .list("messages")?
            .ok_or(ApiError::Missing { field: "messages" })?;
        let messages = messages(list)?;
        let tooling = Tooling::take(&mut fields)?;
        let mut variables = fields.map("chat_template_kwargs")?.unwrap_or_default();
        let switches = foreign::template_switches(&mut fields, &mut variables)?;
        fields.only(
            "echo",
            foreign::is_false,
            "answers with the new message alone",
        )?;
        let conversation = Conversation {
            messages,
            tools: tooling.tools.clone(),
            add_generation_prompt: true,
            now: None,
            variables,
        };
        let prediction = prediction::prediction(&mut fields, bounds)?;
        let log_probs = params::chat_log_probs(&mut fields)?;
        fields.only("modalities", is_text_only, "answers in text only")?;
        let tokens_max = match fields.count("max_completion_tokens")? {
            Some(tokens) => {
                fields.take("max_tokens");
                Some(tokens)
            }
            None => fields.count("max_tokens")?,
        };
        let of_route = OfRoute {
            tokens_max,
            log_probs,
            echo: EchoPrompt::Omitted,
            stop: params::stop(&mut fields)?,
            thoughts: params::thoughts(&mut fields)?,
            delivery: params::delivery(&mut fields)?,
            ignored,
        };
        let params = CompletionParams::take(&mut fields, of_route)?;
        fields.end()?;
        Ok(Self {
            conversation,
            tooling,
            prediction,
            switches,
            params,
        })
    }
}

impl CompletionRequest {
    /// Reads a body, as [`ChatRequest::parse`] does.
    ///
    /// # Errors
    /// The first thing that is wrong, with the field's name.
    pub fn parse<'a>(
        body: &[u8],
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        bounds: &PromptBounds,
    ) -> Result<Self> {
        let (mut fields, prompt) = fields(body, headers, bounds, PromptField::Typed)?;
        let ignored = foreign::translate(&mut fields)?;
        let prompt = prompt.ok_or(ApiError::Missing { field: "prompt" })?;
        let echo = match fields.flag("echo")? {
            Some(true) => EchoPrompt::Included,
            Some(false) | None => EchoPrompt::Omitted,
        };
        let log_probs = fields.within("logprobs", 0..=5, "an integer from 0 to 5")?;
        fields.only("best_of", is_one, "gives every answer that it makes (`n`)")?;
        fields.only("suffix", is_empty, "does not fill in")?;
        let tokens_max = match echo {
            EchoPrompt::Omitted => fields.count("max_tokens")?,
            EchoPrompt::Included => {
                let expected = "an integer from 0 to 4294967295";
                fields.within("max_tokens", 0..=u32::MAX, expected)?
            }
        };
        let of_route = OfRoute {
            tokens_max,
            log_probs,
            echo,
            stop: params::stop(&mut fields)?,
            thoughts: Thoughts::InText,
            delivery: params::delivery(&mut fields)?,
            ignored,
        };
        let params = CompletionParams::take(&mut fields, of_route)?;
        fields.end()?;
        Ok(Self { prompt, params })
    }
}

/// Returns the flow that a body of `/v1/flows/end` names.
///
/// # Errors
/// The first thing that is wrong, with the field's name.
pub fn flow_to_end(body: &[u8], bounds: &PromptBounds) -> Result<String> {
    let reader = Reader::new(bounds, &[]);
    let (mut fields, _) = Fields::read(body, &reader, PromptField::Unknown)?;
    let flow = name(&mut fields, "flow_id")?;
    fields.end()?;
    flow.ok_or(ApiError::Missing { field: "flow_id" })
}

fn fields<'a>(
    body: &[u8],
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    bounds: &PromptBounds,
    prompt: PromptField,
) -> Result<(Fields, Option<PromptText>)> {
    fields_but(body, headers, (bounds, prompt), &WITHOUT_EFFECT)
}

/// Reads the fields of a body, but not the values of those that are passed over.
fn fields_but<'a>(
    body: &[u8],
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    (bounds, prompt): (&PromptBounds, PromptField),
    passed_over: &[&str],
) -> Result<(Fields, Option<PromptText>)> {
    let reader = Reader::new(bounds, passed_over);
    let (mut fields, prompt) = Fields::read(body, &reader, prompt)?;
    for (header, text) in headers {
        let known = FIELD_HEADERS.iter().find(|(name, _)| *name == header);
        if let Some((_, field)) = known {
            // Numbers stay numbers where a field takes them.
            let is_text = matches!(*field, "flow_id" | "supersede_key");
            let number = text.parse::<i64>().ok().filter(|_| !is_text);
            fields.add(field, number.map_or_else(|| text.into(), Value::from));
        }
    }
    Ok((fields, prompt))
}

/// Returns a name that the client chose.
fn name(fields: &mut Fields, field: &str) -> Result<Option<String>> {
    match fields.text(field)? {
        Some(name) if name.is_empty() || name.len() > NAME_BYTES_MAX => {
            Err(fields.wrong(field, "a text of 1 to 256 bytes", &name.into()))
        }
        name => Ok(name),
    }
}

fn is_one(value: &Value) -> bool {
    value.as_u64() == Some(1)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn is_text_only(value: &Value) -> bool {
    value
        .as_array()
        .is_some_and(|list| list.iter().all(|value| value == "text"))
}

/// Headers that stand in for fields of the body.
pub const FIELD_HEADERS: [(&str, &str); 4] = [
    ("heg-priority", "priority"),
    ("heg-flow-id", "flow_id"),
    ("heg-deadline-ms", "deadline_ms"),
    ("heg-supersede-key", "supersede_key"),
];

/// Length of names that clients choose. Chosen.
const NAME_BYTES_MAX: usize = 256;

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
