//! Messages of Anthropic's Messages API: an answer as content blocks, whole or as events.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{EndStats, EventWriter, SaidToken, add_named, error_event};
use crate::answer::{Label, Piece, timings};
use crate::answering::{AnswerEnd, AnswerStats};
use crate::echo::Echoed;
use crate::error::ApiError;
use crate::error_form::ErrorForm;
use crate::sending::Pieces;
use heg_runtime::FinishReason;
use heg_text::{Said, ToolCall};

/// A message while its answer is made.
pub(crate) struct MessageDocument {
    pub(crate) label: Label,
    /// Most tokens that prompt and answer may have together.
    pub(crate) context_tokens: u32,
}

/// A whole message.
#[derive(Serialize)]
struct MessageObject<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block<'a>>,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
    usage: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

/// A content block.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Thinking {
        thinking: &'a str,
        /// Empty: it is Anthropic's proof that a thought is its own.
        signature: &'static str,
    },
    Text {
        text: &'a str,
    },
    ToolUse {
        id: String,
        name: &'a str,
        input: Option<Box<RawValue>>,
    },
}

impl MessageDocument {
    /// Writes the whole message.
    pub(super) fn whole(&self, piece: Piece, end: &AnswerEnd, stats: &AnswerStats) -> Pieces {
        let (mut content, mut calls) = (Vec::new(), 0);
        for part in &piece.parts {
            content.push(match part {
                Said::Thought(thinking) => Block::Thinking {
                    thinking,
                    signature: "",
                },
                Said::Text(text) => Block::Text { text },
                Said::Call(call) => {
                    calls += 1;
                    Block::ToolUse {
                        id: call_id(&self.label, calls - 1),
                        name: &call.name,
                        input: input(call),
                    }
                }
            });
        }
        let (stop_reason, stop_sequence) = self.stop(end, calls, stats);
        Pieces::json(&MessageObject {
            stop_reason: Some(stop_reason),
            stop_sequence,
            content,
            timings: Some(timings(stats)),
            token_ids: piece.token_ids.clone(),
            ..MessageObject::empty(&self.label, usage(stats))
        })
    }

    /// Returns the reason for the end, and the stop text that was met.
    fn stop<'a>(
        &self,
        end: &'a AnswerEnd,
        calls: usize,
        stats: &AnswerStats,
    ) -> (&'static str, Option<&'a str>) {
        let tokens = stats.prompt_tokens.saturating_add(stats.answer_tokens);
        let is_full = tokens >= self.context_tokens;
        match (end.reason, end.stop_text.as_deref()) {
            (FinishReason::Length, _) if is_full => ("model_context_window_exceeded", None),
            (FinishReason::Length, _) => ("max_tokens", None),
            (FinishReason::Stop, Some(text)) => ("stop_sequence", Some(text)),
            (FinishReason::Stop, None) if calls > 0 => ("tool_use", None),
            (FinishReason::Stop, None) => ("end_turn", None),
        }
    }
}

impl<'a> MessageObject<'a> {
    /// Returns a message without content.
    fn empty(label: &'a Label, usage: Value) -> Self {
        Self {
            id: &label.id,
            r#type: "message",
            role: "assistant",
            model: &label.model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage,
            timings: None,
            token_ids: None,
        }
    }
}

/// Returns the id of the call with this number.
fn call_id(label: &Label, number: usize) -> String {
    let answer = label.id.trim_start_matches("msg_");
    format!("toolu_{answer}_{number}")
}

/// Returns the arguments of a call as the model wrote them.
fn input(call: &ToolCall) -> Option<Box<RawValue>> {
    RawValue::from_string(call.arguments.clone()).ok()
}

/// Returns the counts of an answer. Tokens that were in the KV cache are not among `input_tokens`.
fn usage(stats: &AnswerStats) -> Value {
    json!({
        "input_tokens": stats.prompt_tokens.saturating_sub(stats.reused_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.reused_tokens,
        "output_tokens": stats.answer_tokens,
    })
}

/// The writer of a message's events.
pub(super) struct MessageEvents {
    document: MessageDocument,
    /// Number of blocks that have begun.
    blocks: usize,
    /// Number of calls among them.
    calls: usize,
    /// The last block, if it goes on.
    open: Option<OpenBlock>,
}

/// An open block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Thinking,
    Text,
}

impl MessageEvents {
    pub(super) fn new(document: MessageDocument) -> Self {
        Self {
            document,
            blocks: 0,
            calls: 0,
            open: None,
        }
    }

    fn say(&mut self, said: Vec<Said>, events: &mut Pieces) {
        for part in said {
            match part {
                Said::Thought(thought) => {
                    self.go_on(OpenBlock::Thinking, events);
                    let delta = json!({"type": "thinking_delta", "thinking": thought});
                    self.delta(&delta, events);
                }
                Said::Text(text) => {
                    self.go_on(OpenBlock::Text, events);
                    self.delta(&json!({"type": "text_delta", "text": text}), events);
                }
                Said::Call(call) => {
                    self.end_open(events);
                    let id = call_id(&self.document.label, self.calls);
                    self.calls += 1;
                    let block = json!({
                        "type": "tool_use", "id": id, "name": call.name, "input": {}
                    });
                    self.start(&block, events);
                    let delta = json!({"type": "input_json_delta", "partial_json": call.arguments});
                    self.delta(&delta, events);
                    self.stop(events);
                }
            }
        }
    }

    /// Starts a block, unless it is the one that goes on.
    fn go_on(&mut self, block: OpenBlock, events: &mut Pieces) {
        if self.open == Some(block) {
            return;
        }
        self.end_open(events);
        let empty = match block {
            OpenBlock::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            OpenBlock::Text => json!({"type": "text", "text": ""}),
        };
        self.start(&empty, events);
        self.open = Some(block);
    }

    fn start(&mut self, block: &Value, events: &mut Pieces) {
        let name = "content_block_start";
        let data = json!({"type": name, "index": self.blocks, "content_block": block});
        add_named(events, name, &data);
        self.blocks += 1;
    }

    /// Adds a piece of the last block.
    fn delta(&self, delta: &Value, events: &mut Pieces) {
        let name = "content_block_delta";
        let index = self.blocks.saturating_sub(1);
        let data = json!({"type": name, "index": index, "delta": delta});
        add_named(events, name, &data);
    }

    fn stop(&self, events: &mut Pieces) {
        let name = "content_block_stop";
        let data = json!({"type": name, "index": self.blocks.saturating_sub(1)});
        add_named(events, name, &data);
    }

    fn end_open(&mut self, events: &mut Pieces) {
        let open = self.open.take();
        if open == Some(OpenBlock::Thinking) {
            self.delta(&json!({"type": "signature_delta", "signature": ""}), events);
        }
        if open.is_some() {
            self.stop(events);
        }
    }
}

impl EventWriter for MessageEvents {
    fn begin(&mut self, stats: &AnswerStats) -> Pieces {
        let mut events = Pieces::default();
        let name = "message_start";
        let message = MessageObject::empty(&self.document.label, usage(stats));
        add_named(
            &mut events,
            name,
            &json!({"type": name, "message": message}),
        );
        add_named(&mut events, "ping", &json!({"type": "ping"}));
        events
    }

    fn prompt(&mut self, _: usize, _: Echoed) -> Pieces {
        Pieces::default()
    }

    fn token(&mut self, _: usize, token: SaidToken) -> Pieces {
        let mut events = Pieces::default();
        self.say(token.said, &mut events);
        events
    }

    fn end(&mut self, _: usize, said: Vec<Said>, end: &AnswerEnd, stats: EndStats) -> Pieces {
        let mut events = Pieces::default();
        self.say(said, &mut events);
        self.end_open(&mut events);
        let (stop_reason, stop_sequence) = self.document.stop(end, self.calls, &stats.own);
        let name = "message_delta";
        let data = json!({
            "type": name,
            "delta": {"stop_reason": stop_reason, "stop_sequence": stop_sequence},
            "usage": usage(&stats.own),
            "timings": timings(&stats.own),
        });
        add_named(&mut events, name, &data);
        add_named(
            &mut events,
            "message_stop",
            &json!({"type": "message_stop"}),
        );
        events
    }

    fn failed(&mut self, error: &ApiError) -> Pieces {
        error_event(ErrorForm::Anthropic, error)
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
