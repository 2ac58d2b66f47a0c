//! Many connections that repeat cheap requests.

use super::super::attack::{Attack, COMPLETIONS};
use super::super::scene::Scene;
use super::super::server::ATTACKER;
use super::super::wire::{self, Ending};
use serde_json::json;
use std::thread;
use std::time::{Duration, Instant};

pub(super) fn attacks() -> Vec<Attack> {
    let mut all = Vec::new();
    let floods = [
        (
            "metrics-64",
            "64 connections that ask /metrics",
            "/metrics",
            64,
        ),
        (
            "metrics-1000",
            "1 000 connections that ask /metrics",
            "/metrics",
            1000,
        ),
        (
            "healthz-64",
            "64 connections that ask /healthz",
            "/healthz",
            64,
        ),
        (
            "healthz-1000",
            "1 000 connections that ask /healthz",
            "/healthz",
            1000,
        ),
    ];
    for (name, about, path, connections) in floods {
        all.push(Attack {
            lead: Duration::from_secs(1),
            ..Attack::beside(name, "05", about, move |scene| {
                flood(scene, path, connections)
            })
        });
    }
    all.push(Attack {
        lead: Duration::from_secs(1),
        ..Attack::beside(
            "metrics-busy",
            "05b",
            "64 connections that ask /metrics beside 8 long answers",
            |scene| {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        while !scene.is_over() {
                            scene.ask(&Scene::request(COMPLETIONS, &long()));
                        }
                    });
                    flood(scene, "/metrics", 64);
                });
            },
        )
    });
    all
}

fn long() -> serde_json::Value {
    json!({ "prompt": [5, 6, 7], "max_tokens": 900, "ignore_eos": true, "n": 8 })
}

/// Repeats a request on each of many connections as soon as the previous answer has come.
fn flood(scene: &Scene<'_>, path: &str, connections: usize) {
    let request = wire::get(path, ATTACKER);
    thread::scope(|scope| {
        for _ in 0..connections {
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            let spawned = thread.spawn_scoped(scope, || {
                while !scene.is_over() {
                    ask_on(scene, &request);
                }
            });
            if spawned.is_err() {
                // The machine has no more threads.
                return;
            }
        }
    });
}

/// Repeats a request on one connection until it is closed.
fn ask_on(scene: &Scene<'_>, request: &[u8]) {
    let begin = Instant::now();
    let Ok(mut wire) = scene.open(None) else {
        scene.record(begin, &Ending::Cut);
        return scene.pause(Duration::from_millis(200));
    };
    if wire.look_seldom().is_err() {
        return;
    }
    while !scene.is_over() {
        let begin = Instant::now();
        if wire.send(request).is_err() {
            return;
        }
        let ending = wire.reply(&|| scene.is_over());
        match ending {
            Ending::Answered(_) => scene.record(begin, &ending),
            // A server may close a connection with too many requests before it answers.
            Ending::Cut | Ending::GaveUp => return,
        }
    }
}

/// Chosen: the read buffer's 64 KiB, with room to spare.
const STACK_BYTES: usize = 512 << 10;
