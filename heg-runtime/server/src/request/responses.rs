//! Requests of OpenAI's Responses API. Together with the conversation that they continue they become the request that
//! `/v1/chat/completions` makes; what chat's own fields say (`seed`, `priority`, `flow_id` …) may be said here too.

use serde_json::{Map, Value, json};

use super::ignored::Ignored;
use super::items::{History, qualified};
use super::messages::check_one_answer;
use super::params::{self, OfRoute};
use super::{
    ChatRequest, CompletionParams, EchoPrompt, PromptBounds, Switch, WITHOUT_EFFECT, fields_but,
    foreign,
};
use crate::bounded_json::PromptField;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, describe};
use crate::message::THOUGHT;
use crate::tools::{AnswerFormat, Tooling};
use heg_runtime::RuntimeError;
use heg_text::{Calls, Conversation, Message, ToolChoice};

/// A request to `/v1/responses`.
#[derive(Debug)]
pub struct ResponsesRequest {
    /// The parameters common to all routes.
    pub params: CompletionParams,
    /// The response whose conversation goes on.
    pub previous: Option<String>,
    /// Whether the conversation is kept for a later request.
    pub storing: Storing,
    /// The fields that the response repeats.
    pub asked: Map<String, Value>,
    input: Value,
    instructions: Option<String>,
    tooling: Tooling,
    switches: Vec<Switch>,
    variables: Map<String, Value>,
    ignored: Ignored,
}

/// Whether a conversation is kept for a later request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storing {
    /// It is, within limits.
    Kept,
    /// It is forgotten with its answer.
    Forgotten,
}

impl ResponsesRequest {
    /// Reads a body; `headers` are as for [`ChatRequest::parse`].
    ///
    /// # Errors
    /// The first thing that is wrong, with the field's name. Items are read later, behind those of earlier turns.
    pub fn parse<'a>(
        body: &[u8],
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        bounds: &PromptBounds,
    ) -> Result<Self> {
        let has_effect = |name: &&str| matches!(*name, "metadata" | "store");
        let passed_over = WITHOUT_EFFECT.iter().copied();
        let passed_over: Vec<&str> = passed_over.filter(|name| !has_effect(name)).collect();
        let bounds = (bounds, PromptField::Unknown);
        let (mut fields, _) = fields_but(body, headers, bounds, &passed_over)?;
        let mut asked = asked(&fields);
        asked.insert("metadata".to_owned(), metadata(&mut fields)?.into());
        let storing = match fields.flag("store")? {
            Some(false) => Storing::Forgotten,
            Some(true) | None => Storing::Kept,
        };
        let mut ignored = Ignored::from(foreign::translate(&mut fields)?);
        let input = fields.take("input");
        let input = input.ok_or(ApiError::Missing { field: "input" })?;
        let instructions = fields.text("instructions")?;
        let previous = fields.text("previous_response_id")?;
        let format = format(&mut fields, &mut ignored)?;
        let tooling = tooling(&mut fields, format, &mut ignored)?;
        let mut variables = fields.map("chat_template_kwargs")?.unwrap_or_default();
        let switches = foreign::template_switches(&mut fields, &mut variables)?;
        without_effect(&mut fields, &mut ignored)?;
        let of_route = OfRoute {
            tokens_max: fields.count("max_output_tokens")?,
            log_probs: None,
            echo: EchoPrompt::Omitted,
            stop: params::stop(&mut fields)?,
            thoughts: params::thoughts(&mut fields)?,
            delivery: params::delivery(&mut fields)?,
            ignored: Vec::new(),
        };
        let params = CompletionParams::take(&mut fields, of_route)?;
        fields.end()?;
        check_one_answer(&params)?;
        asked.insert("temperature".to_owned(), params.sampling.temperature.into());
        asked.insert("top_p".to_owned(), params.sampling.top_p.into());
        Ok(Self {
            params,
            previous,
            storing,
            asked,
            input,
            instructions,
            tooling,
            switches,
            variables,
            ignored,
        })
    }

    /// Returns chat's request for the answer, with the conversation up to it. `history` is the conversation that this
    /// request continues.
    ///
    /// # Errors
    /// The first item that is wrong, with its place.
    pub(crate) fn into_chat(mut self, mut history: History) -> Result<(ChatRequest, History)> {
        let earlier = history.messages.len();
        history.read(self.input, &mut self.ignored)?;
        let mut given = history.messages.iter().skip(earlier);
        let have_thoughts = given.any(|message| message.get(THOUGHT).is_some());
        self.switches.extend(have_thoughts.then_some(Switch {
            field: "input.reasoning",
            variable: THOUGHT,
        }));
        let instructions = self.instructions.filter(|text| !text.is_empty());
        let instructions = instructions.map(|text| Message::new("system", text));
        let turns = history.messages.iter().cloned().map(Message::try_from);
        let messages = instructions.map(Ok).into_iter().chain(turns);
        let messages: Result<Vec<Message>, _> = messages.collect();
        let request = ChatRequest {
            conversation: Conversation {
                messages: messages.map_err(RuntimeError::from)?,
                tools: self.tooling.tools.clone(),
                add_generation_prompt: true,
                now: None,
                variables: self.variables,
            },
            tooling: self.tooling,
            prediction: None,
            switches: self.switches,
            params: CompletionParams {
                ignored: self.ignored.into_names(),
                ..self.params
            },
        };
        Ok((request, history))
    }

    /// Returns chat's request of a conversation that begins with this one.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), for items.
    pub fn into_first(self) -> Result<ChatRequest> {
        self.into_chat(History::default())
            .map(|(request, _)| request)
    }
}

/// Returns what the response repeats of a request, before its fields are taken, with their defaults.
fn asked(fields: &Fields) -> Map<String, Value> {
    let defaults = [
        ("background", json!(false)),
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("max_tool_calls", Value::Null),
        ("parallel_tool_calls", json!(true)),
        ("previous_response_id", Value::Null),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("service_tier", json!("default")),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
        ("truncation", json!("disabled")),
    ];
    let given = |(name, default): (&str, Value)| {
        let value = fields.get(name).cloned();
        (name.to_owned(), value.unwrap_or(default))
    };
    defaults.map(given).into_iter().collect()
}

/// Takes `metadata`, which the response repeats.
fn metadata(fields: &mut Fields) -> Result<Map<String, Value>> {
    let metadata = fields.map("metadata")?.unwrap_or_default();
    let fits = |(name, value): (&String, &Value)| {
        let text = value.as_str().map(str::len);
        name.len() <= 64 && text.is_some_and(|bytes| bytes <= 512)
    };
    if metadata.len() <= 16 && metadata.iter().all(fits) {
        return Ok(metadata);
    }
    let expected = "at most 16 texts of 512 bytes, with names of 64 bytes";
    Err(fields.wrong("metadata", expected, &metadata.into()))
}

/// Takes `text`: the form of the answer.
fn format(fields: &mut Fields, ignored: &mut Ignored) -> Result<AnswerFormat> {
    let Some(mut text) = fields.object("text")? else {
        return Ok(AnswerFormat::Text);
    };
    if text.take("verbosity").is_some() {
        ignored.add("text.verbosity");
    }
    let mut answer = AnswerFormat::Text;
    if let Some(mut format) = text.object("format")? {
        let kind = format.needed_text("type")?;
        answer = match kind.as_str() {
            "text" => AnswerFormat::Text,
            "json_object" => AnswerFormat::JsonObject,
            "json_schema" => {
                format.needed_text("name")?;
                format.text("description")?;
                // Answers always follow their schema here.
                format.flag("strict")?;
                let schema = format.map("schema")?;
                let schema = schema.ok_or_else(|| format.absent("schema", "a JSON schema"))?;
                AnswerFormat::JsonSchema(schema.into())
            }
            _ => {
                let expected = "text, json_object or json_schema";
                return Err(format.wrong("type", expected, &kind.into()));
            }
        };
        format.end()?;
    }
    text.end()?;
    Ok(answer)
}

fn tooling(fields: &mut Fields, format: AnswerFormat, ignored: &mut Ignored) -> Result<Tooling> {
    let list = fields.list("tools")?.unwrap_or_default();
    let tools = offered_tools(list, ignored)?;
    let choice = choice(fields, !tools.is_empty())?;
    let calls = match fields.flag("parallel_tool_calls")? {
        Some(false) => Calls::One,
        Some(true) | None => Calls::Many,
    };
    let tooling = Tooling {
        tools,
        choice,
        calls,
        format,
    };
    tooling.checked("text.format")
}

/// Returns the tools in chat's form, those of namespaces among them. A tool that runs at OpenAI is not offered to the
/// model if there are others, as agents add them unasked.
fn offered_tools(list: Vec<Value>, ignored: &mut Ignored) -> Result<Vec<Value>> {
    let (mut offered, mut hosted) = (Vec::new(), None);
    for (place, value) in list.into_iter().enumerate() {
        let path = format!("tools[{place}]");
        let mut given = Fields::of(value, &path)?;
        let kind = given.needed_text("type")?;
        match kind.as_str() {
            "function" => offered.push(tool(given, None, ignored)?),
            "namespace" => namespace(given, &path, &mut offered, ignored)?,
            _ => {
                let error = given.unsupported("type", &kind.as_str().into(), FUNCTIONS_ONLY);
                if !ADDED_UNASKED.contains(&kind.as_str()) {
                    return Err(error);
                }
                hosted.get_or_insert(error);
            }
        }
    }
    match hosted {
        Some(error) if offered.is_empty() => return Err(error),
        Some(_) => ignored.add("tools.web_search"),
        None => {}
    }
    Ok(offered)
}

/// Adds the functions of a namespace, each with its name before its own.
fn namespace(
    mut namespace: Fields,
    path: &str,
    offered: &mut Vec<Value>,
    ignored: &mut Ignored,
) -> Result<()> {
    let name = namespace.needed_text("name")?;
    // A namespace has no place in chat templates, whose tools describe themselves.
    namespace.text("description")?;
    let list = namespace.list("tools")?;
    let list = list.ok_or_else(|| namespace.absent("tools", "a list of functions"))?;
    namespace.end()?;
    for (place, value) in list.into_iter().enumerate() {
        let mut given = Fields::of(value, &format!("{path}.tools[{place}]"))?;
        given.only("type", |kind| kind == "function", FUNCTIONS_ONLY)?;
        offered.push(tool(given, Some(&name), ignored)?);
    }
    Ok(())
}

/// Returns a function, whose type was taken, in chat's form.
fn tool(mut tool: Fields, namespace: Option<&str>, ignored: &mut Ignored) -> Result<Value> {
    let mut function = Map::new();
    let name = qualified(namespace, &tool.needed_text("name")?);
    function.insert("name".to_owned(), name.into());
    if let Some(description) = tool.text("description")? {
        function.insert("description".to_owned(), description.into());
    }
    if let Some(parameters) = tool.map("parameters")? {
        function.insert("parameters".to_owned(), parameters.into());
    }
    // Arguments always follow their schema here.
    tool.flag("strict")?;
    tool.only(
        "defer_loading",
        foreign::is_false,
        "shows the model every tool",
    )?;
    tool.only("allowed_callers", is_direct, FUNCTIONS_ONLY)?;
    ignored.take(&mut tool, "output_schema");
    tool.end()?;
    Ok(json!({"type": "function", "function": function}))
}

fn is_direct(value: &Value) -> bool {
    let callers = value.as_array();
    callers.is_some_and(|callers| callers.iter().all(|caller| caller == "direct"))
}

fn choice(fields: &mut Fields, has_tools: bool) -> Result<ToolChoice> {
    let automatic = match has_tools {
        true => ToolChoice::Auto,
        false => ToolChoice::None,
    };
    let choice = match fields.take("tool_choice") {
        None => automatic,
        Some(choice) if choice == "none" => ToolChoice::None,
        Some(choice) if choice == "auto" => automatic,
        Some(choice) if choice == "required" => ToolChoice::Required,
        Some(choice) => match (choice["type"].as_str(), choice["name"].as_str()) {
            (Some("function"), Some(name)) => ToolChoice::Named(name.to_owned()),
            (Some(kind), _) if kind != "function" => {
                let found = describe(&kind.into());
                return Err(ApiError::Unsupported {
                    field: "tool_choice.type".to_owned(),
                    found,
                    limit: FUNCTIONS_ONLY,
                });
            }
            _ => {
                let expected = "none, auto, required, or {\"type\": \"function\", \"name\": …}";
                return Err(fields.wrong("tool_choice", expected, &choice));
            }
        },
    };
    if choice != ToolChoice::None && !has_tools {
        return Err(ApiError::Missing { field: "tools" });
    }
    Ok(choice)
}

/// Takes the fields that change nothing here, and those that may only ask for what happens anyway.
fn without_effect(fields: &mut Fields, ignored: &mut Ignored) -> Result<()> {
    ignored.take(fields, "client_metadata");
    ignored.take(fields, "max_tool_calls");
    ignored.take(fields, "prompt_cache_options");
    fields.only("background", foreign::is_false, "answers while it is asked")?;
    fields.only("conversation", Value::is_null, BY_PREVIOUS)?;
    fields.only("prompt", Value::is_null, "keeps no prompts")?;
    fields.only("top_logprobs", |top| top == 0, LOG_PROBS)?;
    fields.only(
        "context_management",
        foreign::is_nothing,
        "refuses a prompt that does not fit",
    )?;
    match fields.text("truncation")?.as_deref() {
        None | Some("disabled") => {}
        Some("auto") => ignored.add("truncation"),
        Some(other) => {
            return Err(fields.wrong("truncation", "auto or disabled", &other.into()));
        }
    }
    for part in fields.list("include")?.unwrap_or_default() {
        match part.as_str() {
            Some("message.output_text.logprobs") => {
                return Err(fields.unsupported("include", &part, LOG_PROBS));
            }
            Some(_) => ignored.add("include"),
            None => return Err(fields.wrong("include", "a list of names", &part)),
        }
    }
    Ok(())
}

const FUNCTIONS_ONLY: &str =
    "runs no tools of its own: the client runs the functions that it describes";

/// Types of tools that agents offer whether or not their user asked for them.
const ADDED_UNASKED: [&str; 2] = ["web_search", "web_search_preview"];

const BY_PREVIOUS: &str = "continues conversations by `previous_response_id`";

const LOG_PROBS: &str = "has log probabilities in /v1/chat/completions";

#[cfg(test)]
#[path = "responses_tests.rs"]
mod tests;
