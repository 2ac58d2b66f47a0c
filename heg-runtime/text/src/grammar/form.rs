//! Descriptions of forms that one process can send to another, which compiles them.

use llguidance::api::TopLevelGrammar;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::thoughts::{ThoughtOpening, ThoughtSyntax};
use super::super::tools::{Calls, Tool, ToolChoice, ToolSyntax};
use super::markers::Markers;
use super::schema::{self, UnknownKeywords};
use super::{thoughts, tools};

/// The form that an answer must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum AnswerForm {
    /// Any JSON object.
    JsonObject,
    /// An instance of a JSON schema, properties in the order of the schema.
    JsonSchema(Value),
    /// A text that, as a whole, matches a regular expression.
    Regex(String),
    /// Calls of tools, with arguments that follow their schemas, or text if `choice` allows it.
    ToolCalls {
        /// The model's syntax of calls.
        syntax: ToolSyntax,
        /// The offered tools.
        tools: Vec<Tool>,
        /// The tools that may, or must, be called.
        choice: ToolChoice,
        /// The number of calls that the answer may have.
        calls: Calls,
    },
    /// A form behind what the model thinks first.
    BehindThought {
        /// The model's markers of thoughts.
        syntax: ThoughtSyntax,
        /// The place where the thought begins.
        opening: ThoughtOpening,
        /// The form of the answer behind the thought.
        form: Box<AnswerForm>,
    },
}

impl AnswerForm {
    /// Returns the form of an answer that may call `tools`, which are as in OpenAI's interface. `choice` is `auto` (as
    /// without one), `none`, `required`, or the name of the tool to call.
    ///
    /// # Errors
    /// `Form` if a tool is something else.
    pub fn of_tools(
        syntax: ToolSyntax,
        tools: &[Value],
        choice: Option<&str>,
    ) -> super::Result<Self> {
        let tools: super::Result<Vec<Tool>> = tools.iter().map(Tool::from_json).collect();
        Ok(Self::ToolCalls {
            syntax,
            tools: tools?,
            choice: match choice {
                None | Some("auto") => ToolChoice::Auto,
                Some("none") => ToolChoice::None,
                Some("required") => ToolChoice::Required,
                Some(name) => ToolChoice::Named(name.to_owned()),
            },
            calls: Calls::Many,
        })
    }

    /// Returns the syntax of the calls that the answer may have; `None` if it may have none.
    pub fn call_syntax(&self) -> Option<ToolSyntax> {
        match self {
            Self::ToolCalls { syntax, choice, .. } => {
                (*choice != ToolChoice::None).then_some(*syntax)
            }
            Self::BehindThought { form, .. } => form.call_syntax(),
            Self::JsonObject | Self::JsonSchema(_) | Self::Regex(_) => None,
        }
    }

    /// Returns whether the form allows any text, so that there is nothing to compile.
    pub fn is_free(&self) -> bool {
        match self {
            Self::ToolCalls { tools, choice, .. } => match choice {
                ToolChoice::None => true,
                ToolChoice::Auto => tools.is_empty(),
                ToolChoice::Required | ToolChoice::Named(_) => false,
            },
            Self::BehindThought { form, .. } => form.is_free(),
            Self::JsonObject | Self::JsonSchema(_) | Self::Regex(_) => false,
        }
    }

    /// Returns the name of the form in errors.
    pub fn name(&self) -> &'static str {
        match self {
            Self::JsonObject | Self::JsonSchema(_) => SCHEMA,
            Self::Regex(_) => REGEX,
            Self::ToolCalls { .. } => TOOLS,
            Self::BehindThought { form, .. } => form.name(),
        }
    }

    /// Checks everything that takes time proportional to the form's size: its size, and that of its expansion by the
    /// compiler.
    ///
    /// # Errors
    /// `Form`, with the limit and the found value.
    pub fn check(&self) -> super::Result<()> {
        let checked = match self {
            Self::JsonObject => Ok(()),
            Self::JsonSchema(schema) => schema::check(schema),
            Self::Regex(pattern) => schema::check_bytes(pattern.len()),
            Self::ToolCalls { tools, .. } => tools
                .iter()
                .filter_map(|tool| tool.parameters.as_ref())
                .try_for_each(schema::check),
            Self::BehindThought { form, .. } => return form.check(),
        };
        checked.map_err(|error| super::unusable(self.name(), &error))
    }

    /// Returns the grammar in the library's terms.
    pub(super) fn source(self, markers: &Markers) -> anyhow::Result<TopLevelGrammar> {
        match self {
            Self::JsonObject => schema_source(&json!({"type": "object"})),
            Self::JsonSchema(schema) => schema_source(&schema),
            Self::Regex(pattern) => {
                schema::check_bytes(pattern.len())?;
                Ok(TopLevelGrammar::from_regex(&pattern))
            }
            Self::ToolCalls {
                syntax,
                tools,
                choice,
                calls,
            } => tools::grammar(syntax, markers, &tools, &choice, calls),
            Self::BehindThought {
                syntax,
                opening,
                form,
            } => Ok(thoughts::before(
                syntax,
                opening,
                markers,
                form.source(markers)?,
            )),
        }
    }
}

fn schema_source(schema: &Value) -> anyhow::Result<TopLevelGrammar> {
    Ok(TopLevelGrammar::from_json_schema(schema::prepared(
        schema,
        UnknownKeywords::Refused,
    )?))
}

/// Name of a form that is a schema.
const SCHEMA: &str = "JSON schema";

/// Name of a form that is a pattern.
const REGEX: &str = "regular expression";

/// Name of a form of calls.
const TOOLS: &str = "tools";
