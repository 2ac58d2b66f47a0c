//! Sampling as OpenAI's clients expect it: several answers, penalties and biases, seeds and fingerprints.

use serde_json::{Value, json};

use crate::host::{Host, exact};

const CHAT: &str = "/v1/chat/completions";
const BARE: &str = "/v1/completions";

fn body(fields: Value) -> Value {
    let mut body = json!({"prompt": [5, 6, 7, 8], "max_tokens": 12, "return_token_ids": true,
        "ignore_eos": true});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn tokens(choice: &Value) -> Vec<u64> {
    let ids = choice["token_ids"].as_array().into_iter().flatten();
    ids.map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn several_answers_are_those_of_consecutive_seeds() {
    let host = Host::serving(exact, |_| ());
    let wanted = |seed: u32, n: u32| body(json!({"seed": seed, "n": n, "temperature": 1.5}));
    let single = |seed| host.post(BARE, &wanted(seed, 1)).json();
    let singles: Vec<Value> = (7..10).map(single).collect();
    let reply = host.post(BARE, &wanted(7, 3));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let all = reply.json();
    let choices = all["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, (choice, single)) in choices.iter().zip(&singles).enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(tokens(choice), tokens(&single["choices"][0]));
        assert_eq!(choice["text"], single["choices"][0]["text"]);
        assert_eq!(all["system_fingerprint"], single["system_fingerprint"]);
    }
    assert_ne!(tokens(&choices[0]), tokens(&choices[1]));
    assert_eq!(all["usage"]["prompt_tokens"], 4);
    assert_eq!(all["usage"]["completion_tokens"], 36);
    assert_eq!(all["usage"]["total_tokens"], 40);
    // In pieces it is the same: each chunk has the index of its answer, and there is one end.
    let mut streamed = wanted(7, 3);
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let reply = host.post(BARE, &streamed);
    let events = reply.events();
    let (done, events) = events.split_last().unwrap();
    assert_eq!((*done, reply.body.matches("[DONE]").count()), ("[DONE]", 1));
    let chunks: Vec<Value> = events
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!(
        (&usage["choices"], &usage["usage"]),
        (&json!([]), &all["usage"])
    );
    for (index, choice) in choices.iter().enumerate() {
        let own = chunks.iter().map(|chunk| &chunk["choices"][0]);
        let own: Vec<&Value> = own.filter(|choice| choice["index"] == index).collect();
        let text: String = own
            .iter()
            .filter_map(|piece| piece["text"].as_str())
            .collect();
        assert_eq!(text, choice["text"].as_str().unwrap());
        let ids: Vec<u64> = own.iter().flat_map(|piece| tokens(piece)).collect();
        assert_eq!(ids, tokens(choice));
        let ends = own.iter().filter(|piece| !piece["finish_reason"].is_null());
        assert_eq!(ends.count(), 1);
    }
    let fingerprint = &all["system_fingerprint"];
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["system_fingerprint"] == *fingerprint)
    );
    let other = Host::serving(exact, |_| ())
        .post(BARE, &wanted(7, 1))
        .json();
    assert_eq!(other["system_fingerprint"], *fingerprint);
}

#[test]
fn several_answers_of_a_form_each_keep_it() {
    let host = Host::new();
    let schema = json!({"type": "object", "properties": {"who": {"type": "string", "maxLength": 8}},
        "required": ["who"], "additionalProperties": false});
    let body = json!({"messages": [{"role": "user", "content": "Call Ana."}], "n": 3, "seed": 1,
        "response_format": {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}});
    let answer = host.post(CHAT, &body).json();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3, "{answer}");
    for choice in choices {
        let content = choice["message"]["content"].as_str().unwrap();
        let content: Value = serde_json::from_str(content).unwrap();
        assert!(content["who"].is_string(), "{answer}");
    }
}

#[test]
fn each_of_several_answers_takes_a_place() {
    let host = Host::with(|options| options.limits.requests = 3);
    let refused = host.post(BARE, &body(json!({"n": 4})));
    assert_eq!(refused.status, 400, "{}", refused.body);
    let long = body(json!({"n": 2, "max_tokens": 1000, "stream": true}));
    let mut busy = host.open();
    busy.post(BARE, "", &long.to_string()).unwrap();
    busy.read_until("data: ").unwrap();
    let refused = host.post(BARE, &body(json!({"n": 2})));
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert_eq!(host.post(BARE, &body(json!({}))).status, 200);
    // Closing the connection cancels all of them.
    drop(busy);
    host.wait_for_metric(r#"heg_requests_total{class="reactive",outcome="cancelled"} 2"#);
    host.wait_for_metric(r#"heg_live_requests{class="reactive",phase="decoding"} 0"#);
    assert_eq!(host.post(BARE, &body(json!({"n": 3}))).status, 200);
}

#[test]
fn penalties_and_biases_change_greedy_answers_too() {
    let host = Host::new();
    let answer = |fields: Value| {
        let mut body = body(fields);
        body["temperature"] = 0.into();
        let reply = host.post(BARE, &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        tokens(&reply.json()["choices"][0])
    };
    let plain = answer(json!({}));
    let first = plain[0].to_string();
    assert_eq!(
        answer(json!({"logit_bias": {}, "presence_penalty": 0})),
        plain
    );
    assert_eq!(
        answer(json!({"logit_bias": {"9": 100}, "max_tokens": 3})),
        [9, 9, 9]
    );
    // A repeated token costs more and more, until another one is chosen.
    let fields = json!({"logit_bias": {"9": 30}, "frequency_penalty": 2, "max_tokens": 30});
    let tired = answer(fields);
    assert_eq!(tired[..3], [9, 9, 9]);
    assert!(tired.iter().any(|token| *token != 9), "{tired:?}");
    let banned = answer(json!({"logit_bias": {first: -100}}));
    assert!(!banned.contains(&plain[0]), "{banned:?}");
    let refused = host.post(BARE, &body(json!({"logit_bias": {"2048": 1}})));
    insta::assert_snapshot!(refused.json()["error"]["message"], @"\"`logit_bias`: expected token ids within the vocabulary, found 2048, with 2048 tokens in the vocabulary\"");
}
