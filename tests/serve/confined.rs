//! Untrusted work for third-party compilers: it harms only its sender, and ends with it.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use heg_runtime::engine::EngineOptions;
use heg_server::{Token, Tokens};
use heg_spec::shipped;
use heg_tests::model_folder::ModelFolder;
use heg_tests::{Workbench, fixture};
use serde_json::{Map, Value, json};

use crate::host::{Host, served_by, wait_until};

const CHAT: &str = "/v1/chat/completions";
const OURS: &str = "authorization: Bearer ours\r\n";
const THEIRS: &str = "authorization: Bearer theirs\r\n";

fn tokens() -> Tokens {
    let mut tokens = Tokens::default();
    for text in ["ours", "theirs"] {
        tokens.add(Token::new(text).unwrap(), None).unwrap();
    }
    tokens
}

fn ask(text: &str, more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 4});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

fn in_form(schema: &Value) -> Value {
    ask(
        "hi",
        &json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
    )
}

/// Definitions that refer to their successor twice, where it is copied.
fn doubling(count: usize) -> Value {
    let hold = |at: usize| json!({"type": "object", "$ref": format!("#/$defs/d{at}")});
    let mut defs = Map::new();
    for at in 0..count {
        let held = json!({"type": "object", "properties": {"a": hold(at + 1), "b": hold(at + 1)}});
        defs.insert(format!("d{at}"), held);
    }
    defs.insert(format!("d{count}"), json!({"type": "object"}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

/// Returns a form within all limits on size, for which the compiler takes more time than it may.
fn slow() -> Value {
    let constants: Vec<String> = (0..19_000).map(|at| format!("c{at}")).collect();
    let words: Vec<String> = (0..400).map(|at| format!("d{at}")).collect();
    let pattern = format!("^(c[0-9]+|{})$", words.join("|"));
    json!({"allOf": [{"enum": constants}, {"type": "string", "pattern": pattern}]})
}

#[test]
fn forms_that_multiply_are_refused_with_the_bound() {
    let host = Host::new();
    let patterns: Map<_, _> = (0..500)
        .map(|at| (format!("^b{at:x}$"), json!({})))
        .collect();
    let constants: Vec<String> = (0..19_000).map(|at| format!("b{at:x}")).collect();
    let mut parameters = doubling(18);
    let first = parameters["$defs"]["d0"].clone();
    parameters["properties"] = first["properties"].clone();
    parameters["type"] = json!("object");
    let tool = json!({"name": "f", "description": "f", "parameters": parameters});
    let tool = json!({"type": "function", "function": tool});
    let hostile = [
        (in_form(&doubling(40)), "found far more"),
        (in_form(&doubling(14)), "at most 50000 values"),
        (
            ask("hi", &json!({"tools": [tool], "tool_choice": "required"})),
            "at most 50000 values",
        ),
        (
            in_form(&json!({"type": "object", "patternProperties": patterns})),
            "at most 5000 pairs",
        ),
        (
            in_form(
                &json!({"type": "string", "pattern": "(b)*".repeat(20_000), "enum": constants}),
            ),
            "at most 1000000",
        ),
    ];
    for (body, why) in hostile {
        let reply = host.post(CHAT, &body);
        assert_eq!(reply.status, 400, "{}", reply.body);
        let message = reply.json()["error"]["message"].to_string();
        assert!(message.contains(why), "{message}");
    }
    assert_eq!(
        host.post(CHAT, &in_form(&json!({"type": "integer"})))
            .status,
        200
    );
}

/// While it is compiled, others have their forms; the second time it is known.
#[test]
fn forms_that_take_too_much_cost_their_sender_only() {
    let host = Host::with(|options| options.tokens = tokens());
    let body = in_form(&slow());
    thread::scope(|scope| {
        let hostile = scope.spawn(|| host.post_with(CHAT, OURS, &body));
        for at in 0..5 {
            let schema = json!({"type": "integer", "minimum": at});
            assert_eq!(host.post_with(CHAT, THEIRS, &in_form(&schema)).status, 200);
        }
        let reply = hostile.join().unwrap();
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(
            reply.body.contains("to compile; use a simpler form"),
            "{}",
            reply.body
        );
    });
    let again = host.post_with(CHAT, OURS, &body);
    assert_eq!(again.status, 400, "{}", again.body);
}

#[test]
fn a_wait_for_a_form_ends_with_its_deadline() {
    let host = Host::new();
    let mut body = in_form(&slow());
    body["deadline_ms"] = json!(150);
    let reply = host.post(CHAT, &body);
    assert_eq!(reply.status, 504, "{}", reply.body);
    assert_eq!(reply.json()["error"]["code"], "deadline_exceeded");
    assert_eq!(
        host.post(CHAT, &in_form(&json!({"type": "null"}))).status,
        200
    );
}

/// The same client's next form does not wait for one that it has abandoned.
#[test]
fn a_sender_that_is_gone_leaves_its_place() {
    let host = Host::new();
    let mut connection = host.open();
    connection
        .post(CHAT, "", &in_form(&slow()).to_string())
        .unwrap();
    drop(connection);
    let begin = Instant::now();
    let reply = host.post(CHAT, &in_form(&json!({"type": "null"})));
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(
        begin.elapsed() < Duration::from_secs(30),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn answers_of_one_request_have_one_form() {
    let host = Host::new();
    let mut body = in_form(&json!({"enum": ["a", "b"]}));
    body["n"] = json!(8);
    let reply = host.post(CHAT, &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    for choice in reply.json()["choices"].as_array().unwrap() {
        let text = choice["message"]["content"].as_str().unwrap();
        assert!([r#""a""#, r#""b""#].contains(&text), "{text}");
    }
}

/// Returns a server of tiny-agent with another template or tokenizer.
fn serving(folder: &Path, change: impl FnOnce(&ModelFolder)) -> Host {
    let model = ModelFolder::copy(&fixture("tiny-agent"), &folder.join("model")).unwrap();
    change(&model);
    let workbench = Workbench::new().unwrap();
    let compiled = workbench
        .compile(model.path(), "hostile", |_| ())
        .unwrap()
        .0;
    let bundle = folder.join("hostile.heg");
    std::fs::copy(compiled, &bundle).unwrap();
    Host::serving(
        move || {
            let policy = shipped::policy("agent-xpu").unwrap();
            served_by(&bundle, "host-cpu", policy, EngineOptions::default())
        },
        |_| (),
    )
}

fn doubled(times: usize) -> String {
    format!(
        "{{% set ns = namespace(x='a') %}}{{% for i in range({times}) %}}{{% set ns.x = ns.x ~ ns.x %}}{{% endfor %}}"
    )
}

#[test]
fn a_template_that_takes_too_much_costs_its_sender_only() {
    let folder = tempfile::tempdir().unwrap();
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(400) %}{% for j in range(500) %}\
                {% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
    let text = "{{ messages[0].content }}";
    let large = doubled(40);
    let template = format!(
        "{{% if messages[0].content == 'deep' %}}{deep}{{% elif messages[0].content == 'large' %}}{large}{{% endif %}}{text}"
    );
    let host = serving(folder.path(), |model| {
        std::fs::write(model.file("chat_template.jinja"), template).unwrap();
    });
    for (text, why) in [("deep", "nests too deeply"), ("large", "too much memory")] {
        let reply = host.post(CHAT, &ask(text, &json!({})));
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(
            reply.body.contains(why) && reply.body.contains("chat template"),
            "{}",
            reply.body
        );
        assert_eq!(host.post(CHAT, &ask("hi", &json!({}))).status, 200);
    }
}

/// The server ends with an error at its start instead of at its first request.
#[test]
fn a_bundle_that_makes_no_prompt_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let host = serving(folder.path(), |model| {
        std::fs::write(model.file("chat_template.jinja"), doubled(40)).unwrap();
    });
    wait_until("the server ends", || host.has_ended());
    let error = host.end().unwrap_err();
    assert!(
        error.to_string().contains("text side cannot be used"),
        "{error}"
    );
    assert_eq!(error.exit_status() as u8, 3);
}
