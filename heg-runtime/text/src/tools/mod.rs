//! Tools: those that a request offers, and the syntax in which a model calls one.
//!
//! The syntax depends on the model's training; only the chat template and the vocabulary reveal it
//! ([`ToolSyntax::of`]). `calls` finds the calls in an answer; `grammar` makes sure that all of them are valid.

mod calls;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::error::shortened;
use super::{ChatTemplate, Result, TextError, Tokenizer};

pub(super) use calls::clear_bytes;
pub use calls::{Said, ToolCall, ToolCallParser};

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// JSON schema of its arguments, an object. With `None` it takes no arguments.
    pub parameters: Option<Value>,
}

impl Tool {
    /// Reads a tool in the format of OpenAI's interface: `{"type": "function", "function": {"name": …,
    /// "parameters": …}}`.
    ///
    /// # Errors
    /// `Form`, if it is something else.
    pub fn from_json(tool: &Value) -> Result<Self> {
        let function = tool.get("function");
        let name = function.and_then(|function| function.get("name"));
        let Some(name) = name.and_then(Value::as_str) else {
            let found = shortened(tool.to_string());
            return Err(unusable(format!(
                "expected an object with `function.name`, found {found}"
            )));
        };
        let parameters = function.and_then(|function| function.get("parameters"));
        Ok(Self {
            name: name.to_owned(),
            parameters: parameters.filter(|schema| !schema.is_null()).cloned(),
        })
    }
}

/// The tools that may, or must, be called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolChoice {
    /// No tool: the answer is text.
    None,
    /// Text or calls, as the model chooses.
    Auto,
    /// A call of any tool.
    Required,
    /// A call of this tool.
    Named(String),
}

/// The number of calls that an answer may have, if its syntax allows several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Calls {
    /// At most one.
    One,
    /// Any number.
    Many,
}

/// A model's notation of calls: always a JSON object with a name and arguments, and something around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub enum ToolSyntax {
    /// The answer is the object and nothing else: Llama 3, and models after it.
    Bare(ArgumentsKey),
    /// `<tool_call>`, an object, `</tool_call>`, any number of times between text: Hermes, Qwen, SmolLM3, Granite 4.
    Tagged,
    /// A marker and a list of objects, at the end of the answer: Mistral (`[TOOL_CALLS]`), Granite 3 and Phi 4
    /// (`<|tool_call|>`).
    Listed(&'static str),
}

/// The key of the arguments in a bare call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentsKey {
    /// `arguments`, as in OpenAI's API.
    Arguments,
    /// `parameters`, as in Llama 3.
    Parameters,
}

impl ToolSyntax {
    /// Returns the syntax that a chat template teaches.
    ///
    /// It is recognised by words of each family's published templates.
    ///
    /// # Errors
    /// `Form` if the template takes no tools, or teaches an unknown syntax.
    pub fn of(template: &ChatTemplate, tokenizer: &Tokenizer) -> Result<Self> {
        let source = template.source();
        let says = |words: &str| source.contains(words);
        // Qwen 3 Coder writes XML, and Mistral since version 11 puts the name outside of the JSON.
        let known = says("tools") && !says("<function=") && !says("[ARGS]");
        // Phi's template only shows how the tools are listed; the call's marker is in the vocabulary.
        let phi = says("<|tool|>") && tokenizer.token_id("<|tool_call|>").is_some();
        Ok(if known && says(TAG) {
            Self::Tagged
        } else if known && says("[TOOL_CALLS]") {
            Self::Listed("[TOOL_CALLS]")
        } else if known && (says("<|tool_call|>") || phi) {
            Self::Listed("<|tool_call|>")
        } else if known && says(r#""arguments":"#) {
            Self::Bare(ArgumentsKey::Arguments)
        } else if known && says(r#""parameters":"#) {
            Self::Bare(ArgumentsKey::Parameters)
        } else {
            return Err(unusable(
                "the model's chat template teaches no known way to call them".to_owned(),
            ));
        })
    }

    /// Returns the tokens that are part of a call but special, so that decoding leaves them out: for
    /// [`TextStream::showing`](super::TextStream::showing).
    pub fn special_tokens(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let markers = [self.opening(), self.closing()];
        let ids = markers
            .iter()
            .flatten()
            .filter_map(|text| tokenizer.token_id(text));
        ids.filter(|&id| tokenizer.is_special(id)).collect()
    }

    /// Returns the text before a call.
    pub(super) fn opening(self) -> Option<&'static str> {
        match self {
            Self::Bare(_) => None,
            Self::Tagged => Some(TAG),
            Self::Listed(marker) => Some(marker),
        }
    }

    /// Returns the text after a call.
    pub(super) fn closing(self) -> Option<&'static str> {
        (self == Self::Tagged).then_some("</tool_call>")
    }

    /// Returns the name of the arguments in a call.
    pub(super) fn arguments_key(self) -> &'static str {
        match self {
            Self::Bare(ArgumentsKey::Parameters) => "parameters",
            _ => "arguments",
        }
    }
}

impl From<ToolSyntax> for &'static str {
    /// Names a syntax, for another process.
    fn from(syntax: ToolSyntax) -> Self {
        match syntax {
            ToolSyntax::Bare(ArgumentsKey::Arguments) => "arguments",
            ToolSyntax::Bare(ArgumentsKey::Parameters) => "parameters",
            ToolSyntax::Tagged => TAG,
            ToolSyntax::Listed(marker) => marker,
        }
    }
}

impl<'de> Deserialize<'de> for ToolSyntax {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl TryFrom<String> for ToolSyntax {
    type Error = TextError;

    fn try_from(name: String) -> Result<Self> {
        match name.as_str() {
            "arguments" => Ok(Self::Bare(ArgumentsKey::Arguments)),
            "parameters" => Ok(Self::Bare(ArgumentsKey::Parameters)),
            TAG => Ok(Self::Tagged),
            "[TOOL_CALLS]" => Ok(Self::Listed("[TOOL_CALLS]")),
            "<|tool_call|>" => Ok(Self::Listed("<|tool_call|>")),
            _ => Err(unusable(format!(
                "expected the name of a syntax of calls, found `{}`",
                shortened(name)
            ))),
        }
    }
}

/// Returns an error in the tools of a request.
fn unusable(message: String) -> TextError {
    TextError::Form {
        form: "tools",
        message,
    }
}

const TAG: &str = "<tool_call>";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tokenizer::tests::{fixture, tiny_agent};
    use super::*;

    fn syntax(template: &str) -> Option<ToolSyntax> {
        let template = ChatTemplate::new(template, BTreeMap::new()).unwrap();
        ToolSyntax::of(&template, &tiny_agent()).ok()
    }

    /// The words of the published templates, cut to those that tell them apart.
    #[test]
    fn templates_tell_the_syntax() {
        let tiny = std::fs::read_to_string(fixture!("chat_template.jinja")).unwrap();
        assert_eq!(
            syntax(&tiny),
            Some(ToolSyntax::Bare(ArgumentsKey::Arguments))
        );
        let llama = r#"{%- if tools is not none %}{{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}{% endif %}"#;
        assert_eq!(
            syntax(llama),
            Some(ToolSyntax::Bare(ArgumentsKey::Parameters))
        );
        let qwen = r#"{%- if tools %}{{- "return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>" }}{% endif %}"#;
        assert_eq!(syntax(qwen), Some(ToolSyntax::Tagged));
        let coder =
            r#"{%- if tools %}{{- "<tool_call>\n<function=example_function_name>" }}{% endif %}"#;
        assert_eq!(syntax(coder), None);
        let mistral = r#"{%- if not tools is defined %}{%- set tools = none %}{%- endif %}{{- "[TOOL_CALLS] [" }}"#;
        assert_eq!(syntax(mistral), Some(ToolSyntax::Listed("[TOOL_CALLS]")));
        let granite = r#"{%- if tools %}{{- "respond with <|tool_call|> followed by a JSON list of tools used." }}{% endif %}"#;
        assert_eq!(syntax(granite), Some(ToolSyntax::Listed("<|tool_call|>")));
        let gemma = "{% for message in messages %}{{ message['content'] }}{% endfor %}";
        assert_eq!(syntax(gemma), None);
    }

    #[test]
    fn a_syntax_is_found_by_its_name() {
        for syntax in [
            ToolSyntax::Bare(ArgumentsKey::Arguments),
            ToolSyntax::Bare(ArgumentsKey::Parameters),
            ToolSyntax::Tagged,
            ToolSyntax::Listed("[TOOL_CALLS]"),
            ToolSyntax::Listed("<|tool_call|>"),
        ] {
            let name: &str = syntax.into();
            assert_eq!(ToolSyntax::try_from(name.to_owned()), Ok(syntax));
        }
        let error = ToolSyntax::try_from("xml".to_owned()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tools: expected the name of a syntax of calls, found `xml`"
        );
    }

    #[test]
    fn tools_are_read_as_openai_has_them() {
        let tool =
            serde_json::json!({"type": "function", "function": {"name": "f", "parameters": null}});
        let expected = Tool {
            name: "f".into(),
            parameters: None,
        };
        assert_eq!(Tool::from_json(&tool), Ok(expected));
        let error = Tool::from_json(&serde_json::json!({"name": 3})).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"tools: expected an object with `function.name`, found {"name":3}"#
        );
    }
}
