//! Turns between clients, and between two requests of one client: many long requests beside a short one, and a newer
//! request that must not lose to an older one.

use super::super::attack::{Attack, CHAT, COMPLETIONS, Finding, posting};
use super::super::models::Model;
use super::super::other::Ask;
use super::super::scene::Scene;
use super::super::server::OTHER;
use super::super::verdict::median;
use super::super::wire::{self, Ending, Reply, Wire};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        Attack {
            ask: Ask::Chat(8),
            lead: Duration::from_secs(2),
            ..Attack::beside(
                "long-requests",
                "08",
                "60 answers of 900 tokens at any time",
                posting(CHAT, 60, &[long()]),
            )
        },
        Attack::steps(
            "fair-starts",
            "08",
            "100 short requests beside 60 answers of 900 tokens",
            starts,
        ),
        Attack {
            model: Model::Wide,
            ..Attack::steps(
                "supersede",
                "09",
                "a newer, smaller request passes an older, larger one",
                supersede,
            )
        },
    ]
}

fn long() -> Value {
    json!({
        "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 900, "ignore_eos": true,
        "temperature": 1,
    })
}

/// Sends one short request after the other while another client's long ones wait, and compares the time to each first
/// token with that of a fair turn: its own work, plus a kernel and an iteration of the others.
fn starts(scene: &Scene<'_>) -> Result<Vec<Finding>> {
    const TRIES: usize = 100;
    let short = json!({
        "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1, "seed": 7,
    });
    let short = wire::post(CHAT, OTHER, &short.to_string());
    let start_ms = || timing_ms(&scene.answer(&short)?, "ttft_ms");
    let own_ms = median(&(0..TRIES).map(|_| start_ms()).collect::<Result<Vec<_>>>()?);
    let iterations_ms = Mutex::new(Vec::new());
    let tries = thread::scope(|threads| {
        for _ in 0..60 {
            threads.spawn(|| {
                let request = Scene::request(CHAT, &long());
                while !scene.is_over() {
                    // A request that is cancelled at the end has no timings.
                    if let Ok(reply) = scene.answer(&request)
                        && let Ok(ms) = timing_ms(&reply, "tpot_ms")
                    {
                        let all = iterations_ms.lock();
                        all.unwrap_or_else(PoisonError::into_inner).push(ms);
                    }
                }
            });
        }
        thread::sleep(Duration::from_secs(2));
        let tries = (0..TRIES).map(|_| start_ms()).collect::<Result<Vec<f64>>>();
        // Some of the long answers end before the others are cancelled.
        let begin = Instant::now();
        while iterations_ms.lock().is_ok_and(|all| all.is_empty()) && begin.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(50));
        }
        scene.end();
        tries
    })?;
    let iterations_ms = iterations_ms
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let iteration_ms = median(&iterations_ms);
    // The kernel that a request finds running belongs to a prompt as long as its own.
    let fair_ms = own_ms + own_ms + iteration_ms;
    let late = tries.iter().filter(|&&ms| ms > 1.2 * fair_ms).count();
    let longest = tries.iter().copied().fold(0.0, f64::max);
    let middle = median(&tries);
    let seen = format!(
        "{late} of {TRIES} later; alone {own_ms:.2} ms, an iteration {iteration_ms:.2} ms; beside them \
         {middle:.2} ms at the median and {longest:.2} ms at most"
    );
    Ok(vec![Finding::new(
        "each starts within 1.2 times its own work, a kernel and an iteration",
        late == 0,
        seen,
    )])
}

/// A value from the server's own `timings`.
fn timing_ms(reply: &Reply, name: &str) -> Result<f64> {
    let body = reply.json();
    let figure = body.pointer(&format!("/timings/{name}"));
    let figure = figure.and_then(Value::as_f64);
    figure.with_context(|| format!("no `{name}` in an answer of status {}", reply.status))
}

/// Chosen: several times what an answer of 900 tokens takes beside 59 others.
const PATIENCE: Duration = Duration::from_secs(30);

/// Counts how often the newer of two requests with one key is the one that is cancelled.
fn supersede(scene: &Scene<'_>) -> Result<Vec<Finding>> {
    const TRIES: usize = 10;
    let prompt: Vec<u64> = (0..120_000).map(|at| 5 + at % 1900).collect();
    let busy = json!({
        "prompt": prompt, "max_tokens": 1, "priority": "proactive", "deadline_ms": 1,
    });
    let keyed = |prompt: &[u64], metadata: usize| {
        json!({
            "prompt": prompt, "max_tokens": 2000, "ignore_eos": true, "supersede_key": "typing",
            "metadata": "x".repeat(metadata),
        })
    };
    let requests = [busy, keyed(&[3, 4, 5], 70_000), keyed(&[3, 4], 0)];
    let [busy, older, newer] = requests.map(|body| Scene::request(COMPLETIONS, &body));
    let mut wrong = 0;
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let crowd: Vec<Wire> = (0..12).map(|_| sent(scene, &busy)).collect::<Result<_>>()?;
        std::thread::sleep(Duration::from_millis(20));
        let first = sent(scene, &older)?;
        std::thread::sleep(Duration::from_millis(20));
        let second = sent(scene, &newer)?;
        let statuses = [status(first, scene), status(second, scene)];
        crowd.into_iter().for_each(|wire| {
            status(wire, scene);
        });
        wrong += usize::from(statuses[1] != Some(200));
        seen.push(statuses);
    }
    let seen = format!("given up in {wrong} of {TRIES} tries");
    Ok(vec![Finding::new(
        "the newer request is answered",
        wrong == 0,
        seen,
    )])
}

fn sent(scene: &Scene<'_>, request: &[u8]) -> Result<Wire> {
    let mut wire = scene.open(None)?;
    wire.send(request)?;
    Ok(wire)
}

fn status(mut wire: Wire, scene: &Scene<'_>) -> Option<u16> {
    match wire.reply(&|| scene.is_over()) {
        Ending::Answered(reply) => Some(reply.status),
        Ending::Cut | Ending::GaveUp => None,
    }
}
