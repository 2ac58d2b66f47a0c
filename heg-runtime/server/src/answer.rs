//! Answers in the format of OpenAI's API, whole and in chunks, for its two routes with choices.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::answering::AnswerStats;
use super::log_probs::{LogProbsField, ScoredToken};
use heg_runtime::FinishReason;
use heg_text::{Said, Tokenizer, ToolCall};

/// The API of an answer with choices. The two differ in names, and in where the text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiKind {
    Chat,
    Completion,
}

/// The name of an answer, and of the model that gives it.
#[derive(Debug, Clone)]
pub(super) struct Label {
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
}

/// The fields common to all parts of an answer with choices.
#[derive(Debug, Clone)]
pub(super) struct Envelope {
    pub(super) api: ApiKind,
    pub(super) label: Label,
    /// Identification of the model and software that made the answer.
    pub(super) fingerprint: String,
    /// The tokenizer that gives the tokens of log probabilities their names.
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
}

/// An answer, or a piece of one.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// Index of the answer among those to its request.
    pub(super) index: usize,
    /// Thoughts, text and calls as they were said; no two texts and no two thoughts follow each other.
    pub(super) parts: Vec<Said>,
    /// Number of calls in earlier pieces.
    pub(super) calls_before: usize,
    /// The piece's tokens, if they were asked for.
    pub(super) token_ids: Option<Vec<u32>>,
    /// The piece's tokens with log probabilities, if they were asked for.
    pub(super) scored: Vec<ScoredToken>,
}

/// An answer, or a chunk of one, as it is sent.
#[derive(Serialize)]
pub(super) struct AnswerObject<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: Vec<ChoiceObject<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timings: Option<Value>,
}

/// One choice of an answer object; it has one of `message`, `delta` and `text`.
#[derive(Serialize)]
struct ChoiceObject<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    logprobs: Option<LogProbsField<'a>>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

impl Piece {
    /// Appends thoughts, text and calls to the piece.
    pub(super) fn add(&mut self, said: Vec<Said>) {
        for said in said {
            match (self.parts.last_mut(), said) {
                (Some(Said::Text(before)), Said::Text(text))
                | (Some(Said::Thought(before)), Said::Thought(text)) => before.push_str(&text),
                (_, said) => self.parts.push(said),
            }
        }
    }

    /// Puts a text in front of the piece.
    pub(super) fn prepend(&mut self, text: String) {
        match self.parts.first_mut() {
            Some(Said::Text(behind)) => behind.insert_str(0, &text),
            _ => self.parts.insert(0, Said::Text(text)),
        }
    }

    /// Returns the size of thoughts, text and calls, in bytes.
    pub(super) fn text_bytes(&self) -> usize {
        let bytes = self.parts.iter().map(|part| match part {
            Said::Text(text) | Said::Thought(text) => text.len(),
            Said::Call(call) => call.name.len() + call.arguments.len(),
        });
        bytes.sum()
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.parts.iter().filter_map(|part| match part {
            Said::Call(call) => Some(call),
            Said::Text(_) | Said::Thought(_) => None,
        })
    }

    fn has_calls(&self) -> bool {
        self.calls().next().is_some()
    }

    /// Returns what the model thought, if it did.
    fn thought(&self) -> Option<&str> {
        self.parts.iter().find_map(|part| match part {
            Said::Thought(thought) => Some(thought.as_str()),
            Said::Text(_) | Said::Call(_) => None,
        })
    }

    /// Returns the text, without thoughts and calls.
    fn text(&self) -> Cow<'_, str> {
        let mut texts = self.parts.iter().filter_map(|part| match part {
            Said::Text(text) => Some(text.as_str()),
            Said::Call(_) | Said::Thought(_) => None,
        });
        let first = texts.next().unwrap_or_default();
        match texts.next() {
            None => first.into(),
            Some(second) => [first, second].into_iter().chain(texts).collect(),
        }
    }

    /// Returns the text; null if there are calls instead.
    fn content(&self) -> Value {
        let text = self.text();
        if text.is_empty() && self.has_calls() {
            return Value::Null;
        }
        text.into()
    }

    /// Returns the finish reason: `tool_calls` if this piece or an earlier one has calls.
    fn reason(&self, reason: FinishReason) -> &'static str {
        match reason {
            FinishReason::Stop if self.calls_before > 0 || self.has_calls() => "tool_calls",
            other => other.name(),
        }
    }
}

impl Envelope {
    /// Returns the whole answers, each with its finish reason.
    pub(super) fn whole(
        &self,
        pieces: Vec<(Piece, FinishReason)>,
        stats: &AnswerStats,
    ) -> AnswerObject<'_> {
        let choice = |(piece, reason): (Piece, FinishReason)| {
            let finish_reason = Some(piece.reason(reason));
            let mut choice = self.choice(piece.index, finish_reason);
            match self.api {
                ApiKind::Chat => {
                    let mut message = json!({
                        "role": "assistant", "content": piece.content(), "refusal": null
                    });
                    if let Some(thought) = piece.thought() {
                        message["reasoning_content"] = thought.into();
                    }
                    if piece.has_calls() {
                        message["tool_calls"] = self.calls(&piece, Numbers::Omitted);
                    }
                    choice.message = Some(message);
                }
                ApiKind::Completion => choice.text = Some(piece.text().into_owned()),
            }
            choice.logprobs = self.log_probs(piece.scored);
            choice.token_ids = piece.token_ids;
            choice
        };
        let object = match self.api {
            ApiKind::Chat => "chat.completion",
            ApiKind::Completion => "text_completion",
        };
        let mut whole = self.object(object, pieces.into_iter().map(choice).collect());
        whole.usage = Some(usage(stats));
        whole.timings = Some(timings(stats));
        whole
    }

    /// Returns a chunk with one piece of an answer.
    pub(super) fn chunk(&self, piece: Piece, place: ChunkPlace) -> AnswerObject<'_> {
        let finish_reason = match place {
            ChunkPlace::Last(reason) => Some(piece.reason(reason)),
            ChunkPlace::First | ChunkPlace::Middle => None,
        };
        let mut choice = self.choice(piece.index, finish_reason);
        match (self.api, place) {
            (ApiKind::Chat, place) => choice.delta = Some(self.delta(&piece, place)),
            (ApiKind::Completion, _) => choice.text = Some(piece.text().into_owned()),
        }
        choice.logprobs = self.log_probs(piece.scored);
        choice.token_ids = piece.token_ids;
        self.object(self.chunk_object(), vec![choice])
    }

    fn delta(&self, piece: &Piece, place: ChunkPlace) -> Value {
        let (text, thought, has_calls) = (piece.text(), piece.thought(), piece.has_calls());
        let says_other = has_calls || thought.is_some() || place != ChunkPlace::Middle;
        let says_nothing = text.is_empty() && says_other;
        let mut delta = match place {
            ChunkPlace::First => json!({"role": "assistant", "content": piece.content()}),
            _ if says_nothing => json!({}),
            _ => json!({"content": text}),
        };
        if let Some(thought) = thought {
            delta["reasoning_content"] = thought.into();
        }
        if has_calls {
            delta["tool_calls"] = self.calls(piece, Numbers::Included);
        }
        delta
    }

    /// Returns the chunk after the last one, which reports the token usage.
    pub(super) fn usage_chunk(&self, stats: &AnswerStats) -> AnswerObject<'_> {
        let mut chunk = self.object(self.chunk_object(), Vec::new());
        chunk.usage = Some(usage(stats));
        chunk
    }

    fn log_probs(&self, tokens: Vec<ScoredToken>) -> Option<LogProbsField<'_>> {
        let field = LogProbsField {
            api: self.api,
            tokenizer: self.tokenizer.as_deref(),
            tokens,
        };
        Some(field).filter(|field| !field.tokens.is_empty())
    }

    /// Calls as JSON: numbered in a chunk, without numbers in a message.
    fn calls(&self, piece: &Piece, numbers: Numbers) -> Value {
        let answer = self.label.id.rsplit('-').next().unwrap_or_default();
        let call = |(place, call): (usize, &ToolCall)| {
            let number = piece.calls_before + place;
            let id = match piece.index {
                0 => format!("call_{answer}_{number}"),
                index => format!("call_{answer}_{index}_{number}"),
            };
            let mut value = json!({
                "id": id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            });
            if numbers == Numbers::Included {
                value["index"] = number.into();
            }
            value
        };
        piece.calls().enumerate().map(call).collect()
    }

    fn chunk_object(&self) -> &'static str {
        match self.api {
            ApiKind::Chat => "chat.completion.chunk",
            ApiKind::Completion => "text_completion",
        }
    }

    fn choice(&self, index: usize, finish_reason: Option<&'static str>) -> ChoiceObject<'_> {
        ChoiceObject {
            index,
            message: None,
            delta: None,
            text: None,
            logprobs: None,
            finish_reason,
            token_ids: None,
        }
    }

    fn object<'a>(
        &'a self,
        object: &'static str,
        choices: Vec<ChoiceObject<'a>>,
    ) -> AnswerObject<'a> {
        AnswerObject {
            id: &self.label.id,
            object,
            created: self.label.created,
            model: &self.label.model,
            system_fingerprint: &self.fingerprint,
            choices,
            usage: None,
            timings: None,
        }
    }
}

/// The position of a chunk in its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkPlace {
    First,
    Middle,
    Last(FinishReason),
}

/// Whether calls include their index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbers {
    Included,
    Omitted,
}

fn usage(stats: &AnswerStats) -> Value {
    let mut usage = json!({
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.answer_tokens,
        "total_tokens": stats.prompt_tokens + stats.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": stats.reused_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": stats.drafts.accepted_tokens,
            "rejected_prediction_tokens": stats.drafts.rejected_tokens(),
        },
    });
    if let Some(tokens) = stats.thought_tokens {
        usage["completion_tokens_details"]["reasoning_tokens"] = tokens.into();
    }
    usage
}

/// Returns the timings of an answer, an extension of OpenAI's API.
pub(super) fn timings(stats: &AnswerStats) -> Value {
    json!({
        "predicted_ttft_ms": millis(stats.predicted_ttft),
        "queued_ms": millis(stats.queued),
        "ttft_ms": millis(stats.ttft),
        "decode_ms": millis(stats.decode),
        "tpot_ms": millis(stats.tpot),
    })
}

/// Converts a time to milliseconds, to the microsecond.
pub(super) fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}
