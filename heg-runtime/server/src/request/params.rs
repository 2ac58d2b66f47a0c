//! The parameters that both completion routes share: model, sampling, stop texts, delivery, class, flow and deadline.

use std::time::Duration;

use serde_json::Value;

use super::{foreign, name};
use crate::error::{ApiError, Result};
use crate::fields::{Fields, describe};
use heg_runtime::engine::Speculation;
use heg_sched::Class;
use heg_text::SamplingParams;

/// The parameters that both completion routes accept.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionParams {
    /// The model, if named.
    pub model: Option<String>,
    /// Maximum number of tokens of each answer, if limited. 0 only if the prompt is echoed.
    pub tokens_max: Option<u32>,
    /// Number of answers.
    pub choices: u32,
    /// Number of most likely tokens to list beside each token, if log probabilities are wanted.
    pub log_probs: Option<u32>,
    /// Whether the prompt is echoed in front of the answer.
    pub echo: EchoPrompt,
    /// The sampling parameters.
    pub sampling: SamplingParams,
    /// Biases to add to the logits of tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// The stop texts, each of which ends the answer.
    pub stop: Vec<String>,
    /// The place of what the model thinks.
    pub thoughts: Thoughts,
    /// The effect of an end-of-sequence token.
    pub end_token: EndToken,
    /// The delivery of the answer: whole or streamed.
    pub delivery: Delivery,
    /// Whether the answer includes its token ids.
    pub token_ids: TokenIds,
    /// The priority class.
    pub class: Class,
    /// Name of the flow that the request continues.
    pub flow: Option<String>,
    /// Time from now after which the answer is worthless.
    pub deadline: Option<Duration>,
    /// The key by which a later request supersedes this one.
    pub supersede_key: Option<String>,
    /// The drafting method of the answer; `None` for the server's default.
    pub speculation: Option<Speculation>,
    /// The fields of the request that have no effect.
    pub ignored: Vec<&'static str>,
}

/// The place of what the model thinks before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thoughts {
    /// Thoughts are a part of their own.
    Apart,
    /// Thoughts stay in the text, with their markers.
    InText,
}

/// The effect of an end-of-sequence token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndToken {
    /// The token ends the answer.
    Ends,
    /// The token has no effect: the answer has as many tokens as were asked for.
    Ignored,
}

/// The delivery of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// As one JSON object.
    Whole,
    /// Token by token, as server-sent events.
    Stream {
        /// Whether the last event reports the token usage.
        usage: Usage,
    },
}

/// Whether a stream ends with an event that reports the token usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// The usage event is sent.
    Included,
    /// No usage event is sent.
    Omitted,
}

/// Whether an answer includes its token ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenIds {
    /// The answer includes its token ids.
    Included,
    /// The answer has text only.
    Omitted,
}

/// Whether the prompt is echoed in front of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EchoPrompt {
    /// The prompt is echoed.
    Included,
    /// Only the answer is sent.
    Omitted,
}

/// The fields whose form differs between the routes.
pub(super) struct OfRoute {
    pub(super) tokens_max: Option<u32>,
    pub(super) log_probs: Option<u32>,
    pub(super) echo: EchoPrompt,
    pub(super) stop: Vec<String>,
    pub(super) thoughts: Thoughts,
    pub(super) delivery: Delivery,
    pub(super) ignored: Vec<&'static str>,
}

impl CompletionParams {
    pub(super) fn take(fields: &mut Fields, of_route: OfRoute) -> Result<Self> {
        let choices = fields.within("n", 1..=CHOICES_MAX, "an integer from 1 to 8")?;
        let params = Self {
            model: fields.text("model")?,
            tokens_max: of_route.tokens_max,
            choices: choices.unwrap_or(1),
            log_probs: of_route.log_probs,
            echo: of_route.echo,
            sampling: sampling(fields)?,
            logit_bias: logit_bias(fields)?,
            stop: of_route.stop,
            thoughts: of_route.thoughts,
            end_token: match fields.flag("ignore_eos")? {
                Some(true) => EndToken::Ignored,
                Some(false) | None => EndToken::Ends,
            },
            delivery: of_route.delivery,
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
            speculation: speculation(fields)?,
            ignored: of_route.ignored,
        };
        params.check_choices()?;
        Ok(params)
    }

    /// Checks that a request with a flow has one answer only.
    fn check_choices(&self) -> Result<()> {
        let beside = match (&self.flow, &self.supersede_key) {
            _ if self.choices == 1 => return Ok(()),
            (Some(_), _) => "flow_id",
            (None, Some(_)) => "supersede_key",
            (None, None) => return Ok(()),
        };
        Err(ApiError::Unsupported {
            field: "n".to_owned(),
            found: format!("`{}` beside `{beside}`", self.choices),
            limit: "continues a flow with one answer",
        })
    }
}

/// Takes `logprobs` and `top_logprobs` of the chat interface.
pub(super) fn chat_log_probs(fields: &mut Fields) -> Result<Option<u32>> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.within("top_logprobs", 0..=20, "an integer from 0 to 20")?;
    match (wanted, top.unwrap_or(0)) {
        (true, top) => Ok(Some(top)),
        (false, 0) => Ok(None),
        (false, _) => Err(ApiError::Field {
            field: "top_logprobs".to_owned(),
            expected: "`\"logprobs\": true` beside it",
            found: "none".to_owned(),
        }),
    }
}

/// Takes the sampling parameters. OpenAI's defaults: temperature 1, and a random seed.
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
    let presence_penalty = number("presence_penalty", defaults.presence_penalty)?;
    let frequency_penalty = number("frequency_penalty", defaults.frequency_penalty)?;
    let has_penalties = [
        repetition_penalty - 1.0,
        presence_penalty,
        frequency_penalty,
    ];
    foreign::penalty_window(fields, has_penalties.iter().any(|penalty| *penalty != 0.0))?;
    let top_k = match fields.integer("top_k")? {
        // Off, in the notations of vLLM and llama.cpp.
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
        presence_penalty,
        frequency_penalty,
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

/// Takes biases by token id; the ids are text, as JSON's field names are. Whether they are in the vocabulary is checked
/// later.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>> {
    let Some(map) = fields.map("logit_bias")? else {
        return Ok(Vec::new());
    };
    let wrong = |expected, found| ApiError::Field {
        field: "logit_bias".to_owned(),
        expected,
        found,
    };
    if map.len() > BIASES_MAX {
        let found = format!("{}", map.len());
        return Err(wrong("at most 1024 biases", found));
    }
    map.into_iter()
        .map(|(token, bias)| {
            let Ok(id) = token.parse() else {
                return Err(wrong("token ids as names", describe(&token.into())));
            };
            match bias.as_f64().filter(|bias| bias.abs() <= BIAS_MAX) {
                Some(bias) => Ok((id, bias as f32)),
                None => Err(wrong("biases from -100 to 100", describe(&bias))),
            }
        })
        .collect()
}

/// Returns an unpredictable number, from the standard library's keys for hash maps.
fn chance() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

/// Takes `stop`: a text or a list of texts.
pub(super) fn stop(fields: &mut Fields) -> Result<Vec<String>> {
    let list = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(text @ Value::String(_)) => vec![text],
        Some(other) => return Err(fields.wrong("stop", STOP_EXPECTED, &other)),
    };
    stop_texts(fields, "stop", list)
}

/// Returns the stop texts of a list, which is the value of `field`.
pub(super) fn stop_texts(fields: &Fields, field: &str, list: Vec<Value>) -> Result<Vec<String>> {
    if list.len() > STOP_TEXTS_MAX {
        return Err(fields.wrong(field, STOP_EXPECTED, &list.into()));
    }
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
                field: field.to_owned(),
                expected: "texts of at most 256 bytes each and 1024 bytes together",
                found: format!("one of {} bytes, with room for {bytes_left}", text.len()),
            }),
            other => Err(fields.wrong(field, STOP_EXPECTED, &other)),
        })
        .collect()
}

/// Takes `reasoning_format`, by llama.cpp's names.
pub(super) fn thoughts(fields: &mut Fields) -> Result<Thoughts> {
    match fields.text("reasoning_format")?.as_deref() {
        None | Some("auto" | "deepseek") => Ok(Thoughts::Apart),
        Some("none") => Ok(Thoughts::InText),
        Some(other) => {
            Err(fields.wrong("reasoning_format", "none, auto or deepseek", &other.into()))
        }
    }
}

/// Takes `stream` and `stream_options`.
pub(super) fn delivery(fields: &mut Fields) -> Result<Delivery> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let mut usage = Usage::Omitted;
    if let Some(mut options) = fields.object("stream_options")? {
        if options.flag("include_usage")?.unwrap_or(false) {
            usage = Usage::Included;
        }
        // Padding against eavesdroppers, which loopback does not have.
        options.take("include_obfuscation");
        options.end()?;
    }
    Ok(if stream {
        Delivery::Stream { usage }
    } else {
        Delivery::Whole
    })
}

/// Takes the class: `priority` by name or, as in vLLM, as a number that grows with patience; else OpenAI's
/// `service_tier`.
pub(super) fn class(fields: &mut Fields) -> Result<Class> {
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

/// Takes the drafting method, by name.
fn speculation(fields: &mut Fields) -> Result<Option<Speculation>> {
    let Some(value) = fields.take("speculate") else {
        return Ok(None);
    };
    let asked = value.as_str();
    let known = SPECULATIONS.iter().find(|(name, _)| Some(*name) == asked);
    match known {
        Some((_, speculation)) => Ok(Some(*speculation)),
        None => Err(fields.wrong("speculate", SPECULATION_NAMES, &value)),
    }
}

/// The values of `speculate`.
const SPECULATIONS: &[(&str, Speculation)] = &[
    ("off", Speculation::Off),
    ("chain", Speculation::Chain),
    ("tree", Speculation::Tree),
];

/// The names of `speculate`'s values, for messages.
const SPECULATION_NAMES: &str = "off, chain or tree";

/// Maximum number of answers to a request. Chosen: each of them runs the prompt, and takes a place in the queue.
const CHOICES_MAX: u32 = 8;

/// Maximum number of biases of a request. Chosen: OpenAI's and vLLM's users ban words, not vocabularies.
const BIASES_MAX: usize = 1024;

/// OpenAI's bound on the absolute value of a bias.
const BIAS_MAX: f64 = 100.0;

const STOP_EXPECTED: &str = "a text or a list of up to 16 texts";

/// Maximum number of stop texts of a request. Chosen; OpenAI allows four.
const STOP_TEXTS_MAX: usize = 16;

/// Maximum size of a stop text, in bytes. Chosen: separators between two parts of an answer are shorter.
const STOP_TEXT_BYTES_MAX: usize = 256;

/// Maximum size of all stop texts of a request, in bytes. Chosen: matching takes nine bytes of memory for each, for as
/// long as the answer.
const STOP_BYTES_MAX: usize = 1024;
