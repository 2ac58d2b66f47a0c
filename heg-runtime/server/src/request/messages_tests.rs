//! Requests of the Messages API: what they become, and the errors for all others.

use super::*;
use crate::request::Delivery;
use crate::request::shown_cases::{self, BOUNDS};

/// Reads a request with these fields beside model, limit and a question.
fn parse(fields: &str) -> Result<ChatRequest> {
    let plain = json!({
        "model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]
    });
    let body = shown_cases::body(plain, fields);
    ChatRequest::parse_messages(body.as_bytes(), [], &BOUNDS, MessagesPurpose::Answer)
}

fn shown(cases: &[&str]) -> String {
    shown_cases::shown(cases, parse)
}

#[test]
fn conversations_become_those_of_chat() {
    insta::assert_snapshot!(shown(&[
        r#"{"system":"Be brief."}"#,
        r#"{"system":[{"type":"text","text":"Be ","cache_control":{"type":"ephemeral"}},{"type":"text","text":"brief."}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}"#,
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}"#,
        r#"{"messages":[{"role":"user","content":"a"},{"role":"system","content":[{"type":"text","text":"late"}]}]}"#,
        r#"{"messages":[{"role":"user","content":"call"},
            {"role":"assistant","content":[{"type":"thinking","thinking":"h","signature":"s"},{"type":"text","text":"ok"},
                {"type":"tool_use","id":"t1","name":"f","input":{"x":1}},{"type":"tool_use","id":"t2","name":"f","input":{}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"t2","content":"two","is_error":true},
                {"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"one"}]},
                {"type":"text","text":"go on"}]}]}"#,
        r#"{"messages":[{"role":"user","content":"a"},
            {"role":"assistant","content":[{"type":"redacted_thinking","data":"x"},{"type":"thinking","thinking":"h"},
                {"type":"thinking","thinking":"m","signature":""}]},
            {"role":"user","content":"b"}]}"#,
        r#"{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":1}]},{"role":"user","content":"b"}]}"#,
    ]));
}

#[test]
fn tools_become_those_of_chat() {
    let tools = r#""tools":[{"name":"f","description":"d","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}}]"#;
    let with = |rest: &str| format!("{{{tools}{rest}}}");
    let cases = [
        "",
        r#","tool_choice":{"type":"auto","disable_parallel_tool_use":true}"#,
        r#","tool_choice":{"type":"any"}"#,
        r#","tool_choice":{"type":"tool","name":"f"}"#,
        r#","tool_choice":{"type":"none"}"#,
        r#","output_config":{"format":{"type":"json_schema","schema":{}}}"#,
        r#","tool_choice":{"type":"none"},"output_config":{"format":{"type":"json_schema","schema":{}}}"#,
    ];
    let cases = cases.map(with);
    insta::assert_snapshot!(shown(&cases.each_ref().map(String::as_str)));
}

#[test]
fn parameters_become_those_of_chat() {
    let request = parse(
        r#"{"temperature":0.5,"top_p":0.9,"top_k":40,"stop_sequences":["x","yz"],"stream":true,
        "metadata":{"user_id":"u"},"thinking":{"type":"enabled","budget_tokens":1024},"cache_control":{"type":"ephemeral"},
        "service_tier":"standard_only","output_config":{"effort":"low"},"seed":3,"priority":"proactive"}"#,
    )
    .unwrap();
    let params = &request.params;
    assert_eq!(params.model.as_deref(), Some("m"));
    assert_eq!(params.tokens_max, Some(5));
    assert_eq!(
        (params.sampling.temperature, params.sampling.top_p),
        (0.5, 0.9)
    );
    assert_eq!((params.sampling.top_k, params.sampling.seed), (Some(40), 3));
    assert_eq!(params.stop, ["x", "yz"]);
    assert!(matches!(params.delivery, Delivery::Stream { .. }));
    assert_eq!(params.class, heg_sched::Class::Proactive);
    assert_eq!(
        params.ignored,
        ["metadata", "cache_control", "service_tier"]
    );
    let switches: Vec<&str> = request.switches.iter().map(|it| it.field).collect();
    assert_eq!(switches, ["thinking", "reasoning_effort"]);
}

#[test]
fn a_count_needs_no_limit() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    let read = |purpose| ChatRequest::parse_messages(body, [], &BOUNDS, purpose);
    assert!(read(MessagesPurpose::Count).is_ok());
    let error = read(MessagesPurpose::Answer).unwrap_err();
    assert_eq!(error.to_string(), "the field `max_tokens` is missing");
}

#[test]
fn fields_that_are_refused() {
    insta::assert_snapshot!(shown(&[
        r#"{"model":null}"#,
        r#"{"max_tokens":0}"#,
        r#"{"max_tokens":"many"}"#,
        r#"{"temperature":1.5}"#,
        r#"{"top_p":2}"#,
        r#"{"stop_sequences":"x"}"#,
        r#"{"stop_sequences":[" "]}"#,
        r#"{"stream":"yes"}"#,
        r#"{"n":2}"#,
        r#"{"stop":["x"]}"#,
        r#"{"logprobs":true}"#,
        r#"{"return_token_ids":true,"stream":true}"#,
        r#"{"service_tier":"flex"}"#,
        r#"{"speed":"fast"}"#,
        r#"{"mcp_servers":[{"url":"x"}]}"#,
        r#"{"container":"c"}"#,
        r#"{"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]}}"#,
        r#"{"context_management":{"edits":[{"type":"clear_thinking_20251015"}]}}"#,
        r#"{"thinking":"on"}"#,
        r#"{"output_config":{"format":{"type":"xml"}}}"#,
        r#"{"output_config":{"format":{"type":"json_schema"}}}"#,
        r#"{"mystery":1}"#,
    ]));
}

#[test]
fn tools_that_are_refused() {
    insta::assert_snapshot!(shown(&[
        r#"{"tools":5}"#,
        r#"{"tools":[5]}"#,
        r#"{"tools":[{"name":"f"}]}"#,
        r#"{"tools":[{"name":"f","input_schema":{"type":"array"}}]}"#,
        r#"{"tools":[{"name":"a b","input_schema":{"type":"object"}}]}"#,
        r#"{"tools":[{"type":"web_search_20250305","name":"web_search"}]}"#,
        r#"{"tools":[{"name":"f","input_schema":{"type":"object"},"defer_loading":true}]}"#,
        r#"{"tools":[{"name":"f","input_schema":{"type":"object"},"mystery":1}]}"#,
        r#"{"tool_choice":{"type":"any"}}"#,
        r#"{"tool_choice":"auto"}"#,
        r#"{"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"some"}}"#,
        r#"{"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"tool"}}"#,
    ]));
}

#[test]
fn messages_that_are_refused() {
    insta::assert_snapshot!(shown(&[
        r#"{"messages":null}"#,
        r#"{"messages":[]}"#,
        r#"{"messages":"hi"}"#,
        r#"{"messages":["hi"]}"#,
        r#"{"messages":[{"content":"hi"}]}"#,
        r#"{"messages":[{"role":"system","content":"hi"}]}"#,
        r#"{"messages":[{"role":"user","content":"hi"},{"role":"tool","content":"hi"}]}"#,
        r#"{"messages":[{"role":"user"}]}"#,
        r#"{"messages":[{"role":"user","content":[]}]}"#,
        r#"{"messages":[{"role":"user","content":""}]}"#,
        r#"{"messages":[{"role":"user","content":"hi","name":"Ana"}]}"#,
        r#"{"messages":[{"role":"user","content":[{"text":"hi"}]}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"text"}]}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a","mystery":1}]}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"document","source":{}}]}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}]}"#,
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#,
        r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":"a"}]}"#,
        r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}},{"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":"a"}]}"#,
        r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":"{}"}]},{"role":"user","content":"a"}]}"#,
        r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image"}]}]}]}"#,
        r#"{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":[{"type":"text","text":"a"},{"type":"tool_result","tool_use_id":"t"}]}]}"#,
        r#"{"system":5}"#,
        r#"{"system":[{"type":"image"}]}"#,
    ]));
}
