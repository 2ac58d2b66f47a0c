//! Thoughts of a model (`heg_tests::thinker`), apart from its answer.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use heg_server::ServedModel;
use heg_spec::shipped;
use heg_tests::Workbench;
use heg_tests::thinker::{self, ANSWER, QUESTION, SYSTEM, THOUGHT};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::clients::{run_on_or_skip, said};
use crate::host::{Host, served_by};
use crate::messages::{COUNT, PATH, VERSION, named_events, with};

/// Returns the thinking agent's bundle, compiled once.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let workbench = Workbench::new().unwrap();
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let copy = NamedTempFile::new_in(target).unwrap();
        fs::copy(thinker::compile(&workbench).unwrap(), copy.path()).unwrap();
        let bundle = target.join("serve-thinker.heg");
        copy.persist(&bundle).unwrap();
        bundle
    })
}

/// Returns the thinking agent on an engine that computes the same on every machine.
fn served() -> ServedModel {
    let policy = shipped::policy("agent-xpu-one-device").unwrap();
    served_by(bundle(), "host-cpu-f32", policy, Default::default())
}

fn asked(fields: Value) -> Value {
    let messages = json!([
        {"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION},
    ]);
    let body = json!({"messages": messages, "temperature": 0, "max_tokens": 40});
    with(body, fields)
}

fn chat(host: &Host, fields: Value) -> Value {
    let reply = host.post("/v1/chat/completions", &asked(fields));
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

fn message(answer: &Value) -> &Value {
    &answer["choices"][0]["message"]
}

#[test]
fn thoughts_of_chat_are_apart() {
    let host = Host::serving(served, |_| ());
    let whole = chat(&host, json!({"logprobs": true}));
    assert_eq!(message(&whole)["reasoning_content"], THOUGHT);
    assert_eq!(message(&whole)["content"], ANSWER);
    let usage = &whole["usage"];
    let of_thought = &usage["completion_tokens_details"]["reasoning_tokens"];
    // Both markers, and three between.
    assert_eq!(*of_thought, 5, "{usage}");
    let scored = whole["choices"][0]["logprobs"]["content"].as_array();
    assert_eq!(scored.unwrap().len(), usage["completion_tokens"]);

    let reply = host.post("/v1/chat/completions", &asked(json!({"stream": true})));
    let (mut thought, mut text) = (String::new(), String::new());
    for event in reply
        .events()
        .into_iter()
        .filter(|event| *event != "[DONE]")
    {
        let event: Value = serde_json::from_str(event).unwrap();
        let delta = &event["choices"][0]["delta"];
        let piece = delta["content"].as_str().unwrap_or_default();
        assert!(piece.is_empty() || thought == THOUGHT, "{delta}");
        text.push_str(piece);
        thought.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
    }
    assert_eq!((thought.as_str(), text.as_str()), (THOUGHT, ANSWER));

    let plain = chat(&host, json!({"reasoning_format": "none"}));
    let text = format!("<think> {THOUGHT}</think> {ANSWER}");
    assert_eq!(
        *message(&plain),
        json!({"role": "assistant", "content": text, "refusal": null})
    );
    assert_eq!(
        plain["usage"]["completion_tokens"],
        usage["completion_tokens"]
    );
}

#[test]
fn a_prompt_may_open_the_thought() {
    let host = Host::serving(served, |_| ());
    let opened = chat(&host, json!({"enable_thinking": true}));
    assert_eq!(message(&opened)["reasoning_content"], ",");
    assert_eq!(message(&opened)["content"], ANSWER);
    let cut = chat(&host, json!({"enable_thinking": true, "max_tokens": 1}));
    assert_eq!(message(&cut)["reasoning_content"], ",");
    assert_eq!(message(&cut)["content"], "");
}

#[test]
fn a_form_holds_the_answer_behind_the_thought() {
    let host = Host::serving(served, |_| ());
    let form = json!({"type": "json_object"});
    for (is_open, thought) in [(true, ","), (false, THOUGHT)] {
        let fields = json!({"enable_thinking": is_open, "response_format": form});
        let held = chat(&host, fields);
        let message = message(&held);
        assert_eq!(message["reasoning_content"], thought);
        assert!(
            message["content"].as_str().unwrap().starts_with('{'),
            "{held}"
        );
    }
    // In the text, a thought would not be of the form.
    let plain = json!({"response_format": form, "reasoning_format": "none"});
    let plain = chat(&host, plain);
    let text = message(&plain)["content"].as_str().unwrap();
    assert!(text.starts_with('{'), "{plain}");
}

#[test]
fn a_model_thinks_before_it_calls_a_tool() {
    let host = Host::serving(served, |_| ());
    let parameters =
        json!({"type": "object", "properties": {"who": {"type": "string", "maxLength": 9}}});
    let function = json!({"name": "greet", "description": "Greet", "parameters": parameters});
    let tools = json!([{"type": "function", "function": function}]);
    // The tokens that a call begins with are forbidden.
    let no_call = json!({"90": -100, "269": -100, "716": -100});
    let free = json!({"tools": tools, "logit_bias": no_call, "enable_thinking": true});
    let free = chat(&host, free);
    assert!(message(&free)["reasoning_content"].is_string(), "{free}");
    // Without its weight, the closing marker comes too late.
    let closing = json!({"1790": 8});
    let fields = json!({
        "tools": tools, "tool_choice": "required", "enable_thinking": true, "logit_bias": closing,
    });
    let held = chat(&host, fields);
    assert!(message(&held)["reasoning_content"].is_string(), "{held}");
    assert_eq!(message(&held)["tool_calls"][0]["function"]["name"], "greet");
}

#[test]
fn stop_texts_end_thoughts_too() {
    let host = Host::serving(served, |_| ());
    let stopped = chat(&host, json!({"stop": ","}));
    assert_eq!(message(&stopped)["reasoning_content"], "Ben");
    assert_eq!(message(&stopped)["content"], "");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
}

#[test]
fn completions_have_thoughts_in_their_text() {
    let host = Host::serving(served, |_| ());
    let header = |role: &str| format!("<|start_header_id|>{role}<|end_header_id|>\n\n");
    let (system, user, assistant) = (header("system"), header("user"), header("assistant"));
    let prompt = format!("{system}{SYSTEM}<|eot_id|>{user}{QUESTION}<|eot_id|>{assistant}");
    let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 40});
    let answer = host.post("/v1/completions", &body).json();
    let text = format!("<think> {THOUGHT}</think> {ANSWER}");
    assert_eq!(answer["choices"][0]["text"], text);
    let details = &answer["usage"]["completion_tokens_details"];
    assert!(details.get("reasoning_tokens").is_none(), "{details}");
}

#[test]
fn messages_have_blocks_of_thinking() {
    let host = Host::serving(served, |_| ());
    let body = json!({
        "model": "tiny-agent", "max_tokens": 40, "temperature": 0, "system": SYSTEM,
        "messages": [{"role": "user", "content": QUESTION}],
    });
    let post = |fields: Value| host.post_with(PATH, VERSION, &with(body.clone(), fields));
    let content = json!([
        {"type": "thinking", "thinking": THOUGHT, "signature": ""}, {"type": "text", "text": ANSWER},
    ]);
    assert_eq!(post(json!({})).json()["content"], content);
    let mut kinds = Vec::new();
    for event in named_events(&post(json!({"stream": true}))) {
        let part = [&event["content_block"], &event["delta"]].map(|it| it["type"].as_str());
        kinds.extend(part.into_iter().flatten().map(str::to_owned));
    }
    kinds.dedup();
    let expected = [
        "thinking",
        "thinking_delta",
        "signature_delta",
        "text",
        "text_delta",
    ];
    assert_eq!(kinds, expected);

    // The template shows what was thought; that of the plain tiny agent does not.
    let tokens = |host: &Host, content: Value| {
        let messages = json!([
            {"role": "user", "content": QUESTION}, {"role": "assistant", "content": content},
            {"role": "user", "content": "And then?"},
        ]);
        let body = json!({"model": "tiny-agent", "messages": messages});
        let reply = host.post_with(COUNT, VERSION, &body);
        let ignored = host.post_with(PATH, VERSION, &with(body, json!({"max_tokens": 1})));
        let ignored = ignored.header("heg-ignored-fields").map(str::to_owned);
        (reply.json()["input_tokens"].as_u64().unwrap(), ignored)
    };
    let text = json!([{"type": "text", "text": ANSWER}]);
    assert!(tokens(&host, content.clone()).0 > tokens(&host, text.clone()).0);
    assert_eq!(tokens(&host, content.clone()).1, None);
    let plain = Host::new();
    assert_eq!(tokens(&plain, content.clone()).0, tokens(&plain, text).0);
    assert_eq!(
        tokens(&plain, content).1.as_deref(),
        Some("messages.thinking")
    );
}

#[test]
fn kept_conversations_have_their_thoughts() {
    let host = Host::serving(served, |_| ());
    let body = json!({"temperature": 0, "instructions": SYSTEM, "input": QUESTION});
    let post = |fields: Value| {
        let reply = host.post("/v1/responses", &with(body.clone(), fields));
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()
    };
    let first = post(json!({}));
    let [thought, answer] = first["output"].as_array().unwrap().as_slice() else {
        panic!("{first}")
    };
    assert_eq!(thought["type"], "reasoning");
    assert_eq!(
        thought["content"],
        json!([{"type": "reasoning_text", "text": THOUGHT}])
    );
    assert_eq!(answer["content"][0]["text"], ANSWER);
    assert_eq!(
        first["usage"]["output_tokens_details"]["reasoning_tokens"],
        5
    );
    // The server remembers what the client would send back.
    let kept = post(json!({"input": "And then?", "previous_response_id": first["id"]}));
    let turns = |answer: &[&Value]| {
        let question = json!({"role": "user", "content": QUESTION});
        let next = json!({"role": "user", "content": "And then?"});
        let turns = [&question]
            .into_iter()
            .chain(answer.iter().copied())
            .chain([&next]);
        turns.cloned().collect::<Vec<Value>>()
    };
    let sent = post(json!({"input": turns(&[thought, answer])}));
    let without = post(json!({"input": turns(&[answer])}));
    let tokens = [kept, sent, without].map(|it| it["usage"]["input_tokens"].as_u64().unwrap());
    assert_eq!(tokens[0], tokens[1]);
    assert!(tokens[1] > tokens[2], "{tokens:?}");
}

#[test]
fn the_official_clients_know_thoughts() {
    let test = "the_official_clients_know_thoughts";
    let Some(output) = run_on_or_skip(test, "thoughts_client.py", "", served) else {
        return;
    };
    assert!(output.status.success(), "{}", said(&output));
    insta::assert_snapshot!(String::from_utf8(output.stdout).unwrap());
}
