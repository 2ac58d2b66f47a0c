//! Requests of Anthropic's Messages API, read into the request that `/v1/chat/completions` makes.
//!
//! `blocks` reads the messages; here are the other fields. What chat's own fields say (`seed`, `priority`, `flow_id` …)
//! may be said here too.

use serde_json::{Map, Value, json};

use super::blocks::{Turns, text_of};
use super::ignored::Ignored;
use super::params::{self, OfRoute, stop_texts};
use super::{
    ChatRequest, CompletionParams, EchoPrompt, PromptBounds, Switch, TokenIds, fields, foreign,
};
use crate::bounded_json::PromptField;
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::message::THOUGHT;
use crate::tools::{AnswerFormat, Tooling};
use heg_text::{Calls, Conversation, Message, ToolChoice};

/// The purpose of a request to the Messages API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessagesPurpose {
    /// An answer.
    Answer,
    /// The number of tokens of its prompt.
    Count,
}

impl ChatRequest {
    /// Reads a body of `/v1/messages` or `/v1/messages/count_tokens`; `headers` are as for [`ChatRequest::parse`].
    ///
    /// # Errors
    /// The first thing that is wrong, with the field's name.
    pub fn parse_messages<'a>(
        body: &[u8],
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        bounds: &PromptBounds,
        purpose: MessagesPurpose,
    ) -> Result<Self> {
        let (mut fields, _) = fields(body, headers, bounds, PromptField::Unknown)?;
        let mut ignored = Ignored::from(foreign::translate(&mut fields)?);
        let tokens_max = fields.count("max_tokens")?;
        if tokens_max.is_none() && purpose == MessagesPurpose::Answer {
            return Err(ApiError::Missing {
                field: "max_tokens",
            });
        }
        let mut turns = Turns::default();
        if let Some(system) = fields.take("system") {
            turns.system(text_of(&fields, "system", system, &mut ignored)?);
        }
        let list = fields
            .list("messages")?
            .ok_or(ApiError::Missing { field: "messages" })?;
        let messages = turns.read(list, &mut ignored)?;
        let format = format(&mut fields)?;
        let tooling = tooling(&mut fields, format, &mut ignored)?;
        let mut variables = fields.map("chat_template_kwargs")?.unwrap_or_default();
        let mut switches = foreign::template_switches(&mut fields, &mut variables)?;
        let mut fields_of_messages = messages.iter().map(Message::fields);
        let have_thoughts = fields_of_messages.any(|it| it.contains_key(THOUGHT));
        switches.extend(have_thoughts.then_some(Switch {
            field: "messages.thinking",
            variable: THOUGHT,
        }));
        without_effect(&mut fields, &mut ignored)?;
        let of_route = OfRoute {
            tokens_max,
            log_probs: None,
            echo: EchoPrompt::Omitted,
            stop: stop(&mut fields)?,
            thoughts: params::thoughts(&mut fields)?,
            delivery: params::delivery(&mut fields)?,
            ignored: Vec::new(),
        };
        let mut params = CompletionParams::take(&mut fields, of_route)?;
        fields.end()?;
        check(&params)?;
        params.ignored = ignored.into_names();
        Ok(Self {
            conversation: Conversation {
                messages,
                tools: tooling.tools.clone(),
                add_generation_prompt: true,
                now: None,
                variables,
            },
            tooling,
            prediction: None,
            switches,
            params,
        })
    }
}

/// Checks what this API has narrower bounds on than chat has.
fn check(params: &CompletionParams) -> Result<()> {
    if params.model.is_none() {
        return Err(ApiError::Missing { field: "model" });
    }
    if params.sampling.temperature > 1.0 {
        return Err(ApiError::Field {
            field: "temperature".to_owned(),
            expected: "0 to 1",
            found: format!("`{}`", params.sampling.temperature),
        });
    }
    check_one_answer(params)
}

/// Checks that a request asks for one answer without the parts that only chat's documents have.
pub(super) fn check_one_answer(params: &CompletionParams) -> Result<()> {
    let unsupported = |field: &str, found: &str, limit| ApiError::Unsupported {
        field: field.to_owned(),
        found: found.to_owned(),
        limit,
    };
    if params.choices > 1 {
        let found = format!("`{}`", params.choices);
        return Err(unsupported("n", &found, "gives one answer on this route"));
    }
    if params.token_ids == TokenIds::Included && params.delivery != super::Delivery::Whole {
        let limit = "has token ids in whole answers on this route, and in chat's chunks";
        return Err(unsupported(
            "return_token_ids",
            "given beside `stream`",
            limit,
        ));
    }
    Ok(())
}

fn stop(fields: &mut Fields) -> Result<Vec<String>> {
    let list = fields.list("stop_sequences")?.unwrap_or_default();
    let is_blank = |value: &&Value| value.as_str().is_some_and(|text| text.trim().is_empty());
    if let Some(blank) = list.iter().find(is_blank) {
        return Err(fields.wrong("stop_sequences", "texts with a letter in them", blank));
    }
    stop_texts(fields, "stop_sequences", list)
}

/// Takes `output_config`: the form of the answer, and the effort, which becomes a variable of the template.
fn format(fields: &mut Fields) -> Result<AnswerFormat> {
    let Some(mut config) = fields.object("output_config")? else {
        return Ok(AnswerFormat::Text);
    };
    if let Some(effort) = config.text("effort")? {
        fields.add("reasoning_effort", effort.into());
    }
    let mut answer = AnswerFormat::Text;
    if let Some(mut format) = config.object("format")? {
        match format.take("type") {
            Some(kind) if kind == "json_schema" => {}
            other => return Err(format.wrong("type", "json_schema", &other.unwrap_or_default())),
        }
        let schema = format.map("schema")?;
        let schema = schema.ok_or_else(|| format.absent("schema", "a JSON schema"))?;
        format.end()?;
        answer = AnswerFormat::JsonSchema(schema.into());
    }
    config.end()?;
    Ok(answer)
}

fn tooling(fields: &mut Fields, format: AnswerFormat, ignored: &mut Ignored) -> Result<Tooling> {
    let list = fields.list("tools")?.unwrap_or_default();
    let tools = list.into_iter().enumerate();
    let tools: Result<Vec<Value>> = tools
        .map(|(place, value)| tool(Fields::of(value, &format!("tools[{place}]"))?, ignored))
        .collect();
    let tools = tools?;
    let (choice, calls) = choice(fields, !tools.is_empty())?;
    let tooling = Tooling {
        tools,
        choice,
        calls,
        format,
    };
    tooling.checked("output_config.format")
}

/// Returns a tool in chat's form.
fn tool(mut tool: Fields, ignored: &mut Ignored) -> Result<Value> {
    tool.only("type", |kind| kind == "custom", NO_SERVER_TOOLS)?;
    let name = tool.needed_text("name")?;
    let fits = (1..=TOOL_NAME_BYTES_MAX).contains(&name.len());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !fits || !name.bytes().all(is_plain) {
        let expected = "1 to 128 letters, digits, `_` and `-`";
        return Err(tool.wrong("name", expected, &name.into()));
    }
    let mut function = Map::new();
    function.insert("name".to_owned(), name.into());
    if let Some(description) = tool.text("description")? {
        function.insert("description".to_owned(), description.into());
    }
    let schema = tool.map("input_schema")?;
    let schema = schema.ok_or_else(|| tool.absent("input_schema", "a JSON schema of an object"))?;
    if schema.get("type").is_none_or(|kind| kind != "object") {
        let found = schema.get("type").cloned().unwrap_or_default();
        return Err(tool.wrong("input_schema.type", "object", &found));
    }
    function.insert("parameters".to_owned(), schema.into());
    // Arguments always follow their schema here.
    tool.flag("strict")?;
    tool.only(
        "defer_loading",
        foreign::is_false,
        "shows the model every tool",
    )?;
    for name in ["cache_control", "eager_input_streaming", "input_examples"] {
        ignored.take(&mut tool, name);
    }
    tool.end()?;
    Ok(json!({"type": "function", "function": function}))
}

fn choice(fields: &mut Fields, has_tools: bool) -> Result<(ToolChoice, Calls)> {
    let automatic = match has_tools {
        true => ToolChoice::Auto,
        false => ToolChoice::None,
    };
    let Some(mut given) = fields.object("tool_choice")? else {
        return Ok((automatic, Calls::Many));
    };
    let kind = given.needed_text("type")?;
    let choice = match kind.as_str() {
        "auto" => automatic,
        "any" => ToolChoice::Required,
        "tool" => ToolChoice::Named(given.needed_text("name")?),
        "none" => ToolChoice::None,
        _ => return Err(given.wrong("type", "auto, any, tool or none", &kind.into())),
    };
    let calls = match given.flag("disable_parallel_tool_use")? {
        Some(true) => Calls::One,
        Some(false) | None => Calls::Many,
    };
    given.end()?;
    if choice != ToolChoice::None && !has_tools {
        return Err(ApiError::Missing { field: "tools" });
    }
    Ok((choice, calls))
}

/// Takes the fields that change nothing here, and those that may only ask for what happens anyway.
fn without_effect(fields: &mut Fields, ignored: &mut Ignored) -> Result<()> {
    for name in [
        "cache_control",
        "diagnostics",
        "inference_geo",
        "user_profile_id",
    ] {
        ignored.take(fields, name);
    }
    let is_standard = |tier: &Value| tier == "auto" || tier == "standard_only";
    if fields.take_if("service_tier", is_standard) {
        ignored.add("service_tier");
    }
    fields.only("speed", |speed| speed == "standard", "has one speed")?;
    fields.only("mcp_servers", foreign::is_nothing, NO_SERVER_TOOLS)?;
    fields.only("container", Value::is_null, NO_SERVER_TOOLS)?;
    fields.only(
        "context_management",
        edits_thinking_only,
        "reads all of the messages that it gets",
    )
}

/// Returns whether a `context_management` edits nothing but thinking, which templates leave out of earlier turns anyway.
fn edits_thinking_only(value: &Value) -> bool {
    let edits = value.get("edits").and_then(Value::as_array);
    edits.is_none_or(|edits| {
        let kinds = edits.iter().map(|edit| edit["type"].as_str());
        kinds.flatten().count() == edits.len()
            && edits.iter().all(|edit| {
                let kind = edit["type"].as_str().unwrap_or_default();
                kind.starts_with("clear_thinking")
            })
    })
}

const NO_SERVER_TOOLS: &str = "runs no tools of its own: the client runs those that it describes";

/// Maximum length of a tool's name: Anthropic's.
const TOOL_NAME_BYTES_MAX: usize = 128;

#[cfg(test)]
#[path = "messages_tests.rs"]
mod tests;
