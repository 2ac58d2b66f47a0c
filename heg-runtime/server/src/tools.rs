//! Tools and the answer format: from a request's `tools`, `tool_choice` and `response_format` to the input of the chat
//! template and the constraint on the sampler. [`heg_text`] has the grammars and the parser of calls.

use serde_json::Value;

use super::error::{ApiError, Result};
use super::fields::Fields;
use heg_runtime::RuntimeError;
use heg_text::{
    AnswerForm, Calls, ChatTemplate, Restriction, TextError, Tokenizer, Tool, ToolChoice,
    ToolSyntax,
};

/// The tools and the answer format of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Tooling {
    /// The tools, as the template shows them; empty if none may be called.
    pub tools: Vec<Value>,
    /// The calls that the answer may, or must, make.
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

/// The form of an answer, as a request asks for it.
pub(super) struct AskedForm {
    /// The form, unless any text will do.
    pub(super) form: Option<AnswerForm>,
    pub(super) syntax: Option<ToolSyntax>,
    /// Memory of the form until it is compiled, in bytes.
    pub(super) kept_bytes: usize,
    /// Whether the form was compiled before.
    pub(super) is_known: bool,
}

impl Tooling {
    /// Takes the fields about tools and format.
    pub(super) fn take(fields: &mut Fields) -> Result<Self> {
        let tools = fields.list("tools")?.unwrap_or_default();
        let choice = choice(fields, !tools.is_empty())?;
        let calls = match fields.flag("parallel_tool_calls")? {
            Some(false) => Calls::One,
            Some(true) | None => Calls::Many,
        };
        let tooling = Self {
            tools,
            choice,
            calls,
            format: format(fields)?,
        };
        tooling.checked("response_format")
    }

    /// Returns the tooling if it asks for one form only, without tools that may not be called. `format_field` is the
    /// field of the format.
    pub(super) fn checked(mut self, format_field: &str) -> Result<Self> {
        if self.choice == ToolChoice::None {
            self.tools.clear();
        } else if self.format != AnswerFormat::Text {
            return Err(ApiError::Unsupported {
                field: format_field.to_owned(),
                found: "given beside `tools`".to_owned(),
                limit: "holds an answer to one form (set `tool_choice` to `none`)",
            });
        }
        Ok(self)
    }

    /// Returns whether the answer needs a constraint.
    pub(super) fn is_held(&self) -> bool {
        self.choice != ToolChoice::None || self.format != AnswerFormat::Text
    }

    /// Returns the memory of the request's tooling until it is compiled, in bytes.
    fn kept_bytes(&self) -> usize {
        let schema = match &self.format {
            AnswerFormat::JsonSchema(schema) => value_bytes(schema),
            AnswerFormat::Text | AnswerFormat::JsonObject => 0,
        };
        self.tools.iter().map(value_bytes).sum::<usize>() + schema
    }

    /// Returns the form of the answer, checked as far as that takes no time.
    ///
    /// # Errors
    /// The template has no syntax for calls, a tool is invalid, or the form is too large.
    pub(super) fn asked(
        &self,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
    ) -> Result<AskedForm> {
        let asked = || {
            let (form, syntax) = match (&self.choice, &self.format) {
                (ToolChoice::None, AnswerFormat::Text) => (None, None),
                (ToolChoice::None, AnswerFormat::JsonObject) => {
                    (Some(AnswerForm::JsonObject), None)
                }
                (ToolChoice::None, AnswerFormat::JsonSchema(schema)) => {
                    (Some(AnswerForm::JsonSchema(schema.clone())), None)
                }
                (choice, _) => {
                    let syntax = ToolSyntax::of(template, tokenizer)?;
                    let tools: Result<Vec<Tool>, TextError> =
                        self.tools.iter().map(Tool::from_json).collect();
                    let form = AnswerForm::ToolCalls {
                        syntax,
                        tools: tools?,
                        choice: choice.clone(),
                        calls: self.calls,
                    };
                    (Some(form).filter(|form| !form.is_free()), Some(syntax))
                }
            };
            form.as_ref().map_or(Ok(()), AnswerForm::check)?;
            Ok(AskedForm {
                form,
                syntax,
                kept_bytes: self.kept_bytes(),
                is_known: false,
            })
        };
        asked().map_err(|error: TextError| RuntimeError::from(error).into())
    }
}

/// Returns the memory that a value takes, in bytes.
pub(super) fn value_bytes(value: &Value) -> usize {
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
