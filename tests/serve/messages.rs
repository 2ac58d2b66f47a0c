//! Anthropic's Messages API: the answers of chat in its form, whole and streamed, and under the same limits.

use std::io::Write;

use serde_json::{Value, json};

use crate::client::Reply;
use crate::host::Host;

pub(crate) const PATH: &str = "/v1/messages";
pub(crate) const COUNT: &str = "/v1/messages/count_tokens";
pub(crate) const VERSION: &str = "anthropic-version: 2023-06-01\r\n";
pub(crate) const QUESTION: &str = "Remind me to call Ana at 5 pm.";

/// Returns a body with these fields in place of its own, or beside them.
pub(crate) fn with(mut body: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn question(fields: Value) -> Value {
    let messages = json!([{"role": "user", "content": QUESTION}]);
    let body = json!({
        "model": "tiny-agent", "max_tokens": 40, "messages": messages, "temperature": 0
    });
    with(body, fields)
}

fn ask(host: &Host, body: &Value) -> Value {
    let reply = host.post_with(PATH, VERSION, body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

/// Returns the events of a stream, whose names are the types of their data.
pub(crate) fn named_events(reply: &Reply) -> Vec<Value> {
    let events = reply.body.split("\n\n").filter(|event| !event.is_empty());
    events
        .map(|event| {
            let (name, data) = event.split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
            data
        })
        .collect()
}

/// Joins the events of a stream to the message that they describe.
fn joined(reply: &Reply) -> Value {
    let mut message = Value::Null;
    let mut arguments = String::new();
    let mut is_over = false;
    for event in named_events(reply) {
        assert!(!is_over, "{}", reply.body);
        let index = event["index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "ping" => {}
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().unwrap();
                assert_eq!(index, blocks.len());
                blocks.push(event["content_block"].clone());
                arguments.clear();
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let block = &mut message["content"][index];
                match delta["type"].as_str().unwrap() {
                    "text_delta" => {
                        let piece = delta["text"].as_str().unwrap();
                        block["text"] = (block["text"].as_str().unwrap().to_owned() + piece).into();
                    }
                    "input_json_delta" => {
                        arguments.push_str(delta["partial_json"].as_str().unwrap());
                    }
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                if message["content"][index]["type"] == "tool_use" {
                    message["content"][index]["input"] = serde_json::from_str(&arguments).unwrap();
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => is_over = true,
            other => panic!("{other}"),
        }
    }
    assert!(is_over, "{}", reply.body);
    message
}

/// Takes out what differs between two answers to one question.
fn lasting(mut message: Value) -> Value {
    let number = message["id"].as_str().unwrap().replace("msg_", "");
    message["id"] = "msg".into();
    if let Some(fields) = message.as_object_mut() {
        fields.remove("timings");
        fields.remove("token_ids");
    }
    for count in ["input_tokens", "cache_read_input_tokens"] {
        message["usage"][count] = 0.into();
    }
    serde_json::from_str(&message.to_string().replace(&number, "answer")).unwrap()
}

fn tools(choice: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"who": {"type": "string", "maxLength": 12}},
        "required": ["who"], "additionalProperties": false});
    json!({
        "tools": [{"name": "call_contact", "description": "Call a contact", "input_schema": schema}],
        "tool_choice": {"type": choice}, "max_tokens": 200,
    })
}

#[test]
fn a_message_has_the_tokens_of_chat() {
    let host = Host::new();
    let fields = json!({"return_token_ids": true, "ignore_eos": true, "max_tokens": 40});
    let body = question(fields);
    let chat = host.post("/v1/chat/completions", &body).json();
    let choice = &chat["choices"][0];
    let message = ask(&host, &body);
    assert_eq!(message["token_ids"], choice["token_ids"]);
    assert_eq!(message["content"][0]["text"], choice["message"]["content"]);
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["usage"]["output_tokens"], 40);
    // A system message is one of chat's, however it is written.
    let messages =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]);
    let chat = with(body.clone(), json!({"messages": messages}));
    let chat = host.post("/v1/chat/completions", &chat).json();
    for system in [
        json!("Be brief."),
        json!([{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]),
    ] {
        let message = ask(&host, &with(body.clone(), json!({"system": system})));
        assert_eq!(message["token_ids"], chat["choices"][0]["token_ids"]);
    }
}

#[test]
fn the_end_of_a_message_has_its_reason() {
    let host = Host::new();
    let whole = ask(&host, &question(json!({})));
    assert_eq!(whole["stop_reason"], "end_turn");
    assert_eq!(whole["stop_sequence"], Value::Null);
    let text = whole["content"][0]["text"].as_str().unwrap();
    let stop = &text[text.len() / 2..];
    let body = question(json!({"stop_sequences": ["nothing", stop]}));
    for stream in [false, true] {
        let reply = host.post_with(
            PATH,
            VERSION,
            &with(body.clone(), json!({"stream": stream})),
        );
        let message = match stream {
            true => joined(&reply),
            false => reply.json(),
        };
        assert_eq!(message["stop_reason"], "stop_sequence", "{}", reply.body);
        assert_eq!(message["stop_sequence"], stop);
        assert_eq!(message["content"][0]["text"], text[..text.len() / 2]);
    }
}

#[test]
fn a_stream_joins_to_the_whole_message() {
    let host = Host::new();
    for body in [
        question(json!({})),
        question(json!({"temperature": 1, "seed": 7, "max_tokens": 60, "ignore_eos": true})),
        question(tools("auto")),
        question(tools("any")),
    ] {
        let whole = ask(&host, &body);
        let reply = host.post_with(PATH, VERSION, &with(body, json!({"stream": true})));
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        let mut message = joined(&reply);
        assert_eq!(
            message["usage"]["output_tokens"],
            whole["usage"]["output_tokens"]
        );
        message["usage"] = whole["usage"].clone();
        assert_eq!(lasting(message), lasting(whole), "{}", reply.body);
    }
}

#[test]
fn tools_are_used() {
    let host = Host::new();
    let body = question(tools("any"));
    let message = ask(&host, &body);
    assert_eq!(message["stop_reason"], "tool_use", "{message}");
    let call = message["content"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("tool_use"), &json!("call_contact"))
    );
    assert!(call["input"]["who"].is_string(), "{call}");
    // The model is told what the tool said, as chat tells it.
    let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": "done"});
    let messages = json!([
        {"role": "user", "content": QUESTION}, {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [result]},
    ]);
    let fields =
        json!({"messages": messages, "tool_choice": {"type": "none"}, "return_token_ids": true});
    let message = ask(&host, &with(body, fields));
    let arguments = call["input"].to_string();
    let function = json!({"name": "call_contact", "arguments": arguments});
    let chat = json!({
        "messages": [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": null,
                "tool_calls": [{"id": "c", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c", "content": "done"},
        ],
        "temperature": 0, "max_tokens": 200, "return_token_ids": true,
    });
    let chat = host.post("/v1/chat/completions", &chat).json();
    assert_eq!(message["token_ids"], chat["choices"][0]["token_ids"]);
    assert_eq!(message["stop_reason"], "end_turn");
}

#[test]
fn a_form_holds_a_message() {
    let host = Host::new();
    let schema = json!({"type": "object", "properties": {"who": {"type": "string", "maxLength": 12}},
        "required": ["who"], "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "schema": schema}});
    let message = ask(
        &host,
        &question(json!({"output_config": format, "max_tokens": 200})),
    );
    let text = message["content"][0]["text"].as_str().unwrap();
    let object: Value = serde_json::from_str(text).unwrap();
    assert!(object["who"].is_string(), "{message}");
}

#[test]
fn tokens_are_counted_as_they_are_used() {
    let host = Host::new();
    for fields in [json!({}), json!({"system": "Be brief."}), tools("auto")] {
        let body = question(fields);
        let count = host.post_with(COUNT, VERSION, &body);
        assert_eq!(count.status, 200, "{}", count.body);
        let usage = &ask(&host, &body)["usage"];
        let [new, cached] =
            ["input_tokens", "cache_read_input_tokens"].map(|name| usage[name].as_u64().unwrap());
        assert_eq!(count.json(), json!({"input_tokens": new + cached}));
    }
}

/// `cache_control` is named as ignored, and tokens that come from the cache are counted with and without it.
#[test]
fn a_prefix_is_reused_with_and_without_being_asked_for() {
    let host = Host::new();
    let mut system = json!({"type": "text", "text": "Keep your answers short. ".repeat(12)});
    let ask = |system: &Value| {
        let reply = host.post_with(PATH, VERSION, &question(json!({"system": [system]})));
        assert_eq!(reply.status, 200, "{}", reply.body);
        let cached = reply.json()["usage"]["cache_read_input_tokens"].as_u64();
        (
            cached.unwrap(),
            reply.header("heg-ignored-fields").map(str::to_owned),
        )
    };
    assert_eq!(ask(&system), (0, None));
    system["cache_control"] = json!({"type": "ephemeral"});
    let (cached, ignored) = ask(&system);
    assert!(cached > 50, "{cached}");
    assert_eq!(ignored.as_deref(), Some("cache_control"));
}

#[test]
fn limits_hold_for_messages_too() {
    let host = Host::with(|options| options.limits.requests = 1);
    let long = question(json!({
        "max_tokens": 900, "ignore_eos": true, "stream": true, "priority": "proactive"
    }));
    let mut busy = host.open();
    busy.post(PATH, VERSION, &long.to_string()).unwrap();
    busy.read_until("content_block_delta").unwrap();
    let short = question(json!({"max_tokens": 1, "priority": "proactive"}));
    for path in [PATH, COUNT] {
        let refused = host.post_with(path, VERSION, &short);
        assert_eq!(refused.status, 429, "{}", refused.body);
        assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
        assert!(refused.header("retry-after").is_some());
    }
    drop(busy);
    crate::host::wait_until("a place", || {
        host.post_with(PATH, VERSION, &short).status == 200
    });
    let late = question(json!({"max_tokens": 900, "ignore_eos": true, "deadline_ms": 30}));
    let late = host.post_with(PATH, VERSION, &late);
    assert_eq!(late.status, 504, "{}", late.body);
    assert_eq!(late.json()["error"]["type"], "timeout_error");
}

#[test]
fn a_server_that_shuts_down_says_so_in_the_form_of_the_stream() {
    let mut host = Host::with(|options| options.limits.grace = std::time::Duration::ZERO);
    let long = question(json!({"max_tokens": 900, "ignore_eos": true, "stream": true}));
    let mut running = host.open();
    running.post(PATH, VERSION, &long.to_string()).unwrap();
    running.read_until("content_block_delta").unwrap();
    host.stop();
    let rest = running.read_until("overloaded_error").unwrap();
    assert!(
        rest.contains("event: error\ndata: {\"type\":\"error\""),
        "{rest}"
    );
}

/// A client that goes away in the middle of a message leaves its place to others.
#[test]
fn a_client_that_goes_away_is_not_answered() {
    let host = Host::new();
    let long = question(json!({"max_tokens": 900, "ignore_eos": true, "stream": true}));
    let mut gone = host.open();
    gone.post(PATH, VERSION, &long.to_string()).unwrap();
    gone.read_until("content_block_delta").unwrap();
    gone.flush().unwrap();
    drop(gone);
    host.wait_for_metric(r#"heg_requests_total{class="reactive",outcome="cancelled"} 1"#);
    host.wait_for_metric(r#"heg_live_requests{class="reactive",phase="decoding"} 0"#);
}
