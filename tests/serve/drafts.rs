//! Drafted answers: the same answers, and the counts of drafts that clients get.

use serde_json::{Value, json};

use crate::client::Reply;
use crate::host::{Host, drafting, exact};

const CHAT: &str = "/v1/chat/completions";
const BARE: &str = "/v1/completions";

/// Returns a prompt that repeats itself, as does the answer after some tokens.
fn repeating(fields: Value) -> Value {
    let prompt = [5, 6, 7, 8].repeat(20);
    let mut body = json!({"prompt": prompt, "max_tokens": 100, "ignore_eos": true,
        "temperature": 0, "return_token_ids": true});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Numbers of drafted tokens of an answer that were accepted, and rejected.
fn drafted(usage: &Value) -> (u64, u64) {
    let details = &usage["completion_tokens_details"];
    let count = |name: &str| details[name].as_u64().unwrap();
    (
        count("accepted_prediction_tokens"),
        count("rejected_prediction_tokens"),
    )
}

/// Returns the usage at the end of a stream.
fn streamed_usage(reply: &Reply) -> Value {
    let events = reply.events();
    let last: Value = serde_json::from_str(events[events.len() - 2]).unwrap();
    last["usage"].clone()
}

fn token_ids(answer: &Value) -> &Value {
    &answer["choices"][0]["token_ids"]
}

#[test]
fn usage_has_the_drafted_tokens() {
    let plain = Host::serving(exact, |_| ());
    let drafting = Host::serving(drafting, |_| ());
    let expected = plain.post(BARE, &repeating(json!({}))).json();
    assert_eq!(drafted(&expected["usage"]), (0, 0));
    let answer = drafting.post(BARE, &repeating(json!({}))).json();
    assert_eq!(token_ids(&answer), token_ids(&expected));
    let (accepted, _) = drafted(&answer["usage"]);
    assert!((1..100).contains(&accepted), "{}", answer["usage"]);
    let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
    let usage = streamed_usage(&drafting.post(BARE, &repeating(stream)));
    assert_eq!(usage["completion_tokens"], 100);
    assert!(drafted(&usage).0 > 0, "{usage}");
    // The counts of several answers together.
    let several = drafting.post(BARE, &repeating(json!({"n": 3}))).json();
    let (accepted, _) = drafted(&several["usage"]);
    assert!((1..300).contains(&accepted), "{}", several["usage"]);
}

#[test]
fn a_request_says_whether_it_is_drafted() {
    let host = Host::serving(drafting, |_| ());
    let plain = host
        .post(BARE, &repeating(json!({"speculate": "off"})))
        .json();
    assert_eq!(drafted(&plain["usage"]), (0, 0));
    let chain = host
        .post(BARE, &repeating(json!({"speculate": "chain"})))
        .json();
    assert!(drafted(&chain["usage"]).0 > 0, "{}", chain["usage"]);
    assert_eq!(token_ids(&chain), token_ids(&plain));
    // A server that drafts nothing has no metrics for drafts.
    let host = Host::serving(exact, |_| ());
    let none = host
        .post(BARE, &repeating(json!({"speculate": "chain"})))
        .json();
    assert_eq!(drafted(&none["usage"]), (0, 0));
    assert_eq!(token_ids(&none), token_ids(&plain));
}

/// A client's prediction may make an answer come sooner, and changes nothing else.
#[test]
fn a_prediction_changes_no_answer() {
    let host = Host::serving(drafting, |_| ());
    let ask = |fields: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Remind me to call Ana at 5 pm."}],
            "max_tokens": 60, "ignore_eos": true, "return_token_ids": true, "temperature": 0.8, "seed": 3});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        let reply = host.post(CHAT, &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()
    };
    let plain = ask(json!({"speculate": "off"}));
    let text = plain["choices"][0]["message"]["content"].as_str().unwrap();
    let predicted = |content: Value| {
        let answer = ask(json!({"prediction": {"type": "content", "content": content}}));
        assert_eq!(token_ids(&answer), token_ids(&plain));
        drafted(&answer["usage"]).0
    };
    let right = predicted(json!(text));
    assert!(right > 20, "{right} tokens of a right prediction accepted");
    let parts = text.split_inclusive(' ');
    let parts = parts.map(|part| json!({"type": "text", "text": part}));
    predicted(parts.collect());
    for wrong in ["", "something else", "<|eot_id|>"] {
        predicted(json!(wrong));
    }
}

#[test]
fn metrics_count_what_was_drafted() {
    let host = Host::serving(drafting, |_| ());
    let usage = host.post(BARE, &repeating(json!({}))).json()["usage"].clone();
    let (accepted, rejected) = drafted(&usage);
    host.wait_for_metric(&format!("heg_accepted_tokens_total {accepted}"));
    host.wait_for_metric(&format!("heg_drafted_tokens_total {}", accepted + rejected));
    // The first token comes from the prompt.
    host.wait_for_metric(&format!("heg_decode_steps_total {}", 99 - accepted));
    let data = host.get("/dashboard.json").json();
    assert_eq!(data["accepted_tokens"], accepted);
    assert_eq!(data["decode_steps"], 99 - accepted);
}
