//! Questions to a server, by token ids: what it says of their times, and the times at which its words come.

use crate::bench_attacks::wire::{self, Ending, Reply, Wire};
use anyhow::{Context, Result};
use heg_spec::Seeded;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use xtask::fail::Fail;

/// A prompt and the number of tokens to answer it with.
#[derive(Debug, Clone)]
pub(super) struct Question<'q> {
    pub(super) prompt: &'q [u32],
    pub(super) answer: usize,
    /// The client's token.
    pub(super) client: &'static str,
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) text: String,
    /// Time from the arrival of the question to the first token, in ms, by the server's clock.
    pub(super) first_ms: f64,
    /// Tokens of the prompt that were not read.
    pub(super) cached: u64,
}

impl Question<'_> {
    /// Asks, and waits for the whole answer.
    pub(super) fn ask(&self, port: u16) -> Result<Answer> {
        let request = wire::post(PATH, self.client, &self.body(false).to_string());
        match wire::exchange(port, &request, PATIENCE) {
            Ending::Answered(reply) if reply.status == 200 => answer(&reply),
            ending => Err(failed(&ending).into()),
        }
    }

    /// Asks, and returns the times at which the tokens of the answer came.
    pub(super) fn arrivals(&self, port: u16) -> Result<Vec<Instant>> {
        let mut wire = Wire::open(port, None).context("cannot connect to the server")?;
        let request = wire::post(PATH, self.client, &self.body(true).to_string());
        wire.send(&request).context("cannot send a question")?;
        let begin = Instant::now();
        let mut arrivals = Vec::new();
        loop {
            let part = wire.next_part(&|| begin.elapsed() > PATIENCE);
            let part = part.map_err(|ending| failed(&ending))?;
            let said = String::from_utf8_lossy(&part);
            if said.contains("data: {") {
                arrivals.push(Instant::now());
            }
            if said.contains("[DONE]") {
                return Ok(arrivals);
            }
        }
    }

    fn body(&self, stream: bool) -> Value {
        json!({
            "prompt": self.prompt, "max_tokens": self.answer, "temperature": 0, "stream": stream,
            "ignore_eos": true,
        })
    }
}

/// Token ids that every vocabulary has, in an order of their own for each seed.
pub(super) fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut seeded = Seeded::new(seed);
    (0..count).map(|_| 3 + seeded.below(250) as u32).collect()
}

fn answer(reply: &Reply) -> Result<Answer> {
    let said = reply.json();
    let text = said.pointer("/choices/0/text").and_then(Value::as_str);
    let first_ms = said.pointer("/timings/ttft_ms").and_then(Value::as_f64);
    let cached = said.pointer("/usage/prompt_tokens_details/cached_tokens");
    Ok(Answer {
        text: text.context("the answer has no text")?.to_owned(),
        first_ms: first_ms.context("the answer has no times")?,
        cached: cached.and_then(Value::as_u64).unwrap_or(0),
    })
}

fn failed(ending: &Ending) -> Fail {
    Fail::check(match ending {
        Ending::Answered(reply) => {
            format!("the server answered {}: {}", reply.status, reply.reason())
        }
        Ending::Cut => "the server closed the connection".to_owned(),
        Ending::GaveUp => format!("no answer within {} s", PATIENCE.as_secs()),
    })
}

const PATH: &str = "/v1/completions";

/// Chosen: several times what a small machine needs for 32 768 tokens.
const PATIENCE: Duration = Duration::from_secs(900);
