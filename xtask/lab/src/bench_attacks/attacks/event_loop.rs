//! Requests whose preparation takes long, beside a client that only sends health checks: its times are those of the
//! event loop.

use super::super::attack::{Attack, COMPLETIONS, posting};
use super::super::models::Model;
use super::super::other::Ask;
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn attacks() -> Vec<Attack> {
    vec![Attack {
        model: Model::Wide,
        ask: Ask::Health,
        budget: Some(DEADLINE),
        ..Attack::beside(
            "drafters",
            "03",
            "8 answers to 120 000 tokens in which one token has ever new successors",
            posting(COMPLETIONS, 1, &[body()]),
        )
    }]
}

/// The deadline of each request, as in the audit.
const DEADLINE: Duration = Duration::from_millis(1500);

fn body() -> Value {
    let prompt: Vec<usize> = (0..60_000).flat_map(|at| [10, 11 + at % 49_000]).collect();
    json!({
        "prompt": prompt, "max_tokens": 1, "n": 8, "priority": "proactive", "deadline_ms": 1500,
    })
}
