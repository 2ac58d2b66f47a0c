//! OpenAI's Responses API: the answers of chat in its form, whole and streamed, and conversations that are kept.

use heg_server::{Token, Tokens};
use serde_json::{Value, json};

use crate::client::Reply;
use crate::host::{Host, exact};
use crate::messages::{QUESTION, named_events, with};

const PATH: &str = "/v1/responses";

fn question(fields: Value) -> Value {
    let body = json!({
        "model": "tiny-agent", "max_output_tokens": 40, "input": QUESTION, "temperature": 0
    });
    with(body, fields)
}

fn ask(host: &Host, body: &Value) -> Value {
    let reply = host.post(PATH, body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

/// Joins the events of a stream to the response that they describe, which the last one has to agree with.
fn joined(reply: &Reply) -> Value {
    let events = named_events(reply);
    let mut output: Vec<Value> = Vec::new();
    for (place, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], place, "{}", reply.body);
        let index = event["output_index"].as_u64().unwrap_or_default() as usize;
        let add = |value: &mut Value, piece: &Value| {
            *value = (value.as_str().unwrap().to_owned() + piece.as_str().unwrap()).into();
        };
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!(index, output.len());
                output.push(event["item"].clone());
            }
            "response.content_part.added" => {
                let parts = output[index]["content"].as_array_mut().unwrap();
                parts.push(event["part"].clone());
            }
            "response.output_text.delta" => {
                assert_eq!(event["item_id"], output[index]["id"]);
                add(&mut output[index]["content"][0]["text"], &event["delta"]);
            }
            "response.function_call_arguments.delta" => {
                add(&mut output[index]["arguments"], &event["delta"]);
            }
            "response.output_text.done" => {
                assert_eq!(output[index]["content"][0]["text"], event["text"]);
            }
            "response.content_part.done" => assert_eq!(output[index]["content"][0], event["part"]),
            "response.function_call_arguments.done" => {
                assert_eq!(output[index]["arguments"], event["arguments"]);
            }
            "response.output_item.done" => {
                output[index]["status"] = event["item"]["status"].clone();
                assert_eq!(output[index], event["item"]);
            }
            "response.created" | "response.in_progress" => {
                assert!(place < 2 && event["response"]["status"] == "in_progress");
            }
            "response.completed" | "response.incomplete" => assert_eq!(place, events.len() - 1),
            other => panic!("{other}"),
        }
    }
    let response = events.last().unwrap()["response"].clone();
    assert_eq!(response["output"], json!(output), "{}", reply.body);
    response
}

/// Takes out what differs between two answers to one question.
fn lasting(response: &Value) -> Value {
    let number = response["id"].as_str().unwrap().replace("resp_", "");
    let text = response.to_string().replace(&number, "answer");
    let mut response: Value = serde_json::from_str(&text).unwrap();
    for name in ["timings", "created_at", "token_ids"] {
        response.as_object_mut().unwrap().remove(name);
    }
    response["usage"]["input_tokens_details"] = Value::Null;
    response
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"who": {"type": "string", "maxLength": 12}},
        "required": ["who"], "additionalProperties": false})
}

fn tools(choice: &str) -> Value {
    let tool = json!({"type": "function", "name": "call_contact", "description": "Call a contact",
        "parameters": schema()});
    json!({"tools": [tool], "tool_choice": choice, "max_output_tokens": 200})
}

#[test]
fn a_response_has_the_tokens_of_chat() {
    let host = Host::new();
    let messages =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]);
    let chat = json!({"messages": messages, "temperature": 0, "max_tokens": 40, "ignore_eos": true,
        "return_token_ids": true});
    let chat = host.post("/v1/chat/completions", &chat).json();
    let fields = json!({"ignore_eos": true, "return_token_ids": true, "instructions": "Be brief."});
    let response = ask(&host, &question(fields));
    assert_eq!(response["token_ids"], chat["choices"][0]["token_ids"]);
    let text = &response["output"][0]["content"][0]["text"];
    assert_eq!(*text, chat["choices"][0]["message"]["content"]);
    assert_eq!(response["status"], "incomplete");
    assert_eq!(
        response["incomplete_details"]["reason"],
        "max_output_tokens"
    );
    assert_eq!(response["usage"]["output_tokens"], 40);
    assert_eq!(response["instructions"], "Be brief.");
}

#[test]
fn a_stream_joins_to_the_whole_response() {
    let host = Host::new();
    for body in [
        question(json!({"store": false})),
        question(json!({"temperature": 1.5, "seed": 7, "ignore_eos": true})),
        question(tools("auto")),
        question(tools("required")),
    ] {
        let whole = ask(&host, &body);
        let reply = host.post(PATH, &with(body, json!({"stream": true})));
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        assert_eq!(lasting(&joined(&reply)), lasting(&whole), "{}", reply.body);
    }
}

#[test]
fn tools_and_forms_are_kept() {
    let host = Host::new();
    let body = question(tools("required"));
    let response = ask(&host, &body);
    assert_eq!(response["status"], "completed", "{response}");
    let call = response["output"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("function_call"), &json!("call_contact"))
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["who"].is_string(), "{call}");
    // What the function gave comes back: behind the kept conversation, or with all of it.
    let output =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "done"});
    let fields = json!({"tool_choice": "none", "return_token_ids": true, "input": [output],
        "previous_response_id": response["id"]});
    let behind = ask(&host, &with(body.clone(), fields));
    let mut input = vec![json!({"role": "user", "content": QUESTION})];
    input.extend(response["output"].as_array().unwrap().iter().cloned());
    input.push(output);
    let fields = json!({"tool_choice": "none", "return_token_ids": true, "input": input});
    let anew = ask(&host, &with(body.clone(), fields));
    assert_eq!(behind["token_ids"], anew["token_ids"]);
    assert_eq!(
        behind["usage"]["input_tokens"],
        anew["usage"]["input_tokens"]
    );
    // A call that has no output is missed.
    let fields = json!({"input": "And?", "previous_response_id": response["id"]});
    let refused = host.post(PATH, &with(body, fields));
    assert_eq!(refused.status, 400, "{}", refused.body);
    // An answer in the form of a schema.
    let format = json!({"format": {"type": "json_schema", "name": "contact", "schema": schema()}});
    let response = ask(
        &host,
        &question(json!({"text": format, "max_output_tokens": 200})),
    );
    let text = response["output"][0]["content"][0]["text"]
        .as_str()
        .unwrap();
    let object: Value = serde_json::from_str(text).unwrap();
    assert!(object["who"].is_string(), "{response}");
}

fn cached(response: &Value) -> u64 {
    let usage = &response["usage"]["input_tokens_details"]["cached_tokens"];
    usage.as_u64().unwrap()
}

/// A later turn computes what is new, even if another conversation came between; its answer is that of the whole
/// conversation.
#[test]
fn a_conversation_goes_on_behind_what_was_computed() {
    let host = Host::serving(exact, |_| ());
    let instructions = "Keep your answers short, and say what you will do. ".repeat(6);
    let first = |input: &str| {
        ask(
            &host,
            &question(json!({"instructions": instructions, "input": input})),
        )
    };
    let (ours, _other) = (first(QUESTION), first("What time is it in Oslo?"));
    let text = ours["output"][0]["content"][0]["text"].clone();
    let fields = json!({"instructions": instructions, "input": "And at six?",
        "previous_response_id": ours["id"], "return_token_ids": true});
    let second = ask(&host, &question(fields));
    let computed = second["usage"]["input_tokens"].as_u64().unwrap() - cached(&second);
    let before = ours["usage"]["input_tokens"].as_u64().unwrap();
    // The end of the first answer, and the new message; the rest was there.
    assert!(cached(&second) >= before && computed < 40, "{second}");
    assert_eq!(second["previous_response_id"], ours["id"]);
    let messages = json!([
        {"role": "system", "content": instructions}, {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": text}, {"role": "user", "content": "And at six?"},
    ]);
    let chat =
        json!({"messages": messages, "temperature": 0, "max_tokens": 40, "return_token_ids": true});
    let chat = host.post("/v1/chat/completions", &chat).json();
    assert_eq!(second["token_ids"], chat["choices"][0]["token_ids"]);
    assert_eq!(
        second["usage"]["input_tokens"],
        chat["usage"]["prompt_tokens"]
    );
    // The first turn can be continued in another way, also by a stream.
    let fields = json!({"instructions": instructions, "input": "And at seven?",
        "previous_response_id": ours["id"], "stream": true});
    let branch = joined(&host.post(PATH, &question(fields)));
    assert!(cached(&branch) >= before, "{branch}");
}

#[test]
fn a_kept_response_is_its_clients_until_it_is_deleted() {
    let mut tokens = Tokens::default();
    for name in ["ours", "theirs"] {
        tokens.add(Token::new(name).unwrap(), None).unwrap();
    }
    let host = Host::with(|options| options.tokens = tokens);
    let call = |method: &str, id: &str, who: &str| {
        let head =
            format!("{method} {PATH}/{id} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        host.send(format!("{head}authorization: Bearer {who}\r\n\r\n").as_bytes())
    };
    let post = |fields: Value, who: &str| {
        let header = format!("authorization: Bearer {who}\r\n");
        host.post_with(PATH, &header, &question(fields))
    };
    let kept = post(json!({"metadata": {"run": "7"}}), "ours").json();
    let id = kept["id"].as_str().unwrap();
    assert_eq!(call("GET", id, "ours").json(), kept);
    assert_eq!(
        (&kept["store"], &kept["metadata"]["run"]),
        (&json!(true), &json!("7"))
    );
    // Another client's id is as unknown as one that was never given.
    let unknown = |id: &str, who: &str| {
        let next = post(json!({"previous_response_id": id}), who);
        let body = next.body.replace(id, "ID");
        assert_eq!(next.json()["error"]["code"], "previous_response_not_found");
        let [seen, deleted] = ["GET", "DELETE"].map(|method| call(method, id, who));
        assert_eq!((next.status, seen.status, deleted.status), (400, 404, 404));
        assert_eq!(seen.body, deleted.body);
        (body, seen.body.replace(id, "ID"))
    };
    assert_eq!(
        unknown(id, "theirs"),
        unknown("resp_0123456789abcdef", "theirs")
    );
    assert_eq!(
        post(json!({"previous_response_id": id}), "ours").status,
        200
    );
    let deleted = call("DELETE", id, "ours");
    assert_eq!(
        deleted.json(),
        json!({"id": id, "object": "response", "deleted": true})
    );
    unknown(id, "ours");
    // One that is not stored is unknown from the beginning.
    let forgotten = post(json!({"store": false}), "ours").json();
    assert_eq!(forgotten["store"], false);
    unknown(forgotten["id"].as_str().unwrap(), "ours");
}

/// Whatever a client has kept for it, the server keeps a bounded part, and the client is answered.
#[test]
fn what_is_kept_is_bounded() {
    let host = Host::new();
    let big = json!({"metadata": {"a": "x".repeat(512)}, "input": "hi", "max_output_tokens": 1,
        "tools": [{"type": "function", "name": "f", "description": "d".repeat(900_000),
            "parameters": {"type": "object", "properties": {}}}],
        "tool_choice": "none"});
    let ids: Vec<Value> = (0..12)
        .map(|_| {
            let response = ask(&host, &question(big.clone()));
            assert_eq!(response["store"], true);
            response["id"].clone()
        })
        .collect();
    let is_kept = |id: &Value| host.get(&format!("{PATH}/{}", id.as_str().unwrap())).status == 200;
    assert!(!is_kept(&ids[0]) && is_kept(&ids[11]));
    let kept = ids.iter().filter(|id| is_kept(id)).count();
    assert!((2..12).contains(&kept), "{kept}");
}

#[test]
fn limits_hold_for_responses_too() {
    let mut host = Host::with(|options| {
        options.limits.requests = 1;
        options.limits.grace = std::time::Duration::ZERO;
    });
    let long = question(
        json!({"max_output_tokens": 900, "ignore_eos": true, "stream": true,
        "priority": "proactive"}),
    );
    let mut busy = host.open();
    busy.post(PATH, "", &long.to_string()).unwrap();
    busy.read_until("output_text.delta").unwrap();
    let short = question(json!({"max_output_tokens": 1, "priority": "proactive"}));
    let refused = host.post(PATH, &short);
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    // A server that shuts down says so in the form of the stream.
    host.stop();
    let rest = busy.read_until("shutting_down").unwrap();
    assert!(rest.contains("event: response.failed"), "{rest}");
    assert!(rest.contains(r#""status":"failed""#), "{rest}");
}
