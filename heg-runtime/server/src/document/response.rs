//! Responses of OpenAI's Responses API: an answer as output items, whole or as events; and the conversation that a
//! later request may continue.

mod events;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::State;
use crate::account::{Charge, Scope};
use crate::answer::{Label, Piece, timings};
use crate::answering::{AnswerEnd, AnswerStats};
use crate::flows::FlowName;
use crate::kept_responses::KeptResponse;
use crate::request::{History, qualified};
use crate::sending::Pieces;
use crate::tools::value_bytes;
use heg_runtime::FinishReason;
use heg_text::Said;

pub(super) use events::ResponseEvents;

/// A response while its answer is made.
pub(crate) struct ResponseDocument {
    pub(crate) label: Label,
    /// The fields that it repeats of its request.
    pub(crate) asked: Map<String, Value>,
    /// The conversation, if it is kept.
    pub(crate) keeping: Option<Keeping>,
}

/// A conversation that is kept with its response.
pub(crate) struct Keeping {
    pub(crate) state: Arc<State>,
    pub(crate) scope: Scope,
    /// The conversation up to the answer.
    pub(crate) history: History,
    /// Name of the conversation: the id of its first response.
    pub(crate) conversation: String,
}

/// A response as it is sent.
#[derive(Serialize)]
struct ResponseObject<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    status: &'static str,
    error: Option<Value>,
    incomplete_details: Option<Value>,
    model: &'a str,
    output: &'a [Value],
    #[serde(flatten)]
    asked: &'a Map<String, Value>,
    usage: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

impl ResponseDocument {
    /// Returns the memory of what the response repeats and keeps of its request, in bytes.
    pub(crate) fn kept_bytes(&self) -> usize {
        let asked: usize = self.asked.values().map(value_bytes).sum();
        let keeping = self.keeping.as_ref();
        asked + keeping.map_or(0, |keeping| keeping.history.bytes())
    }

    /// Writes the whole response, and keeps its conversation.
    pub(super) fn whole(mut self, piece: Piece, end: &AnswerEnd, stats: &AnswerStats) -> Pieces {
        let mut output = Output::new(&self);
        let last = piece.parts.len().saturating_sub(1);
        for (place, part) in piece.parts.into_iter().enumerate() {
            match part {
                Said::Thought(thought) if place < last => {
                    output.add_thought(&thought, "completed");
                }
                Said::Thought(thought) => output.add_thought(&thought, status(end)),
                Said::Text(text) => output.add_text(&text, status(end)),
                Said::Call(call) => output.add_call(&call.name, &call.arguments),
            }
        }
        if output.items.is_empty() {
            output.add_text("", status(end));
        }
        let text = self.finish(&output.items, end, stats, piece.token_ids.as_deref());
        Pieces::from(text)
    }

    fn object<'a>(&'a self, status: &'static str, output: &'a [Value]) -> ResponseObject<'a> {
        ResponseObject {
            id: &self.label.id,
            object: "response",
            created_at: self.label.created,
            status,
            error: None,
            incomplete_details: None,
            model: &self.label.model,
            output,
            asked: &self.asked,
            usage: None,
            timings: None,
            token_ids: None,
        }
    }

    /// Returns the finished response as text. It is kept if it is to be, and its client has room for it.
    fn finish(
        &mut self,
        output: &[Value],
        end: &AnswerEnd,
        stats: &AnswerStats,
        token_ids: Option<&[u32]>,
    ) -> Bytes {
        let answer_bytes: usize = output.iter().map(value_bytes).sum();
        let bytes = self.kept_bytes().saturating_add(2 * answer_bytes);
        let keeping = self.keeping.take();
        let place = keeping.and_then(|keeping| keeping.place(bytes));
        self.asked
            .insert("store".to_owned(), place.is_some().into());
        let incomplete =
            (end.reason == FinishReason::Length).then(|| json!({"reason": "max_output_tokens"}));
        let object = ResponseObject {
            incomplete_details: incomplete,
            usage: Some(usage(stats)),
            timings: Some(timings(stats)),
            token_ids,
            ..self.object(status(end), output)
        };
        // Writing fails only for maps whose keys are not text.
        let text = Bytes::from(serde_json::to_vec(&object).unwrap_or_default());
        if let Some(place) = place {
            place.keep(self.label.id.clone(), text.clone(), output);
        }
        text
    }
}

impl Keeping {
    /// Returns a place for a response of this size; `None` if its client has no room for it.
    fn place(self, bytes: usize) -> Option<Place> {
        let Self { state, scope, .. } = &self;
        let account = state.accounts.of(*scope);
        let now = Instant::now();
        let responses = &state.responses;
        let (charge, ended) = responses.room(&account, bytes, &self.conversation, now);
        for conversation in ended {
            let flow = FlowName::Conversation(conversation);
            state.models.end_flow(*scope, &flow);
        }
        charge.map(|charge| Place {
            keeping: self,
            charge,
            bytes,
        })
    }
}

/// The room for a response among those that are kept.
struct Place {
    keeping: Keeping,
    charge: Charge,
    bytes: usize,
}

impl Place {
    fn keep(self, id: String, text: Bytes, output: &[Value]) {
        let Keeping {
            state,
            scope,
            mut history,
            conversation,
        } = self.keeping;
        add_output(&mut history, output);
        let response = KeptResponse {
            text,
            history,
            conversation,
            bytes: self.bytes,
            charge: self.charge,
        };
        state.responses.add(scope, id, response, Instant::now());
    }
}

/// Adds the items of an answer to its conversation.
fn add_output(history: &mut History, output: &[Value]) {
    for item in output {
        let text_of = |name: &str| item[name].as_str().unwrap_or_default();
        match text_of("type") {
            "function_call" => {
                let name = qualified(item["namespace"].as_str(), text_of("name"));
                history.call(text_of("call_id"), &name, text_of("arguments"));
            }
            "reasoning" => history.thought(item["content"][0]["text"].as_str().unwrap_or_default()),
            _ => history.answer(item["content"][0]["text"].as_str().unwrap_or_default()),
        }
    }
}

fn status(end: &AnswerEnd) -> &'static str {
    match end.reason {
        FinishReason::Stop => "completed",
        FinishReason::Length => "incomplete",
    }
}

fn usage(stats: &AnswerStats) -> Value {
    json!({
        "input_tokens": stats.prompt_tokens,
        "input_tokens_details": {"cached_tokens": stats.reused_tokens, "cache_write_tokens": 0},
        "output_tokens": stats.answer_tokens,
        "output_tokens_details": {"reasoning_tokens": stats.thought_tokens.unwrap_or(0)},
        "total_tokens": stats.prompt_tokens + stats.answer_tokens,
    })
}

/// The output items of a response.
struct Output {
    /// The part of the response's id that its items' ids repeat.
    answer: String,
    /// Names of the namespaces of its tools.
    namespaces: Vec<String>,
    items: Vec<Value>,
}

impl Output {
    fn new(document: &ResponseDocument) -> Self {
        let tools = document.asked.get("tools").and_then(Value::as_array);
        let namespaces = tools.into_iter().flatten();
        let namespaces = namespaces.filter(|tool| tool["type"] == "namespace");
        let names = namespaces.filter_map(|tool| tool["name"].as_str().map(str::to_owned));
        Self {
            answer: document.label.id.trim_start_matches("resp_").to_owned(),
            namespaces: names.collect(),
            items: Vec::new(),
        }
    }

    /// Returns the id of the next item, of a kind.
    fn id(&self, kind: &str) -> String {
        format!("{kind}_{}_{}", self.answer, self.items.len())
    }

    fn add_thought(&mut self, thought: &str, status: &'static str) {
        let item = self.thought(Some(thought), status);
        self.items.push(item);
    }

    /// Returns a thought, or the beginning of one, as the next item.
    fn thought(&self, thought: Option<&str>, status: &'static str) -> Value {
        let part = |text| json!({"type": "reasoning_text", "text": text});
        let content: Vec<Value> = thought.map(part).into_iter().collect();
        json!({
            "id": self.id("rs"), "type": "reasoning", "status": status, "summary": [],
            "content": content,
        })
    }

    fn add_text(&mut self, text: &str, status: &'static str) {
        let item = json!({
            "id": self.id("msg"), "type": "message", "status": status, "role": "assistant",
            "content": [part(text)],
        });
        self.items.push(item);
    }

    fn add_call(&mut self, name: &str, arguments: &str) {
        let item = self.call(name, arguments, "completed");
        self.items.push(item);
    }

    /// Returns a call as the next item.
    fn call(&self, name: &str, arguments: &str, status: &'static str) -> Value {
        let (namespace, name) = self.parts_of(name);
        let mut call = json!({
            "id": self.id("fc"), "type": "function_call", "status": status,
            "call_id": self.id("call"), "name": name, "arguments": arguments,
        });
        if let Some(namespace) = namespace {
            call["namespace"] = namespace.into();
        }
        call
    }

    /// Returns the namespace of a function, if it is in one, and its name there.
    fn parts_of<'a>(&self, name: &'a str) -> (Option<&'a str>, &'a str) {
        let parts = name.split_once('.');
        let known = parts.filter(|(space, _)| self.namespaces.iter().any(|it| it == space));
        known.map_or((None, name), |(space, name)| (Some(space), name))
    }
}

/// Returns a content part.
fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
