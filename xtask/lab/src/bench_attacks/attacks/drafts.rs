//! Drafts: the memory that waiting requests hold for them, and what they reveal of other clients' answers.

use super::super::attack::{Attack, COMPLETIONS, Finding, posting};
use super::super::models::Model;
use super::super::scene::{Scene, answer_of};
use super::super::server::{ATTACKER, AttackedServer, OTHER};
use super::super::wire;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        Attack {
            model: Model::Wide,
            lead: Duration::from_secs(3),
            rounds_max: 1,
            ..Attack::beside(
                "draft-memory",
                "04",
                "64 waiting requests of 100 000 tokens",
                posting(COMPLETIONS, 64, &[waiting()]),
            )
        },
        Attack {
            options: vec!["--share-prefixes"],
            ..Attack::steps(
                "answers-of-others",
                "21",
                "guesses of another client's answer, drafted or not",
                guess,
            )
        },
    ]
}

fn waiting() -> Value {
    let prompt: Vec<u64> = (0..100_000_u64)
        .map(|at| 5 + (at * 7919 + at * at) % 1900)
        .collect();
    json!({ "prompt": prompt, "max_tokens": 500, "ignore_eos": true, "priority": "proactive" })
}

/// Compares the drafted tokens of guesses after the other client got the guessed answer with those on a fresh server.
fn guess(scene: &Scene<'_>) -> Result<Vec<Finding>> {
    let answer = secret(scene.server)?;
    let told = drafted(scene.server, &answer)?;
    let fresh = scene.start.server()?;
    let untold = drafted(&fresh, &answer)?;
    let seen = format!("{told} drafted tokens after the answer, {untold} without it");
    let claim = "drafts do not tell of others' answers";
    Ok(vec![Finding::new(claim, told == untold, seen)])
}

/// Makes an answer that only the other client has.
fn secret(server: &AttackedServer) -> Result<Vec<Value>> {
    let body = json!({
        "prompt": [504, 365, 1234, 777, 48], "max_tokens": 80, "ignore_eos": true,
        "temperature": 0.9, "seed": 5, "return_token_ids": true,
    });
    let request = wire::post(COMPLETIONS, OTHER, &body.to_string());
    let reply = answer_of(server, &request)?.json();
    let ids = reply
        .pointer("/choices/0/token_ids")
        .and_then(Value::as_array);
    ids.cloned().context("the answer has no token ids")
}

/// Number of tokens drafted for ten guesses, right or wrong.
fn drafted(server: &AttackedServer, answer: &[Value]) -> Result<u64> {
    let mut all = 0;
    for guess in answer.windows(12).step_by(4).take(10) {
        let body = json!({
            "prompt": guess, "max_tokens": 8, "ignore_eos": true, "temperature": 0,
        });
        let request = wire::post(COMPLETIONS, ATTACKER, &body.to_string());
        let reply = answer_of(server, &request)?.json();
        let details = reply
            .pointer("/usage/completion_tokens_details")
            .context("the answer does not count drafted tokens")?;
        let count = |kind: &str| details[kind].as_u64().unwrap_or_default();
        all += count("accepted_prediction_tokens") + count("rejected_prediction_tokens");
    }
    Ok(all)
}
