//! Requests for more than there is: refused as their sender's mistake, without a cost to others.

use std::thread;

use heg_runtime::engine::EngineOptions;
use heg_spec::shipped;
use serde_json::{Value, json};

use crate::host::{Host, bundle, served_by};

const BARE: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Checks that a request is refused as too long for ever, without an invitation to retry.
fn check_never_fits(host: &Host, path: &str, body: &Value, bounded_by: &str) {
    let reply = host.post(path, body);
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert_eq!(reply.header("retry-after"), None);
    let error = &reply.json()["error"];
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(bounded_by), "{message}");
}

#[test]
fn what_can_never_fit_is_no_rate_limit() {
    let host = Host::new();
    let context = "expected at most 1024, the model's context";
    check_never_fits(&host, BARE, &json!({"prompt": vec![5; 1024]}), context);
    check_never_fits(
        &host,
        BARE,
        &json!({"prompt": [5, 6], "max_tokens": 1023}),
        context,
    );
    check_never_fits(
        &host,
        BARE,
        &json!({"prompt": "a ".repeat(100_000)}),
        context,
    );
    let chat = json!({"messages": [{"role": "user", "content": "a ".repeat(100_000)}]});
    check_never_fits(&host, CHAT, &chat, context);
    let said = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"messages": said, "max_tokens": 1025});
    check_never_fits(&host, CHAT, &chat, context);
    let fits = json!({"prompt": vec![5; 1023]});
    assert_eq!(host.post(BARE, &fits).status, 200);

    let mut policy = shipped::policy("agent-xpu").unwrap();
    policy.limits.kv_mib = 1;
    let served = || served_by(bundle(), "host-cpu", policy, EngineOptions::default());
    let host = Host::serving(served, |_| ());
    let caches = "what this server's KV caches may take";
    check_never_fits(&host, BARE, &json!({"prompt": vec![5; 1000]}), caches);
    check_never_fits(
        &host,
        BARE,
        &json!({"prompt": [5], "max_tokens": 1000}),
        caches,
    );
    // An answer without a limit has all the remaining room.
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(host.post(CHAT, &chat).status, 200);
}

/// Agents ask for more tokens than any answer has, whatever the prompt.
#[test]
fn answers_in_conversations_end_where_the_context_does() {
    let host = Host::new();
    let text = "a ".repeat(500);
    let said = json!([{"role": "user", "content": text}]);
    for (path, limit, input, tokens, reason, found) in [
        (
            CHAT,
            "max_tokens",
            ("messages", &said),
            ["prompt_tokens", "completion_tokens"],
            "/choices/0/finish_reason",
            "length",
        ),
        (
            "/v1/messages",
            "max_tokens",
            ("messages", &said),
            ["input_tokens", "output_tokens"],
            "/stop_reason",
            "model_context_window_exceeded",
        ),
        (
            "/v1/responses",
            "max_output_tokens",
            ("input", &said),
            ["input_tokens", "output_tokens"],
            "/incomplete_details/reason",
            "max_output_tokens",
        ),
    ] {
        let body =
            json!({"model": "tiny-agent", limit: 1000, input.0: input.1, "ignore_eos": true});
        let reply = host.post_with(path, "anthropic-version: 2023-06-01\r\n", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let reply = reply.json();
        // Anthropic counts tokens that were in the KV cache apart.
        let cached = reply["usage"]["cache_read_input_tokens"].as_u64();
        let counts = tokens.map(|name| reply["usage"][name].as_u64().unwrap());
        let all = counts.iter().sum::<u64>() + cached.unwrap_or(0);
        assert_eq!(all, 1024, "{reply}");
        assert_eq!(reply.pointer(reason).unwrap(), found, "{reply}");
    }
}

/// Each of these once took tens to hundreds of megabytes, and held the event loop for seconds.
#[test]
fn large_bodies_are_refused_beside_other_requests() {
    let host = Host::with(|options| options.limits.body_bytes = Some(9 << 20));
    let zeros = "0,".repeat(4_000_000);
    let messages = r#"{"role":"user","content":""},"#.repeat(250_000);
    let text = "a b ".repeat(2_000_000);
    let large = [
        (BARE, format!(r#"{{"prompt":[{zeros}0]}}"#)),
        (BARE, format!(r#"{{"prompt":"{text}"}}"#)),
        (BARE, format!(r#"{{"prompt":"a","stop":"{text}"}}"#)),
        (BARE, format!(r#"{{"prompt":"a","logit_bias":[{zeros}0]}}"#)),
        (CHAT, format!(r#"{{"messages":[{messages}5]}}"#)),
        (
            CHAT,
            format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#),
        ),
        ("/v1/flows/end", format!(r#"{{"flow_id":"{text}"}}"#)),
    ];
    thread::scope(|scope| {
        for (path, body) in &large {
            let host = &host;
            scope.spawn(move || {
                let mut connection = host.open();
                connection.post(path, "", body).unwrap();
                let reply = connection.reply().unwrap();
                assert_eq!(reply.status, 400, "{}", reply.body);
                assert!(reply.body.len() < 1000, "{}", reply.body);
            });
        }
        let small = json!({"prompt": [5, 6], "max_tokens": 2});
        for _ in 0..20 {
            assert_eq!(host.post(BARE, &small).status, 200);
        }
    });
}

/// A body longer than any possible prompt is refused, and its sender gets the reason.
#[test]
fn bodies_are_as_long_as_prompts_can_be() {
    let host = Host::new();
    let reply = host.post(BARE, &json!({"prompt": [5], "stop": "x".repeat(8_000_000)}));
    assert_eq!(reply.status, 413, "{}", reply.body);
    let metadata = "x".repeat(1_000_000);
    let fits = json!({"prompt": [5], "max_tokens": 1, "metadata": {"a": metadata}});
    assert_eq!(host.post(BARE, &fits).status, 200);
}

/// A request beside a form with slow masks gets the same tokens as alone.
#[test]
fn a_hostile_form_costs_its_sender_only() {
    let host = Host::new();
    let ordinary = json!({"prompt": [5, 6, 7], "max_tokens": 100, "ignore_eos": true, "temperature": 0,
        "return_token_ids": true});
    let alone = host.post(BARE, &ordinary).json();
    let hostile = |pattern: &str| {
        let schema = json!({"type": "string", "pattern": pattern});
        json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200,
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}})
    };
    let hostile = [
        hostile("^(([a-z]{1,50} ){1,50}){1,20}$"),
        hostile("^((a?){30}){30}a{30}$"),
        json!({"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_schema",
            "json_schema": {"schema": {"type": "object", "properties": (0..2000).map(|n| (format!("p{n}"),
                json!({"type": "string", "maxLength": n}))).collect::<serde_json::Map<_, _>>()}}}}),
    ];
    thread::scope(|scope| {
        for body in &hostile {
            let host = &host;
            scope.spawn(move || {
                let reply = host.post(CHAT, body);
                let is_culprit = reply.body.contains("cannot be held to its form");
                assert!(reply.status == 200 || is_culprit, "{}", reply.body);
            });
        }
        for _ in 0..5 {
            let beside = host.post(BARE, &ordinary).json();
            assert_eq!(beside["choices"], alone["choices"]);
        }
    });
}
