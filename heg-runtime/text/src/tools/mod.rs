//! Tools: those that a request offers, and the syntax in which a model calls one.
//!
//! The syntax is a matter of training; only the chat template and the vocabulary reveal it ([`ToolSyntax::of`]).
//! `calls` finds the calls in an answer; `grammar` makes sure that all of them are valid.

mod calls;

use serde_json::Value;

use super::error::shortened;
use super::{ChatTemplate, Result, TextError, Tokenizer};

pub use calls::{Said, ToolCall, ToolCallParser};

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// JSON schema of its arguments, an object. `None` takes no arguments.
    pub parameters: Option<Value>,
}

impl Tool {
    /// Reads a tool as OpenAI's interface has it: `{"type": "function", "function": {"name": …, "parameters": …}}`.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// None: the answer is text.
    None,
    /// Text or calls, as the model chooses.
    Auto,
    /// A call of any tool.
    Required,
    /// A call of this tool.
    Named(String),
}

/// How many calls an answer may have, where its syntax has room for several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// At most one.
    One,
    /// Any number.
    Many,
}

/// How a model writes a call: always a JSON object with a name and arguments, and something around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The syntax that a chat template teaches.
    ///
    /// Looked for are the words that the published templates of each family use.
    ///
    /// # Errors
    /// `Form` if the template takes no tools, or teaches a syntax that is not known here.
    pub fn of(template: &ChatTemplate, tokenizer: &Tokenizer) -> Result<Self> {
        let source = template.source();
        let says = |words: &str| source.contains(words);
        // Qwen 3 Coder writes XML, and Mistral since version 11 the name outside of the JSON.
        let known = says("tools") && !says("<function=") && !says("[ARGS]");
        // Phi's template says only how the tools are listed; the call's marker is in the vocabulary.
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

    /// Tokens that are part of a call but special, so that decoding leaves them out: for
    /// [`TextStream::showing`](super::TextStream::showing).
    pub fn special_tokens(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let markers = [self.opening(), self.closing()];
        let ids = markers
            .iter()
            .flatten()
            .filter_map(|text| tokenizer.token_id(text));
        ids.filter(|&id| tokenizer.is_special(id)).collect()
    }

    /// The text before a call.
    pub(super) fn opening(self) -> Option<&'static str> {
        match self {
            Self::Bare(_) => None,
            Self::Tagged => Some(TAG),
            Self::Listed(marker) => Some(marker),
        }
    }

    /// The text after a call.
    pub(super) fn closing(self) -> Option<&'static str> {
        (self == Self::Tagged).then_some("</tool_call>")
    }

    /// Name of the arguments in a call.
    pub(super) fn arguments_key(self) -> &'static str {
        match self {
            Self::Bare(ArgumentsKey::Parameters) => "parameters",
            _ => "arguments",
        }
    }
}

/// An error of the tools of a request.
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

    /// Words of the published templates, cut to what tells them apart.
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
