//! The cases of `cases.json`: requests to every dialect, each with the status and the type of the answer or error that
//! the original of the dialect gives.
//!
//! A case has a `route` below `/v1/`, and one of `with` (fields that replace those of a request that is answered; null
//! takes one out), `raw` (the body), `raw_bytes` (its length) and `nested` (the depth of its messages). It may have a
//! `method` and the `headers` that take the place of those of a client. A `type` of null is for objects without one.

use serde_json::{Value, json};

use heg_server::Token;

use crate::client::Reply;
use crate::host::Host;

/// Headers of a client that every route accepts.
pub(crate) const HEADERS: &str =
    "authorization: Bearer s3cret\r\nanthropic-version: 2023-06-01\r\n";

/// Returns a request that is answered on a route.
fn answered(route: &str) -> Value {
    let messages = json!([{"role": "user", "content": "Remind me to call Ana at 5 pm."}]);
    match route {
        "messages" | "messages/count_tokens" | "chat/completions" => {
            json!({"model": "tiny-agent", "max_tokens": 16, "messages": messages, "temperature": 0})
        }
        "responses" => json!({
            "model": "tiny-agent", "max_output_tokens": 16, "input": "Remind me to call Ana at 5 pm.",
            "temperature": 0,
        }),
        _ => json!({"model": "tiny-agent", "max_tokens": 4, "prompt": "The cat"}),
    }
}

/// Returns the path of a case's route, which may be a short name.
fn path(route: &str) -> &str {
    match route {
        "chat" => "chat/completions",
        "count_tokens" => "messages/count_tokens",
        other => other,
    }
}

fn body(case: &Value, path: &str) -> String {
    if let Some(raw) = case["raw"].as_str() {
        return raw.to_owned();
    }
    if let Some(bytes) = case["raw_bytes"].as_u64() {
        return " ".repeat(bytes as usize);
    }
    if let Some(depth) = case["nested"].as_u64() {
        return format!("{{\"messages\":{}", "[".repeat(depth as usize));
    }
    let mut body = answered(path);
    for (name, value) in case["with"].as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body.to_string()
}

fn ask(host: &Host, case: &Value) -> Reply {
    let path = path(case["route"].as_str().unwrap());
    let method = case["method"].as_str().unwrap_or("POST");
    let headers = match case["headers"].as_object() {
        None => HEADERS.to_owned(),
        Some(given) => given
            .iter()
            .map(|(name, value)| format!("{name}: {}\r\n", value.as_str().unwrap()))
            .collect(),
    };
    let body = body(case, path);
    let length = body.len();
    let request = format!(
        "{method} /v1/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    host.send(request.as_bytes())
}

/// Returns the type of an answer's object, or of an error in the form of the route's API; `None` if the reply has not
/// that form.
fn kind<'a>(reply: &'a Value, route: &str) -> Option<&'a str> {
    if reply["error"].is_null() {
        return reply["object"].as_str().or(reply["type"].as_str());
    }
    let is_anthropics = route.starts_with("messages") || route == "count_tokens";
    let fields: Vec<&str> = reply["error"]
        .as_object()?
        .keys()
        .map(String::as_str)
        .collect();
    let expected = match is_anthropics {
        true => &["type", "message"][..],
        false => &["message", "type", "param", "code"],
    };
    let has_type = reply["type"] == "error";
    (fields == expected && has_type == is_anthropics).then(|| reply["error"]["type"].as_str())?
}

#[test]
fn every_case_gets_the_status_of_the_original() {
    let host = Host::with(|options| {
        options.tokens = Token::new("s3cret").unwrap().into();
        options.limits.body_bytes = Some(100_000);
    });
    let cases: Vec<Value> = serde_json::from_str(include_str!("cases.json")).unwrap();
    assert!(cases.len() >= 120, "{}", cases.len());
    let mut wrong = String::new();
    for case in &cases {
        let reply = ask(&host, case);
        let object = reply.json();
        let found = kind(&object, case["route"].as_str().unwrap());
        if case["status"] != reply.status || case["type"].as_str() != found {
            wrong.push_str(&format!("{case}\n  {} {}\n", reply.status, reply.body));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
