//! A request as JSON, with the names of OpenAI's interface where it has them.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use heg_runtime::engine::{EndTokens, Request};
use heg_runtime::text::{
    AnswerForm, AnswerText, COMPILE_STACK_BYTES, Conversation, Message, Restriction,
    SamplingParams, Special, TextStream, ThoughtParser, ToolSyntax,
};
use heg_sched::{Class, FlowId};
use heg_state::StateOwner;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::failure::InterfaceError;
use crate::opened::{Drafting, OpenedBundle};

/// The `request` of `heg_submit`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ask {
    messages: Option<Vec<Message>>,
    prompt: Option<String>,
    prompt_ids: Option<Vec<u32>>,
    tools: Vec<Value>,
    tool_choice: Option<String>,
    json_schema: Option<Value>,
    reasoning_format: Thoughts,
    variables: Map<String, Value>,
    max_tokens: Option<u32>,
    stop: Vec<String>,
    ignore_eos: bool,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<u64>,
    priority: Priority,
    deadline_ms: Option<u64>,
    flow: Option<u64>,
    client: Option<String>,
    keep: Option<bool>,
    prediction: Option<String>,
    speculate: Option<Drafting>,
}

/// The place of what the model thinks before it answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Thoughts {
    /// Apart from the text, in the ending.
    #[default]
    #[serde(alias = "deepseek")]
    Auto,
    /// In the text, as the model wrote it.
    None,
}

/// The class of a request.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Priority {
    /// A person waits.
    #[default]
    Reactive,
    /// Background work.
    Proactive,
}

/// A request that can be submitted, with what turns its tokens into text.
pub(crate) struct Prepared {
    pub(crate) request: Request,
    pub(crate) text: AnswerText,
    /// The syntax of calls, if the answer may have some.
    pub(crate) syntax: Option<ToolSyntax>,
    /// What tells thoughts from text, if they are apart.
    pub(crate) thoughts: Option<ThoughtParser>,
}

/// The form of an answer.
#[derive(Default)]
struct Form {
    restriction: Option<Box<dyn Restriction>>,
    syntax: Option<ToolSyntax>,
}

impl Ask {
    /// Reads a request.
    pub(crate) fn parse(json: &str) -> Result<Self, InterfaceError> {
        serde_json::from_str(json).map_err(|source| InterfaceError::Document {
            argument: "request",
            source,
        })
    }

    /// Makes the tokens of the prompt and the form of the answer, on the caller's thread.
    pub(crate) fn prepare(self, opened: &OpenedBundle) -> Result<Prepared, InterfaceError> {
        let prompt = self.prompt_tokens(opened)?;
        opened.engine.check(&prompt)?;
        let thoughts = self.thoughts(opened, &prompt)?;
        let form = self.form(opened, thoughts.as_ref())?;
        let thoughts = thoughts.filter(|_| self.reasoning_format == Thoughts::Auto);
        let stream = opened.tokenizer().ok().map(|tokenizer| {
            TextStream::with_calls(Arc::clone(tokenizer), form.syntax)
                .with_thoughts(thoughts.as_ref())
        });
        let (end_tokens, eos_ids) = match self.ignore_eos {
            true => (EndTokens::Ignored, &[][..]),
            false => (
                EndTokens::End,
                &opened.loaded.bundle().manifest().text.eos_ids[..],
            ),
        };
        let text = AnswerText::new(stream, self.stop.iter().cloned(), eos_ids);
        let prediction = match &self.prediction {
            Some(text) => tokens(opened, text, Special::AsWritten)?,
            None => Vec::new(),
        };
        let class = match self.priority {
            Priority::Reactive => Class::Reactive,
            Priority::Proactive => Class::Proactive,
        };
        let defaults = Request::new(class, prompt);
        let request = Request {
            scope: opened.scope(self.client.as_deref()),
            state: self.owner(opened)?,
            tokens_max: self.max_tokens.unwrap_or(defaults.tokens_max),
            end_tokens,
            sampling: self.sampling()?,
            restriction: form.restriction,
            speculation: self.speculate.map(Into::into),
            prediction,
            flow: self.flow()?,
            deadline: self.deadline_ms.map(Duration::from_millis),
            ..defaults
        };
        if request.tokens_max == 0 {
            return Err(asked("`max_tokens` is 0, expected at least 1"));
        }
        Ok(Prepared {
            request,
            text,
            syntax: form.syntax,
            thoughts,
        })
    }

    /// A parser of what the model thinks first; `None` where no template made the prompt, or it knows no thoughts.
    fn thoughts(
        &self,
        opened: &OpenedBundle,
        prompt: &[u32],
    ) -> Result<Option<ThoughtParser>, InterfaceError> {
        if self.messages.is_none() {
            return Ok(None);
        }
        let (template, tokenizer) = (opened.template()?, opened.tokenizer()?);
        Ok(ThoughtParser::of(template, prompt, tokenizer)?)
    }

    /// The tokens of the prompt.
    pub(crate) fn prompt_tokens(&self, opened: &OpenedBundle) -> Result<Vec<u32>, InterfaceError> {
        let tools = !self.tools.is_empty();
        match (&self.messages, &self.prompt, &self.prompt_ids) {
            (Some(messages), None, None) => {
                let conversation = Conversation {
                    messages: messages.clone(),
                    tools: self.tools.clone(),
                    add_generation_prompt: true,
                    now: None,
                    variables: self.variables.clone(),
                };
                let template = opened.template()?;
                let made = template.prompt(&conversation, opened.tokenizer()?, usize::MAX);
                Ok(made?)
            }
            (None, Some(_), None) | (None, None, Some(_)) if tools => {
                Err(asked("`tools` are given without `messages`, expected both"))
            }
            (None, Some(prompt), None) => tokens(opened, prompt, Special::Add),
            (None, None, Some(ids)) => Ok(ids.clone()),
            _ => Err(asked(
                "expected one of `messages`, `prompt` and `prompt_ids` in the request",
            )),
        }
    }

    /// The form of the answer, behind what the model thinks first. Forms need a larger stack than callers may have.
    fn form(
        &self,
        opened: &OpenedBundle,
        thoughts: Option<&ThoughtParser>,
    ) -> Result<Form, InterfaceError> {
        if self.tools.is_empty() && self.json_schema.is_none() {
            return match self.tool_choice {
                None => Ok(Form::default()),
                Some(_) => Err(asked(
                    "`tool_choice` is given without `tools`, expected both",
                )),
            };
        }
        thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size(COMPILE_STACK_BYTES);
            let compiling = thread.spawn_scoped(scope, || self.compiled(opened, thoughts));
            let compiled = compiling.map_err(InterfaceError::Thread)?.join();
            compiled.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn compiled(
        &self,
        opened: &OpenedBundle,
        thoughts: Option<&ThoughtParser>,
    ) -> Result<Form, InterfaceError> {
        let form = self.asked_form(opened)?;
        let syntax = form.call_syntax();
        let form = match thoughts {
            Some(thoughts) => thoughts.before(form),
            None => form,
        };
        let grammar = opened.grammars()?.form(form)?;
        Ok(Form {
            restriction: grammar.map(|grammar| Box::new(grammar) as _),
            syntax,
        })
    }

    /// The form that the request names.
    fn asked_form(&self, opened: &OpenedBundle) -> Result<AnswerForm, InterfaceError> {
        if let Some(schema) = &self.json_schema {
            return match self.tools.is_empty() {
                true => Ok(AnswerForm::JsonSchema(schema.clone())),
                false => Err(asked(
                    "expected `json_schema` or `tools` in a request, found both",
                )),
            };
        }
        let syntax = ToolSyntax::of(opened.template()?, opened.tokenizer()?)?;
        let choice = self.tool_choice.as_deref();
        Ok(AnswerForm::of_tools(syntax, &self.tools, choice)?)
    }

    /// The flow of the request, whose numbers begin with 1 here.
    fn flow(&self) -> Result<Option<FlowId>, InterfaceError> {
        match self.flow {
            Some(0) => Err(asked("`flow` is 0, expected a number of `heg_flow_new`")),
            flow => Ok(flow.map(|flow| FlowId(flow - 1))),
        }
    }

    fn sampling(&self) -> Result<SamplingParams, InterfaceError> {
        let plain = SamplingParams::default();
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(plain.temperature),
            top_k: self.top_k.or(plain.top_k),
            top_p: self.top_p.unwrap_or(plain.top_p),
            min_p: self.min_p.unwrap_or(plain.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(plain.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(plain.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(plain.frequency_penalty),
            seed: self.seed.unwrap_or(plain.seed),
        };
        params.check()?;
        Ok(params)
    }

    /// The owner of what is kept of the prompt.
    fn owner(&self, opened: &OpenedBundle) -> Result<Option<StateOwner>, InterfaceError> {
        match (self.keep.unwrap_or(opened.keeps_state), opened.keeps_state) {
            (true, false) => Err(asked("`keep` needs an engine with `state_dir`, found none")),
            (false, _) => Ok(None),
            (true, true) => Ok(Some(match &self.client {
                Some(client) => StateOwner::new("client", client.as_bytes()),
                None => StateOwner::this_user(),
            })),
        }
    }
}

fn tokens(opened: &OpenedBundle, text: &str, special: Special) -> Result<Vec<u32>, InterfaceError> {
    let encoded = opened.tokenizer()?.encode(text, special);
    Ok(encoded?)
}

fn asked(message: &str) -> InterfaceError {
    InterfaceError::Asked(message.to_owned())
}
