//! The events of a streamed response.

use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::{Output, ResponseDocument, ResponseObject, part, status};
use crate::answering::{AnswerEnd, AnswerStats};
use crate::document::{EndStats, EventWriter, SaidToken, add_named};
use crate::echo::Echoed;
use crate::error::ApiError;
use crate::sending::Pieces;
use crate::tools::value_bytes;
use heg_runtime::FinishReason;
use heg_text::Said;

/// The writer of a response's events.
pub(crate) struct ResponseEvents {
    document: Box<ResponseDocument>,
    output: Output,
    /// The item that goes on, if one does.
    open: Option<OpenItem>,
    /// Number of events so far.
    events: usize,
}

/// An open item, with its text so far.
enum OpenItem {
    Thought(String),
    Text(String),
}

impl ResponseEvents {
    pub(crate) fn new(document: Box<ResponseDocument>) -> Self {
        Self {
            output: Output::new(&document),
            document,
            open: None,
            events: 0,
        }
    }

    /// Adds an event with these fields, and its number.
    fn add(&mut self, events: &mut Pieces, name: &str, fields: &impl Serialize) {
        #[derive(Serialize)]
        struct Event<'a, F> {
            r#type: &'a str,
            sequence_number: usize,
            #[serde(flatten)]
            fields: &'a F,
        }
        let event = Event {
            r#type: name,
            sequence_number: self.events,
            fields,
        };
        self.events += 1;
        add_named(events, name, &event);
    }

    /// Adds an event with the whole response.
    fn add_response(&mut self, events: &mut Pieces, name: &str, response: Box<RawValue>) {
        #[derive(Serialize)]
        struct Event<'a> {
            r#type: &'a str,
            sequence_number: usize,
            response: Box<RawValue>,
        }
        let event = Event {
            r#type: name,
            sequence_number: self.events,
            response,
        };
        self.events += 1;
        add_named(events, name, &event);
    }

    fn say(&mut self, said: Vec<Said>, events: &mut Pieces) {
        for part in said {
            match part {
                Said::Thought(thought) => self.say_thought(&thought, events),
                Said::Text(text) => self.say_text(&text, events),
                Said::Call(call) => {
                    self.end_open("completed", events);
                    self.say_call(&call.name, &call.arguments, events);
                }
            }
        }
    }

    fn say_thought(&mut self, piece: &str, events: &mut Pieces) {
        if !matches!(self.open, Some(OpenItem::Thought(_))) {
            self.end_open("completed", events);
            let item = self.output.thought(None, "in_progress");
            let fields = json!({"output_index": self.output.items.len(), "item": item});
            self.add(events, "response.output_item.added", &fields);
            self.open = Some(OpenItem::Thought(String::new()));
        }
        if let Some(OpenItem::Thought(thought)) = &mut self.open {
            thought.push_str(piece);
        }
        let fields = json!({
            "item_id": self.output.id("rs"), "output_index": self.output.items.len(),
            "content_index": 0, "delta": piece,
        });
        self.add(events, "response.reasoning_text.delta", &fields);
    }

    fn say_text(&mut self, piece: &str, events: &mut Pieces) {
        if !matches!(self.open, Some(OpenItem::Text(_))) {
            self.end_open("completed", events);
            self.open = Some(OpenItem::Text(String::new()));
            let (id, place) = (self.output.id("msg"), self.output.items.len());
            let item = json!({
                "id": id, "type": "message", "status": "in_progress", "role": "assistant",
                "content": [],
            });
            let fields = json!({"output_index": place, "item": item});
            self.add(events, "response.output_item.added", &fields);
            let fields = json!({
                "item_id": id, "output_index": place, "content_index": 0, "part": part(""),
            });
            self.add(events, "response.content_part.added", &fields);
        }
        if let Some(OpenItem::Text(text)) = &mut self.open {
            text.push_str(piece);
        }
        if piece.is_empty() {
            return;
        }
        let (id, place) = (self.output.id("msg"), self.output.items.len());
        let fields = json!({
            "item_id": id, "output_index": place, "content_index": 0, "delta": piece,
            "logprobs": [],
        });
        self.add(events, "response.output_text.delta", &fields);
    }

    /// Ends the item that goes on, if one does.
    fn end_open(&mut self, status: &'static str, events: &mut Pieces) {
        match self.open.take() {
            Some(OpenItem::Thought(thought)) => self.end_thought(&thought, status, events),
            Some(OpenItem::Text(text)) => self.end_text(&text, status, events),
            None => {}
        }
    }

    fn end_thought(&mut self, thought: &str, status: &'static str, events: &mut Pieces) {
        let fields = json!({
            "item_id": self.output.id("rs"), "output_index": self.output.items.len(),
            "content_index": 0, "text": thought,
        });
        self.add(events, "response.reasoning_text.done", &fields);
        self.output.add_thought(thought, status);
        self.add_done(events);
    }

    fn end_text(&mut self, text: &str, status: &'static str, events: &mut Pieces) {
        let (id, place) = (self.output.id("msg"), self.output.items.len());
        let fields = json!({
            "item_id": id, "output_index": place, "content_index": 0, "text": text, "logprobs": [],
        });
        self.add(events, "response.output_text.done", &fields);
        let fields = json!({
            "item_id": id, "output_index": place, "content_index": 0, "part": part(text),
        });
        self.add(events, "response.content_part.done", &fields);
        self.output.add_text(text, status);
        self.add_done(events);
    }

    fn say_call(&mut self, name: &str, arguments: &str, events: &mut Pieces) {
        let (id, place) = (self.output.id("fc"), self.output.items.len());
        let item = self.output.call(name, "", "in_progress");
        let fields = json!({"output_index": place, "item": item});
        self.add(events, "response.output_item.added", &fields);
        let fields = json!({"item_id": id, "output_index": place, "delta": arguments});
        self.add(events, "response.function_call_arguments.delta", &fields);
        let fields = json!({
            "item_id": id, "output_index": place, "name": self.output.parts_of(name).1,
            "arguments": arguments,
        });
        self.add(events, "response.function_call_arguments.done", &fields);
        self.output.add_call(name, arguments);
        self.add_done(events);
    }

    /// Adds the event of the last item's end.
    fn add_done(&mut self, events: &mut Pieces) {
        let item = self.output.items.last().cloned();
        let place = self.output.items.len().saturating_sub(1);
        let fields = json!({"output_index": place, "item": item});
        self.add(events, "response.output_item.done", &fields);
    }
}

impl EventWriter for ResponseEvents {
    fn begin(&mut self, _: &AnswerStats) -> Pieces {
        let mut events = Pieces::default();
        for name in ["response.created", "response.in_progress"] {
            let response = to_raw_value(&self.document.object("in_progress", &[]));
            self.add_response(&mut events, name, response.unwrap_or_default());
        }
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
        if self.open.is_none() && self.output.items.is_empty() {
            self.say_text("", &mut events);
        }
        self.end_open(status(end), &mut events);
        let items = std::mem::take(&mut self.output.items);
        let text = self.document.finish(&items, end, &stats.own, None);
        let text = String::from_utf8_lossy(&text).into_owned();
        let name = match end.reason {
            FinishReason::Stop => "response.completed",
            FinishReason::Length => "response.incomplete",
        };
        let response = RawValue::from_string(text).unwrap_or_default();
        self.add_response(&mut events, name, response);
        events
    }

    fn failed(&mut self, error: &ApiError) -> Pieces {
        let mut events = Pieces::default();
        let message = error.to_string();
        let error = json!({"code": error.code().unwrap_or("server_error"), "message": message});
        let object = ResponseObject {
            error: Some(error),
            ..self.document.object("failed", &self.output.items)
        };
        let response = to_raw_value(&object).unwrap_or_default();
        self.add_response(&mut events, "response.failed", response);
        events
    }

    fn repeated_bytes(&self) -> usize {
        let said: usize = self.output.items.iter().map(value_bytes).sum();
        let open = match &self.open {
            Some(OpenItem::Thought(text) | OpenItem::Text(text)) => text.len(),
            None => 0,
        };
        self.document.kept_bytes() + said + open
    }
}
