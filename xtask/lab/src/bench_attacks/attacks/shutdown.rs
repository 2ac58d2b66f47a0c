//! A shutdown during answers that take longer than the grace period: each client has to be told.

use super::super::attack::{Attack, COMPLETIONS, Finding};
use super::super::models::Model;
use super::super::scene::Scene;
use anyhow::Result;
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

pub(super) fn attacks() -> Vec<Attack> {
    vec![Attack {
        model: Model::Small,
        ends_server: true,
        ..Attack::steps(
            "shutdown",
            "27",
            "SIGTERM amid a stream, a whole answer and a queued one",
            terminated,
        )
    }]
}

fn terminated(scene: &Scene<'_>) -> Result<Vec<Finding>> {
    let body = |more: Value| -> Vec<u8> {
        let mut body = json!({
            "prompt": [5, 6, 7], "max_tokens": 8000, "ignore_eos": true, "n": 8,
        });
        if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
            body.extend(more.clone());
        }
        Scene::request(COMPLETIONS, &body)
    };
    let asked = [
        ("a stream", body(json!({ "stream": true }))),
        ("a whole answer", body(json!({}))),
        (
            "a queued answer",
            body(json!({ "n": 1, "priority": "proactive" })),
        ),
    ];
    let begin = Instant::now();
    let texts: Vec<Vec<u8>> = thread::scope(|scope| {
        let readers: Vec<_> = asked
            .iter()
            .map(|(_, request)| scope.spawn(|| until_closed(scene, request, begin)))
            .collect();
        thread::sleep(Duration::from_secs(1));
        scene.server.terminate();
        readers
            .into_iter()
            .map(|it| it.join().unwrap_or_default())
            .collect()
    });
    let took_s = begin.elapsed().as_secs_f64();
    let mut findings: Vec<Finding> = asked
        .iter()
        .zip(&texts)
        .map(|((what, _), text)| told(what, &String::from_utf8_lossy(text)))
        .collect();
    let claim = "all connections end within the grace and 5 s";
    let held = took_s < 1.0 + GRACE_S + 5.0;
    findings.push(Finding::new(claim, held, format!("{took_s:.1} s")));
    Ok(findings)
}

/// Reads everything from a connection until the server closes it.
fn until_closed(scene: &Scene<'_>, request: &[u8], begin: Instant) -> Vec<u8> {
    let Ok(mut wire) = scene.open(None) else {
        return Vec::new();
    };
    if wire.send(request).is_err() {
        return Vec::new();
    }
    wire.rest(&|| begin.elapsed() > Duration::from_secs(40))
}

/// Whether an answer was complete, or ended with a notice.
fn told(what: &str, text: &str) -> Finding {
    let end: String = {
        let last: Vec<char> = text.chars().rev().take(60).collect();
        last.into_iter().rev().collect()
    };
    let begins_well = text.starts_with("HTTP/1.1 200") || text.starts_with("HTTP/1.1 503");
    let is_ended = match what {
        "a stream" => text.contains("[DONE]") || text.contains("\"error\""),
        _ => text.contains("\r\n\r\n{") && text.trim_end().ends_with('}'),
    };
    let seen = format!(
        "{} bytes, the last ones `{}`",
        text.len(),
        end.escape_debug()
    );
    Finding::new(
        format!("{what} ends with a word"),
        begins_well && is_ended,
        seen,
    )
}

/// The grace period of a shutdown for running answers, from API.md.
const GRACE_S: f64 = 10.0;
