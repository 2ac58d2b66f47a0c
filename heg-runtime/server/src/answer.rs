//! Answers in the format of OpenAI's API, whole and in chunks, for both routes.

use std::time::Duration;

use serde_json::{Value, json};

use super::answering::AnswerStats;
use heg_runtime::FinishReason;
use heg_text::{Said, ToolCall};

/// The API of an answer. The two differ in names, and in where the text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiKind {
    Chat,
    Completion,
}

impl ApiKind {
    /// The prefix of answer ids.
    pub(super) fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Completion => "cmpl",
        }
    }
}

/// The fields common to all parts of an answer.
#[derive(Debug, Clone)]
pub(super) struct Envelope {
    pub(super) api: ApiKind,
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
}

/// An answer, or a piece of one.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) calls: Vec<ToolCall>,
    /// Number of calls in earlier pieces.
    pub(super) calls_before: usize,
    /// Its tokens, if they were asked for.
    pub(super) token_ids: Option<Vec<u32>>,
}

impl Piece {
    /// Adds text and calls.
    pub(super) fn add(&mut self, said: Vec<Said>) {
        for said in said {
            match said {
                Said::Text(text) => self.text.push_str(&text),
                Said::Call(call) => self.calls.push(call),
            }
        }
    }

    /// The text; null if there are calls instead.
    fn content(&self) -> Value {
        if self.text.is_empty() && !self.calls.is_empty() {
            return Value::Null;
        }
        self.text.as_str().into()
    }

    /// The finish reason: `tool_calls` if this piece or an earlier one has calls.
    fn reason(&self, reason: FinishReason) -> &'static str {
        match reason {
            FinishReason::Stop if self.calls_before + self.calls.len() > 0 => "tool_calls",
            other => other.name(),
        }
    }
}

impl Envelope {
    /// The whole answer.
    pub(super) fn whole(&self, piece: Piece, reason: FinishReason, stats: &AnswerStats) -> Value {
        let mut choice = match self.api {
            ApiKind::Chat => json!({
                "index": 0,
                "message": {"role": "assistant", "content": piece.content(), "refusal": null},
            }),
            ApiKind::Completion => json!({"index": 0, "text": piece.text}),
        };
        if !piece.calls.is_empty() {
            choice["message"]["tool_calls"] = self.calls(&piece, Numbers::Omitted);
        }
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = piece.reason(reason).into();
        if let Some(ids) = piece.token_ids {
            choice["token_ids"] = ids.into();
        }
        let object = match self.api {
            ApiKind::Chat => "chat.completion",
            ApiKind::Completion => "text_completion",
        };
        let mut whole = self.object(object, vec![choice]);
        whole["usage"] = usage(stats);
        whole["timings"] = timings(stats);
        whole
    }

    /// A piece of the answer.
    pub(super) fn chunk(&self, piece: Piece, place: ChunkPlace) -> Value {
        let mut choice = match (self.api, place) {
            (ApiKind::Chat, ChunkPlace::First) => {
                json!({"index": 0, "delta": {"role": "assistant", "content": piece.content()}})
            }
            (ApiKind::Chat, place)
                if piece.text.is_empty()
                    && (!piece.calls.is_empty() || place != ChunkPlace::Middle) =>
            {
                json!({"index": 0, "delta": {}})
            }
            (ApiKind::Chat, _) => json!({"index": 0, "delta": {"content": piece.text}}),
            (ApiKind::Completion, _) => json!({"index": 0, "text": piece.text}),
        };
        if !piece.calls.is_empty() {
            choice["delta"]["tool_calls"] = self.calls(&piece, Numbers::Included);
        }
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = match place {
            ChunkPlace::Last(reason) => piece.reason(reason).into(),
            ChunkPlace::First | ChunkPlace::Middle => Value::Null,
        };
        if let Some(ids) = piece.token_ids {
            choice["token_ids"] = ids.into();
        }
        self.object(self.chunk_object(), vec![choice])
    }

    /// The chunk after the last one, which reports the token usage.
    pub(super) fn usage_chunk(&self, stats: &AnswerStats) -> Value {
        let mut chunk = self.object(self.chunk_object(), Vec::new());
        chunk["usage"] = usage(stats);
        chunk
    }

    /// Calls as JSON: numbered in a chunk, without numbers in a message.
    fn calls(&self, piece: &Piece, numbers: Numbers) -> Value {
        let answer = self.id.rsplit('-').next().unwrap_or_default();
        let call = |(place, call): (usize, &ToolCall)| {
            let number = piece.calls_before + place;
            let mut value = json!({
                "id": format!("call_{answer}_{number}"),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            });
            if numbers == Numbers::Included {
                value["index"] = number.into();
            }
            value
        };
        piece.calls.iter().enumerate().map(call).collect()
    }

    fn chunk_object(&self) -> &'static str {
        match self.api {
            ApiKind::Chat => "chat.completion.chunk",
            ApiKind::Completion => "text_completion",
        }
    }

    fn object(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
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
    json!({
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.answer_tokens,
        "total_tokens": stats.prompt_tokens + stats.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": stats.reused_tokens},
    })
}

/// The times of the answer, an extension of OpenAI's API.
pub(super) fn timings(stats: &AnswerStats) -> Value {
    json!({
        "predicted_ttft_ms": millis(stats.predicted_ttft),
        "queued_ms": millis(stats.queued),
        "ttft_ms": millis(stats.ttft),
        "decode_ms": millis(stats.decode),
        "tpot_ms": millis(stats.tpot),
    })
}

/// Milliseconds, to the microsecond.
pub(super) fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}
