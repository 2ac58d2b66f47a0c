//! Answers in the shape of OpenAI's interface, whole and in chunks, for both routes.

use std::time::Duration;

use serde_json::{Value, json};

use super::answering::Figures;
use crate::generate::FinishReason;

/// Which of the two interfaces an answer speaks; they differ in names, and in where the text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Voice {
    Chat,
    Completion,
}

impl Voice {
    /// How ids of its answers begin.
    pub(super) fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Completion => "cmpl",
        }
    }
}

/// What all parts of an answer begin with.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) voice: Voice,
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
}

/// An answer, or a piece of one.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) text: String,
    /// Its tokens, if they were asked for.
    pub(super) token_ids: Option<Vec<u32>>,
}

impl Head {
    /// The whole answer.
    pub(super) fn whole(&self, piece: Piece, reason: FinishReason, figures: &Figures) -> Value {
        let mut choice = match self.voice {
            Voice::Chat => json!({
                "index": 0,
                "message": {"role": "assistant", "content": piece.text, "refusal": null},
            }),
            Voice::Completion => json!({"index": 0, "text": piece.text}),
        };
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = reason.name().into();
        if let Some(ids) = piece.token_ids {
            choice["token_ids"] = ids.into();
        }
        let object = match self.voice {
            Voice::Chat => "chat.completion",
            Voice::Completion => "text_completion",
        };
        let mut whole = self.object(object, vec![choice]);
        whole["usage"] = usage(figures);
        whole["timings"] = timings(figures);
        whole
    }

    /// A piece of the answer.
    pub(super) fn chunk(&self, piece: Piece, place: ChunkPlace) -> Value {
        let mut choice = match (self.voice, place) {
            (Voice::Chat, ChunkPlace::First) => {
                json!({"index": 0, "delta": {"role": "assistant", "content": piece.text}})
            }
            (Voice::Chat, ChunkPlace::Last(_)) if piece.text.is_empty() => {
                json!({"index": 0, "delta": {}})
            }
            (Voice::Chat, _) => json!({"index": 0, "delta": {"content": piece.text}}),
            (Voice::Completion, _) => json!({"index": 0, "text": piece.text}),
        };
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = match place {
            ChunkPlace::Last(reason) => reason.name().into(),
            ChunkPlace::First | ChunkPlace::Middle => Value::Null,
        };
        if let Some(ids) = piece.token_ids {
            choice["token_ids"] = ids.into();
        }
        self.object(self.chunk_object(), vec![choice])
    }

    /// The chunk behind the last one: no text, but what the answer took.
    pub(super) fn usage_chunk(&self, figures: &Figures) -> Value {
        let mut chunk = self.object(self.chunk_object(), Vec::new());
        chunk["usage"] = usage(figures);
        chunk
    }

    fn chunk_object(&self) -> &'static str {
        match self.voice {
            Voice::Chat => "chat.completion.chunk",
            Voice::Completion => "text_completion",
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

/// Where a chunk stands in its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkPlace {
    First,
    Middle,
    Last(FinishReason),
}

fn usage(figures: &Figures) -> Value {
    json!({
        "prompt_tokens": figures.prompt_tokens,
        "completion_tokens": figures.answer_tokens,
        "total_tokens": figures.prompt_tokens + figures.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": figures.reused_tokens},
    })
}

/// How long the answer took; not in OpenAI's interface.
pub(super) fn timings(figures: &Figures) -> Value {
    json!({
        "predicted_ttft_ms": millis(figures.predicted_ttft),
        "queued_ms": millis(figures.queued),
        "ttft_ms": millis(figures.ttft),
        "decode_ms": millis(figures.decode),
        "tpot_ms": millis(figures.tpot),
    })
}

/// To the microsecond.
pub(super) fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}
