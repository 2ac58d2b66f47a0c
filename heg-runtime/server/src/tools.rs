//! Tools and the answer format: from a request's `tools`, `tool_choice` and `response_format` to the input of the chat
//! template and the constraint on the sampler. [`heg_text`] has the grammars and the parser of calls.

use std::sync::OnceLock;

use serde_json::Value;

use super::error::{ApiError, Result};
use super::fields::Fields;
use heg_runtime::RuntimeError;
use heg_text::{
    Calls, ChatTemplate, Grammars, Restriction, TextError, Tokenizer, Tool, ToolChoice, ToolSyntax,
};

/// The tools and the answer format of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Tooling {
    /// The tools, as the template shows them; empty if none may be called.
    pub tools: Vec<Value>,
    /// The tools that may, or must, be called.
    pub choice: ToolChoice,
    /// The number of calls that an answer may have.
    pub calls: Calls,
    /// The format of an answer that is not a call.
    pub format: AnswerFormat,
}

/// The format of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerFormat {
    /// Any text.
    Text,
    /// Any JSON object.
    JsonObject,
    /// An instance of a JSON schema.
    JsonSchema(Value),
}

/// The constraint that keeps an answer to its format, and the syntax of calls in it.
#[derive(Default)]
pub(super) struct AnswerConstraint {
    pub(super) restriction: Option<Box<dyn Restriction>>,
    pub(super) syntax: Option<ToolSyntax>,
    /// Memory that the constraint takes, in bytes.
    pub(super) kept_bytes: usize,
}

/// The grammars of a vocabulary, made at first use.
#[derive(Default)]
pub(super) struct LazyGrammars(OnceLock<Result<Grammars, TextError>>);

impl Tooling {
    /// Takes the fields about tools and format.
    pub(super) fn take(fields: &mut Fields) -> Result<Self> {
        let mut tools = fields.list("tools")?.unwrap_or_default();
        let choice = choice(fields, !tools.is_empty())?;
        if choice == ToolChoice::None {
            tools.clear();
        }
        let calls = match fields.flag("parallel_tool_calls")? {
            Some(false) => Calls::One,
            Some(true) | None => Calls::Many,
        };
        let format = format(fields)?;
        if format != AnswerFormat::Text && choice != ToolChoice::None {
            return Err(ApiError::Unsupported {
                field: "response_format".to_owned(),
                found: "given beside `tools`".to_owned(),
                limit: "holds an answer to one form (set `tool_choice` to `none`)",
            });
        }
        Ok(Self {
            tools,
            choice,
            calls,
            format,
        })
    }

    /// Whether the answer needs a constraint.
    pub(super) fn is_held(&self) -> bool {
        self.choice != ToolChoice::None || self.format != AnswerFormat::Text
    }

    /// Memory that it takes until it is compiled, in bytes.
    pub(super) fn kept_bytes(&self) -> usize {
        let schema = match &self.format {
            AnswerFormat::JsonSchema(schema) => value_bytes(schema),
            AnswerFormat::Text | AnswerFormat::JsonObject => 0,
        };
        self.tools.iter().map(value_bytes).sum::<usize>() + schema
    }

    /// Compiles the constraint on the answer.
    pub(super) fn hold(
        &self,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        eos_ids: &[u32],
        grammars: &LazyGrammars,
    ) -> Result<AnswerConstraint> {
        if !self.is_held() {
            return Ok(AnswerConstraint::default());
        }
        let made = grammars.0.get_or_init(|| Grammars::new(tokenizer, eos_ids));
        let grammars = made.as_ref().map_err(|error| refused(error.clone()))?;
        let held = || {
            let (grammar, syntax) = match (&self.choice, &self.format) {
                (ToolChoice::None, AnswerFormat::Text) => (None, None),
                (ToolChoice::None, AnswerFormat::JsonObject) => {
                    (Some(grammars.json_object()?), None)
                }
                (ToolChoice::None, AnswerFormat::JsonSchema(schema)) => {
                    (Some(grammars.json_schema(schema)?), None)
                }
                (choice, _) => {
                    let syntax = ToolSyntax::of(template, tokenizer)?;
                    let tools: Result<Vec<Tool>, TextError> =
                        self.tools.iter().map(Tool::from_json).collect();
                    let grammar = grammars.tool_calls(syntax, &tools?, choice, self.calls)?;
                    (grammar, Some(syntax))
                }
            };
            Ok(AnswerConstraint {
                kept_bytes: match &grammar {
                    Some(_) => GRAMMAR_BYTES + self.kept_bytes() * GRAMMAR_BYTES_PER_BYTE,
                    None => 0,
                },
                restriction: grammar.map(|grammar| Box::new(grammar) as _),
                syntax,
            })
        };
        held().map_err(refused)
    }
}

/// Memory that a value takes, in bytes.
fn value_bytes(value: &Value) -> usize {
    VALUE_BYTES
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(list) => list.iter().map(value_bytes).sum(),
            Value::Object(map) => map
                .iter()
                .map(|(name, value)| name.len() + VALUE_BYTES + value_bytes(value))
                .sum(),
        }
}

fn refused(error: TextError) -> ApiError {
    RuntimeError::from(error).into()
}

fn choice(fields: &mut Fields, has_tools: bool) -> Result<ToolChoice> {
    let expected = "none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": …}}";
    let given = fields.take("tool_choice");
    let Some(value) = given else {
        return Ok(if has_tools {
            ToolChoice::Auto
        } else {
            ToolChoice::None
        });
    };
    let choice = match (value.as_str(), value["function"]["name"].as_str()) {
        (Some("none"), _) => ToolChoice::None,
        (Some("auto"), _) if !has_tools => ToolChoice::None,
        (Some("auto"), _) => ToolChoice::Auto,
        (Some("required"), _) => ToolChoice::Required,
        (None, Some(name)) if value["type"] == "function" => ToolChoice::Named(name.to_owned()),
        _ => return Err(fields.wrong("tool_choice", expected, &value)),
    };
    if choice != ToolChoice::None && !has_tools {
        return Err(ApiError::Missing { field: "tools" });
    }
    Ok(choice)
}

fn format(fields: &mut Fields) -> Result<AnswerFormat> {
    let Some(mut format) = fields.object("response_format")? else {
        return Ok(AnswerFormat::Text);
    };
    let kind = format.text("type")?.unwrap_or_default();
    let format = match kind.as_str() {
        "text" => AnswerFormat::Text,
        "json_object" => AnswerFormat::JsonObject,
        "json_schema" => {
            let schema = format.object("json_schema")?;
            let schema = schema.and_then(|mut named| named.take("schema"));
            AnswerFormat::JsonSchema(schema.ok_or(ApiError::Missing {
                field: "response_format.json_schema.schema",
            })?)
        }
        _ => {
            return Err(format.wrong("type", "text, json_object or json_schema", &kind.into()));
        }
    };
    Ok(format)
}

/// Memory of a JSON value besides its text or its name in an object, in bytes.
const VALUE_BYTES: usize = 80;

/// Charge for any compiled grammar, in bytes: its thread, its tables.
const GRAMMAR_BYTES: usize = 512 << 10;

/// Memory of a compiled grammar per byte of its description. Measured on tiny-agent's vocabulary: 18 MB for 2000 bounded
/// properties, 9 MB for 1500 alternative objects, 1 MB or less for others.
const GRAMMAR_BYTES_PER_BYTE: usize = 16;
