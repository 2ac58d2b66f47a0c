//! Requests as they come in: a body's fields, and headers that stand in for fields, checked and typed.
//!
//! What is asked for and not done here is refused, never passed over; fields that change nothing in an answer
//! (`user`, `metadata`) are. What needs the model (its vocabulary, its context) is checked in `prompt`.

use std::time::Duration;

use serde_json::Value;

use super::bounded_json::{PromptField, Reader};
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::message::messages;
use super::tools::Tooling;
use heg_sched::Class;
use heg_text::{Conversation, SamplingParams};

/// A request to `/v1/chat/completions`.
#[derive(Debug)]
pub struct ChatRequest {
    /// What the chat template is given.
    pub conversation: Conversation,
    /// What tools may be called, and the form of the answer.
    pub tooling: Tooling,
    /// What both routes have.
    pub wishes: Wishes,
}

/// A request to `/v1/completions`.
#[derive(Debug)]
pub struct CompletionRequest {
    /// The prompt.
    pub prompt: PromptText,
    /// What both routes have.
    pub wishes: Wishes,
}

/// A bare prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptText {
    /// Text, to which the tokenizer adds its special tokens.
    Text(String),
    /// Token ids, as they are.
    Tokens(Vec<u32>),
}

/// How long a prompt may be. Checked while a body is read, so that no more of it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptBounds {
    /// Most tokens of prompt and answer together.
    pub tokens: u32,
    /// What bounds them.
    pub bounded_by: Bound,
    /// Bytes of the longest token.
    pub token_bytes: usize,
}

/// What bounds the tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The context that the model was compiled for.
    Context,
    /// The memory that the server may use for KV caches.
    KvBudget,
}

/// What a request may ask for on both routes.
#[derive(Debug, Clone, PartialEq)]
pub struct Wishes {
    /// The model, if named.
    pub model: Option<String>,
    /// Most tokens of the answer, if limited.
    pub tokens_max: Option<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// What an end token does.
    pub end_token: EndToken,
    /// In how many pieces the answer is wanted.
    pub delivery: Delivery,
    /// Whether the answer says its token ids.
    pub token_ids: TokenIds,
    /// How urgent it is.
    pub class: Class,
    /// Name of the flow that it goes on with.
    pub flow: Option<String>,
    /// When the answer is worth nothing any more, from now on.
    pub deadline: Option<Duration>,
    /// A later request with the same key takes the place of this one.
    pub supersede_key: Option<String>,
}

/// What an end token does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndToken {
    /// It ends the answer.
    Ends,
    /// Nothing: the answer has as many tokens as were asked for.
    Ignored,
}

/// In how many pieces an answer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// In one.
    Whole,
    /// Token by token, as server-sent events.
    Stream {
        /// Whether the last event says how many tokens there were.
        usage: Usage,
    },
}

/// Whether a stream ends with its usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// It does.
    Included,
    /// It does not.
    Omitted,
}

/// Whether an answer says its token ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenIds {
    /// It does.
    Included,
    /// It does not.
    Omitted,
}

impl PromptBounds {
    /// Whether a prompt of so many tokens leaves room for an answer.
    pub(super) fn check_tokens(&self, tokens: usize) -> Result<()> {
        self.check(tokens, 1)
    }

    /// Whether a text of so many bytes could.
    pub(super) fn check_text(&self, bytes: usize) -> Result<()> {
        self.check_tokens(bytes.div_ceil(self.token_bytes.max(1)))
    }

    /// Bytes of the longest text that can be a prompt.
    pub(super) fn text_bytes_max(&self) -> usize {
        (self.tokens as usize)
            .saturating_sub(1)
            .saturating_mul(self.token_bytes)
    }

    /// Bytes of a body, at most: the longest prompt with every byte of it escaped, and beside that tools, or what
    /// templates leave out of a conversation.
    pub(super) fn body_bytes_max(&self) -> usize {
        let prompt = self.text_bytes_max().saturating_mul(ESCAPED_BYTES);
        prompt.saturating_add(BESIDE_BYTES).min(BODY_BYTES_MAX)
    }

    /// What is said of a text of more than `bytes` bytes.
    pub(super) fn too_long(&self, bytes: usize) -> ApiError {
        ApiError::TooLong {
            at_least: (bytes / self.token_bytes.max(1)).saturating_add(1),
            tokens_max: self.tokens,
            bounded_by: self.bounded_by,
        }
    }

    /// Whether prompt and answer fit.
    pub(super) fn check(&self, prompt_tokens: usize, answer_tokens: u32) -> Result<()> {
        let at_least = prompt_tokens.saturating_add(answer_tokens as usize);
        if at_least <= self.tokens as usize {
            return Ok(());
        }
        Err(ApiError::TooLong {
            at_least,
            tokens_max: self.tokens,
            bounded_by: self.bounded_by,
        })
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Context => "the model's context",
            Self::KvBudget => "what this server's KV caches may take",
        })
    }
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
        let list = fields
            .list("messages")?
            .ok_or(ApiError::Missing { field: "messages" })?;
        let messages = messages(list)?;
        let tooling = Tooling::take(&mut fields)?;
        let conversation = Conversation {
            messages,
            tools: tooling.tools.clone(),
            add_generation_prompt: true,
            now: None,
            variables: fields.map("chat_template_kwargs")?.unwrap_or_default(),
        };
        fields.only("logprobs", is_false, "gives no log probabilities")?;
        fields.only("top_logprobs", is_zero, "gives no log probabilities")?;
        fields.only("modalities", is_text_only, "answers in text only")?;
        let tokens_max = match fields.count("max_completion_tokens")? {
            Some(tokens) => {
                fields.take("max_tokens");
                Some(tokens)
            }
            None => fields.count("max_tokens")?,
        };
        let wishes = Wishes::take(&mut fields, tokens_max)?;
        fields.end()?;
        Ok(Self {
            conversation,
            tooling,
            wishes,
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
        let prompt = prompt.ok_or(ApiError::Missing { field: "prompt" })?;
        fields.only("echo", is_false, "does not repeat the prompt")?;
        fields.only("logprobs", |_| false, "gives no log probabilities")?;
        fields.only("best_of", is_one, "gives one answer")?;
        fields.only("suffix", is_empty, "does not fill in")?;
        let tokens_max = fields.count("max_tokens")?;
        let wishes = Wishes::take(&mut fields, tokens_max)?;
        fields.end()?;
        Ok(Self { prompt, wishes })
    }
}

impl Wishes {
    fn take(fields: &mut Fields, tokens_max: Option<u32>) -> Result<Self> {
        fields.only("n", is_one, "gives one answer to a request")?;
        fields.only("presence_penalty", is_zero, PENALTIES)?;
        fields.only("frequency_penalty", is_zero, PENALTIES)?;
        fields.only("logit_bias", is_empty, "has no biases on tokens")?;
        for name in WITHOUT_EFFECT {
            fields.take(name);
        }
        Ok(Self {
            model: fields.text("model")?,
            tokens_max,
            sampling: sampling(fields)?,
            stop: stop(fields)?,
            end_token: match fields.flag("ignore_eos")? {
                Some(true) => EndToken::Ignored,
                Some(false) | None => EndToken::Ends,
            },
            delivery: delivery(fields)?,
            token_ids: match fields.flag("return_token_ids")? {
                Some(true) => TokenIds::Included,
                Some(false) | None => TokenIds::Omitted,
            },
            class: class(fields)?,
            flow: name(fields, "flow_id")?,
            deadline: fields
                .count("deadline_ms")?
                .map(|millis| Duration::from_millis(millis.into())),
            supersede_key: name(fields, "supersede_key")?,
        })
    }
}

/// The flow that a body of `/v1/flows/end` names.
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
    let reader = Reader::new(bounds, &WITHOUT_EFFECT);
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

/// OpenAI's defaults: temperature 1, and a seed of chance.
fn sampling(fields: &mut Fields) -> Result<SamplingParams> {
    let defaults = SamplingParams::default();
    let mut number = |name: &str, default: f32| -> Result<f32> {
        // A number too large for f32 becomes infinite, which `check` refuses.
        Ok(fields.number(name)?.map_or(default, |number| number as f32))
    };
    let temperature = number("temperature", 1.0)?;
    let top_p = number("top_p", defaults.top_p)?;
    let min_p = number("min_p", defaults.min_p)?;
    let repetition_penalty = number("repetition_penalty", defaults.repetition_penalty)?;
    let top_k = match fields.integer("top_k")? {
        // Off, in vLLM's and in llama.cpp's way.
        None | Some(-1 | 0) => None,
        Some(top_k) => Some(u32::try_from(top_k).map_err(|_| {
            fields.wrong("top_k", "1 or more, or -1 for all tokens", &top_k.into())
        })?),
    };
    let seed = match fields.integer("seed")? {
        Some(seed) => seed.cast_unsigned(),
        None => chance(),
    };
    let params = SamplingParams {
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        seed,
    };
    match params.check() {
        Ok(()) => Ok(params),
        Err(heg_text::TextError::Sampling {
            name,
            expected,
            found,
        }) => Err(ApiError::Field {
            field: name.to_owned(),
            expected,
            found: format!("`{found}`"),
        }),
        Err(error) => Err(heg_runtime::RuntimeError::from(error).into()),
    }
}

/// A number that nobody knows before: the standard library's keys for hash maps.
fn chance() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

fn stop(fields: &mut Fields) -> Result<Vec<String>> {
    let expected = "a text or a list of up to 16 texts";
    let list = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= STOP_TEXTS_MAX => list,
        Some(text @ Value::String(_)) => vec![text],
        Some(other) => return Err(fields.wrong("stop", expected, &other)),
    };
    let mut bytes_left = STOP_BYTES_MAX;
    list.into_iter()
        .map(|value| match value {
            Value::String(text)
                if text.len() <= STOP_TEXT_BYTES_MAX && text.len() <= bytes_left =>
            {
                bytes_left -= text.len();
                Ok(text)
            }
            Value::String(text) => Err(ApiError::Field {
                field: "stop".to_owned(),
                expected: "texts of at most 256 bytes each and 1024 bytes together",
                found: format!("one of {} bytes, with room for {bytes_left}", text.len()),
            }),
            other => Err(fields.wrong("stop", expected, &other)),
        })
        .collect()
}

fn delivery(fields: &mut Fields) -> Result<Delivery> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let mut usage = Usage::Omitted;
    if let Some(mut options) = fields.object("stream_options")? {
        if options.flag("include_usage")?.unwrap_or(false) {
            usage = Usage::Included;
        }
        // Padding against eavesdroppers, which loopback has none of.
        options.take("include_obfuscation");
        options.end()?;
    }
    Ok(if stream {
        Delivery::Stream { usage }
    } else {
        Delivery::Whole
    })
}

/// The class: `priority` by name or, as vLLM has it, as a number that grows with patience; else OpenAI's
/// `service_tier`.
fn class(fields: &mut Fields) -> Result<Class> {
    let expected = "reactive, proactive, or an integer (above 0 is proactive)";
    let tier = fields.take("service_tier");
    match fields.take("priority") {
        None => {}
        Some(Value::String(name)) if name == "reactive" => return Ok(Class::Reactive),
        Some(Value::String(name)) if name == "proactive" => return Ok(Class::Proactive),
        Some(value) => {
            return match value.as_i64() {
                Some(number) if number > 0 => Ok(Class::Proactive),
                Some(_) => Ok(Class::Reactive),
                None => Err(fields.wrong("priority", expected, &value)),
            };
        }
    }
    match tier.as_ref().map(|tier| tier.as_str()) {
        None | Some(Some("auto" | "default" | "priority" | "scale")) => Ok(Class::Reactive),
        Some(Some("flex")) => Ok(Class::Proactive),
        Some(_) => Err(fields.wrong(
            "service_tier",
            "auto, default, priority, scale or flex",
            &tier.unwrap_or_default(),
        )),
    }
}

/// A name that the client chose.
fn name(fields: &mut Fields, field: &str) -> Result<Option<String>> {
    match fields.text(field)? {
        Some(name) if name.is_empty() || name.len() > NAME_BYTES_MAX => {
            Err(fields.wrong(field, "a text of 1 to 256 bytes", &name.into()))
        }
        name => Ok(name),
    }
}

fn is_false(value: &Value) -> bool {
    value == &Value::Bool(false)
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
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

/// Fields that change nothing in an answer.
const WITHOUT_EFFECT: [&str; 6] = [
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "store",
    "user",
];

const PENALTIES: &str = "has `repetition_penalty` only";

/// Bytes of one that is escaped as JSON: `\u0000`.
const ESCAPED_BYTES: usize = 6;

/// Bytes of a body beside its prompt. Chosen: the largest schema has a quarter of it.
const BESIDE_BYTES: usize = 1 << 20;

/// Bytes of any body. Chosen.
const BODY_BYTES_MAX: usize = 8 << 20;

/// Stop texts of a request. Chosen; OpenAI allows four.
const STOP_TEXTS_MAX: usize = 16;

/// Bytes of a stop text. Chosen: what stands between two parts of an answer is shorter.
const STOP_TEXT_BYTES_MAX: usize = 256;

/// Bytes of all stop texts of a request. Chosen: matching takes nine bytes of memory for each, for as long as the answer.
const STOP_BYTES_MAX: usize = 1024;

/// Length of names that clients choose. Chosen.
const NAME_BYTES_MAX: usize = 256;

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
