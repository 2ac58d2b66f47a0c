//! The server's answers: the same tokens as without a server, whole or in pieces, over both transports.

use heg_runtime::Loaded;
use heg_server::Address;
use heg_tests::{executor, greedy};
use heg_text::{Conversation, Message, Special};
use serde_json::{Value, json};

use crate::client::{Connection, Reply};
use crate::host::{Host, bundle};

const CHAT: &str = "/v1/chat/completions";
const BARE: &str = "/v1/completions";
const QUESTION: &str = "Remind me to call Ana at 5 pm.";

fn chat(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Returns the prompt of [`QUESTION`], and its greedy answer by an executor alone.
fn alone(tokens_max: usize) -> (Vec<u32>, Vec<u32>) {
    let loaded = Loaded::open(bundle()).unwrap();
    let conversation = Conversation {
        messages: vec![Message::new("user", QUESTION)],
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let text = loaded
        .chat_template()
        .unwrap()
        .render(&conversation)
        .unwrap();
    let tokenizer = loaded.tokenizer().unwrap();
    let prompt = tokenizer.encode(&text, Special::AsWritten).unwrap();
    let mut executor = executor(bundle(), "host-cpu", 256).unwrap();
    let mut sequence = executor.sequence().unwrap();
    let answer = greedy(&mut executor, &mut sequence, &prompt, tokens_max).unwrap();
    (prompt, answer)
}

/// Joins a stream: text, tokens, finish reason.
fn joined(reply: &Reply) -> (String, Vec<u64>, String) {
    let events = reply.events();
    assert_eq!(events.last(), Some(&"[DONE]"), "{}", reply.body);
    let (mut text, mut tokens, mut reason) = (String::new(), Vec::new(), String::new());
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).unwrap();
        let choice = &chunk["choices"][0];
        let piece = [&choice["delta"]["content"], &choice["text"]];
        text.extend(piece.iter().filter_map(|piece| piece.as_str()));
        let ids = choice["token_ids"].as_array().into_iter().flatten();
        tokens.extend(ids.map(|id| id.as_u64().unwrap()));
        if let Some(why) = choice["finish_reason"].as_str() {
            assert_eq!(reason, "", "two ends");
            reason.push_str(why);
        }
    }
    (text, tokens, reason)
}

#[test]
fn an_answer_has_the_tokens_of_the_model_alone() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("heg.sock");
    let host = Host::with(|options| options.socket = Some(socket.clone()));
    let (prompt, expected) = alone(40);
    let params = json!({"max_tokens": 40, "ignore_eos": true, "return_token_ids": true});
    let body = chat(params).to_string();
    assert!(matches!(
        host.addresses[..],
        [Address::Tcp(_), Address::Local(_)]
    ));
    for address in &host.addresses {
        let mut connection = Connection::open(address).unwrap();
        connection.post(CHAT, "", &body).unwrap();
        let reply = connection.reply().unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        let answer = reply.json();
        assert_eq!(answer["choices"][0]["token_ids"], json!(expected));
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
        assert_eq!(answer["usage"]["completion_tokens"], 40);
        assert_eq!(answer["usage"]["total_tokens"], prompt.len() + 40);
        assert!(answer["timings"]["ttft_ms"].as_f64().unwrap() > 0.0);
        let predicted: f64 = reply
            .header("heg-predicted-ttft-ms")
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(answer["timings"]["predicted_ttft_ms"], predicted);
    }
    // The same prompt as token ids.
    let body = json!({"prompt": prompt, "max_tokens": 40, "ignore_eos": true, "temperature": 0,
        "return_token_ids": true});
    let answer = host.post(BARE, &body).json();
    assert_eq!(answer["choices"][0]["token_ids"], json!(expected));
}

#[test]
fn fields_that_have_no_effect_are_named_and_change_no_answer() {
    let host = Host::new();
    let (_, expected) = alone(40);
    let fields = json!({"max_tokens": 40, "ignore_eos": true, "return_token_ids": true, "keep_alive": "5m",
        "reasoning_effort": "low", "options": {"repeat_penalty": 1, "num_ctx": 4096}});
    let reply = host.post(CHAT, &chat(fields));
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(
        reply.header("heg-ignored-fields"),
        Some("keep_alive, num_ctx, reasoning_effort")
    );
    assert_eq!(reply.json()["choices"][0]["token_ids"], json!(expected));
    let plain = host.post(CHAT, &chat(json!({"max_tokens": 2})));
    assert_eq!(plain.header("heg-ignored-fields"), None);
}

#[test]
fn a_stream_joins_to_the_whole_answer() {
    let host = Host::new();
    for (path, mut body) in [
        (CHAT, chat(json!({}))),
        (
            CHAT,
            chat(json!({"temperature": 1.5, "seed": 7, "max_tokens": 60})),
        ),
        (CHAT, chat(json!({"stop": ["An"]}))),
        (
            BARE,
            json!({"prompt": "The cat sat", "temperature": 2, "seed": 1, "max_tokens": 50, "ignore_eos": true}),
        ),
    ] {
        body["return_token_ids"] = true.into();
        let whole = host.post(path, &body).json();
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let reply = host.post(path, &body);
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        let (text, tokens, reason) = joined(&reply);
        let choice = &whole["choices"][0];
        let expected = [&choice["message"]["content"], &choice["text"]];
        let expected = expected.iter().find_map(|text| text.as_str());
        assert_eq!(Some(text.as_str()), expected, "{whole}");
        assert_eq!(json!(tokens), choice["token_ids"]);
        assert_eq!(choice["finish_reason"], reason);
        let events = reply.events();
        let last: Value = serde_json::from_str(events[events.len() - 2]).unwrap();
        assert_eq!(
            last["usage"]["completion_tokens"],
            whole["usage"]["completion_tokens"]
        );
        assert_eq!(last["usage"]["completion_tokens"], tokens.len());
        // Without ids the text is the same.
        body["return_token_ids"] = false.into();
        assert_eq!(joined(&host.post(path, &body)).0, text);
    }
}

#[test]
fn a_stop_text_ends_the_answer() {
    let host = Host::new();
    let whole = host.post(CHAT, &chat(json!({}))).json();
    let whole = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let stop = &whole[whole.len() / 2..];
    let params = json!({"stop": [stop], "ignore_eos": true, "max_tokens": 500});
    let answer = host.post(CHAT, &chat(params)).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], whole[..whole.len() / 2]);
    assert_eq!(choice["finish_reason"], "stop");
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() < 100);
}

#[test]
fn a_connection_answers_one_request_after_the_other() {
    use std::io::Write;
    let host = Host::new();
    let mut connection = host.open();
    for _ in 0..3 {
        let body = json!({"prompt": [5, 6], "max_tokens": 2, "stream": true}).to_string();
        let request = format!(
            "POST {BARE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write_all(request.as_bytes()).unwrap();
        let reply = connection.read_until("0\r\n\r\n").unwrap();
        assert!(
            reply.starts_with("HTTP/1.1 200") && reply.contains("[DONE]"),
            "{reply}"
        );
    }
}

#[test]
fn models_and_health_are_told() {
    let host = Host::new();
    let models = host.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "tiny-agent");
    assert_eq!(host.get("/v1/models/other").status, 404);
    crate::host::wait_until("ready", || host.get("/healthz").status == 200);
    // What is said of a model changes until it is ready.
    let models = host.get("/v1/models").json();
    assert_eq!(host.get("/v1/models/tiny-agent").json(), models["data"][0]);
    let named = chat(json!({"model": "tiny-agent", "max_tokens": 1}));
    assert_eq!(host.post(CHAT, &named).status, 200);
}

#[test]
fn a_flow_goes_on_and_ends() {
    let host = Host::new();
    let body = chat(json!({"flow_id": "a", "max_tokens": 8, "return_token_ids": true}));
    let first = host.post(CHAT, &body).json();
    let second = host.post(CHAT, &body).json();
    assert_eq!(
        second["choices"][0]["token_ids"],
        first["choices"][0]["token_ids"]
    );
    let end = json!({"flow_id": "a"});
    assert_eq!(
        host.post("/v1/flows/end", &end).json(),
        json!({"ended": true})
    );
    assert_eq!(
        host.post("/v1/flows/end", &end).json(),
        json!({"ended": false})
    );
}

#[test]
fn calls_of_tools_and_forms_are_kept() {
    let host = Host::new();
    let parameters = json!({"type": "object", "properties": {"who": {"type": "string", "maxLength": 12}},
        "required": ["who"], "additionalProperties": false});
    let function =
        json!({"name": "call_contact", "description": "Call a contact", "parameters": parameters});
    let tools = json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required",
        "max_tokens": 200});
    let mut body = chat(tools);
    let whole = host.post(CHAT, &body).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(
        (&call["type"], &call["function"]["name"]),
        (&json!("function"), &json!("call_contact"))
    );
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["who"].is_string(), "{arguments}");
    // The stream has the same call.
    body["stream"] = true.into();
    let reply = host.post(CHAT, &body);
    let (text, _, reason) = joined(&reply);
    assert_eq!(
        (text.as_str(), reason.as_str()),
        ("", "tool_calls"),
        "{}",
        reply.body
    );
    let calls: Vec<Value> = reply
        .events()
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0].clone())
        .filter(|call| !call.is_null())
        .collect();
    assert_eq!(calls.len(), 1, "{}", reply.body);
    assert_eq!(
        (&calls[0]["function"], &calls[0]["index"]),
        (&call["function"], &json!(0))
    );
    // An answer in the form of a schema.
    let schema =
        json!({"type": "json_schema", "json_schema": {"name": "contact", "schema": parameters}});
    let answer = host
        .post(
            CHAT,
            &chat(json!({"response_format": schema, "max_tokens": 200})),
        )
        .json();
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    let content: Value = serde_json::from_str(content).unwrap();
    assert!(
        content["who"].is_string() && content.as_object().unwrap().len() == 1,
        "{answer}"
    );
    // A form that cannot be enforced is refused.
    let schema = json!({"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}});
    let refused = host.post(CHAT, &chat(json!({"response_format": schema})));
    assert_eq!(refused.status, 400, "{}", refused.body);
}
