//! The other client: it sends short requests one after the other, alone and beside an attack, and its times are
//! measured.

use super::server::OTHER;
use super::wire::{self, Ending};
use serde::Serialize;
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A kind of request of the other client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// A chat of one word, with an answer of this number of tokens.
    Chat(u32),
    /// The same with a new form each time, so that it has to be compiled.
    Form,
    /// A health check, whose time shows the delay of the event loop.
    Health,
}

/// The times of some requests, one after the other.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Block {
    /// Times to complete answers, in ms; for a request without an answer, the time that it waited.
    pub(super) times_ms: Vec<f64>,
    /// Requests that were not answered as they would be alone: the status, or the kind of failure.
    pub(super) failures: Vec<String>,
}

/// The conditions that end a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockEnd {
    pub(super) requests: usize,
    pub(super) span: Duration,
}

impl Ask {
    fn request(self) -> Vec<u8> {
        let chat = |more: serde_json::Value, tokens: u32| {
            let mut body = json!({
                "messages": [{ "role": "user", "content": "hi" }], "max_tokens": tokens,
            });
            if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
                body.extend(more.clone());
            }
            wire::post("/v1/chat/completions", OTHER, &body.to_string())
        };
        match self {
            Self::Chat(tokens) => chat(json!({}), tokens),
            Self::Form => {
                let name = format!("field{}", FORMS.fetch_add(1, Ordering::Relaxed));
                let schema = json!({
                    "type": "object", "properties": { name: { "type": "boolean" } },
                });
                let format = json!({
                    "type": "json_schema", "json_schema": { "name": "x", "schema": schema },
                });
                chat(
                    json!({ "response_format": format, "deadline_ms": FORM_DEADLINE_MS }),
                    2,
                )
            }
            Self::Health => wire::get("/healthz", OTHER),
        }
    }

    /// Sends requests one after the other until there were enough or the time is over, and at least one.
    pub(super) fn block(self, port: u16, end: BlockEnd) -> Block {
        let begin = Instant::now();
        let mut block = Block::default();
        loop {
            let asked = Instant::now();
            let ending = wire::exchange(port, &self.request(), PATIENCE);
            block.times_ms.push(asked.elapsed().as_secs_f64() * 1e3);
            match ending {
                Ending::Answered(reply) if reply.status == 200 => {}
                Ending::Answered(reply) => {
                    let failure = format!("{} {}", reply.status, reply.reason());
                    block.failures.push(failure);
                }
                Ending::Cut => {
                    block.failures.push("no answer".to_owned());
                    // The server may have ended, and would get thousands of requests.
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ending::GaveUp => block.failures.push(format!("none in {PATIENCE:?}")),
            }
            if block.times_ms.len() >= end.requests || begin.elapsed() > end.span {
                return block;
            }
        }
    }
}

/// Number of forms sent so far, so that no two are the same.
static FORMS: AtomicU64 = AtomicU64::new(0);

/// The deadline of the audit's request beside a hostile schema.
const FORM_DEADLINE_MS: u32 = 2000;

/// Chosen: twenty times the goal for a request beside an attack.
const PATIENCE: Duration = Duration::from_secs(10);
