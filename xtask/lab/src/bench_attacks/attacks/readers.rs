//! Clients that read slowly: answers that were produced and not sent, streams that outlive their generation, and an
//! answer that counts as idle.

use super::super::attack::{Attack, COMPLETIONS, Finding, posting};
use super::super::models::Model;
use super::super::scene::Scene;
use super::super::server::{OPERATOR, OTHER};
use super::super::wire::{self, Wire};
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        Attack {
            model: Model::Small,
            lead: Duration::from_secs(25),
            rounds_max: 1,
            ..Attack::beside(
                "unsent-answers",
                "11",
                "answers of megabytes that are read at a trickle",
                hoard,
            )
        },
        Attack {
            model: Model::Small,
            ..Attack::beside(
                "read-answers",
                "16",
                "the same answers, each read whole before the next",
                posting(COMPLETIONS, 1, &[large(900)]),
            )
        },
        Attack {
            model: Model::Small,
            files: FEW_FILES,
            ..Attack::steps(
                "idle-eviction",
                "17",
                "a slow reader and newcomers at the limit of connections",
                evicted,
            )
        },
        Attack {
            model: Model::Small,
            options: vec!["--queue", "8"],
            ..Attack::steps(
                "slow-streams",
                "06",
                "14 streams that are read at a trickle, with 8 places",
                streams,
            )
        },
    ]
}

/// A request whose answer is more than a thousand times as large.
fn large(tokens: u64) -> Value {
    let prompt: Vec<u64> = (0..tokens).map(|at| 5 + at * 7919 % 50).collect();
    json!({ "prompt": prompt, "max_tokens": 1, "echo": true, "logprobs": 5, "n": 8 })
}

/// Requests large answers as fast as they come, and reads a little of each now and then.
fn hoard(scene: &Scene<'_>) {
    let request = Scene::request(COMPLETIONS, &large(HOARDED_TOKENS));
    std::thread::scope(|scope| {
        for _ in 0..HOARDERS {
            scope.spawn(|| {
                let mut held: Vec<Wire> = Vec::new();
                while !scene.is_over() && held.len() < HOARD {
                    let begin = Instant::now();
                    let Ok(mut wire) = scene.open(Some(SMALL_BUFFER_BYTES)) else {
                        return;
                    };
                    if wire.send(&request).is_err() {
                        return;
                    }
                    match wire.head(&|| scene.is_over()) {
                        Ok(head) if head.status == 200 => held.push(wire),
                        Ok(_) => {
                            scene.record(begin, &wire.reply(&|| scene.is_over()));
                            scene.pause(Duration::from_millis(250));
                        }
                        Err(ending) => scene.record(begin, &ending),
                    }
                    for wire in &mut held {
                        // A server may close connections that read too slowly.
                        let _ = wire.skip(1000);
                    }
                }
                while !scene.is_over() {
                    scene.pause(Duration::from_millis(100));
                }
                held.into_iter().for_each(Wire::close);
            });
        }
    });
}

/// Chosen: more would wait for each other.
const HOARDERS: usize = 2;

/// Tokens of each prompt. Chosen: shorter ones than the audit's, whose answers come faster for their size.
const HOARDED_TOKENS: u64 = 3500;

/// Most answers that a hoarder holds: together half a gigabyte.
const HOARD: usize = 70;

/// A receive buffer so small that the answer stays with the server.
const SMALL_BUFFER_BYTES: usize = 4096;

/// Number of files that leaves a server few connections, as in the audit.
const FEW_FILES: u64 = 520;

/// Reads a large answer slowly while newcomers want its place.
fn evicted(scene: &Scene<'_>) -> Result<Vec<Finding>> {
    let mut wire = scene.open(Some(64 << 10))?;
    wire.send(&Scene::request(COMPLETIONS, &large(7000)))?;
    let begin = Instant::now();
    let is_over = || begin.elapsed() > Duration::from_secs(40);
    let Ok(head) = wire.head(&is_over) else {
        bail!("the large answer did not begin");
    };
    // Newcomers that are refused a connection have served their purpose.
    let newcomers: Vec<_> = (0..8).filter_map(|_| scene.open(None).ok()).collect();
    let whole_bytes = head.body_bytes.unwrap_or_default();
    std::thread::sleep(Duration::from_millis(500));
    let ending = wire.reply(&is_over);
    drop(newcomers);
    let seen = match &ending {
        wire::Ending::Answered(reply) => format!("{} of {whole_bytes} bytes", reply.body.len()),
        other => format!(
            "status {}, then {other:?} of {whole_bytes} bytes",
            head.status
        ),
    };
    let held = matches!(ending, wire::Ending::Answered(reply) if reply.status == 200);
    Ok(vec![Finding::new("the answer comes whole", held, seen)])
}

/// Holds streams whose generation has finished, and requests more.
fn streams(scene: &Scene<'_>) -> Result<Vec<Finding>> {
    let body = json!({
        "prompt": [3, 4, 5], "stream": true, "logprobs": 5, "max_tokens": 8000,
        "ignore_eos": true, "return_token_ids": true,
    });
    let request = Scene::request(COMPLETIONS, &body);
    let mut held = Vec::new();
    for _ in 0..14 {
        let mut wire = scene.open(Some(SMALL_BUFFER_BYTES))?;
        wire.send(&request)?;
        let begin = Instant::now();
        if wire
            .head(&|| begin.elapsed() > SETTLED)
            .is_ok_and(|head| head.status == 200)
        {
            held.push(wire);
        }
    }
    let begin = Instant::now();
    let mut live = live_requests(scene)?;
    while live > 0 && begin.elapsed() < SETTLED {
        std::thread::sleep(Duration::from_millis(200));
        for wire in &mut held {
            // The server may have closed it by now.
            let _ = wire.skip(2000);
        }
        live = live_requests(scene)?;
    }
    let short = json!({ "prompt": [3, 4], "max_tokens": 1 });
    let own = scene.answer(&Scene::request(COMPLETIONS, &short))?;
    let other = scene.answer(&wire::post(COMPLETIONS, OTHER, &short.to_string()))?;
    let streams = held.len();
    let seen = |status: u16| format!("{status}, with {streams} streams held and {live} live");
    Ok(vec![
        Finding::new(
            "a place is free when the engine has finished",
            own.status == 200 && live == 0,
            seen(own.status),
        ),
        Finding::new(
            "another client is let in",
            other.status == 200,
            seen(other.status),
        ),
    ])
}

/// Chosen: several times what fourteen answers of 8 000 tokens of the small model take.
const SETTLED: Duration = Duration::from_secs(30);

/// Requests in the engine, by the server's own count.
fn live_requests(scene: &Scene<'_>) -> Result<u64> {
    let reply = scene.answer(&wire::get("/metrics", OPERATOR))?;
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    let counts: Vec<f64> = text
        .lines()
        .filter(|line| line.starts_with("heg_live_requests{"))
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    // Without the gauge, a count of zero would be meaningless.
    ensure!(!counts.is_empty(), "`/metrics` has no `heg_live_requests`");
    Ok(counts.iter().sum::<f64>() as u64)
}
