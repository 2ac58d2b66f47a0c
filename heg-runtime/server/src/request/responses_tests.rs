//! Requests of the Responses API: what they become, and the errors for all others.

use super::*;
use crate::request::Delivery;
use crate::request::shown_cases::{self, BOUNDS};

/// Reads a request with these fields beside model and input.
fn parse(fields: &str) -> Result<ResponsesRequest> {
    let body = shown_cases::body(json!({"model": "m", "input": "hi"}), fields);
    ResponsesRequest::parse(body.as_bytes(), [], &BOUNDS)
}

fn shown(cases: &[&str]) -> String {
    shown_cases::shown(cases, |case| {
        parse(case).and_then(ResponsesRequest::into_first)
    })
}

#[test]
fn items_become_messages_of_chat() {
    insta::assert_snapshot!(shown(&[
        r#"{"instructions":"Be brief."}"#,
        r#"{"input":[{"role":"developer","content":"Be brief."},{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]}]}"#,
        r#"{"input":[{"role":"user","content":"a"},
            {"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"b","annotations":[],"logprobs":[]}]},
            {"type":"reasoning","id":"rs_1","summary":[]},
            {"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{\"x\":1}","status":"completed"},
            {"type":"function_call","call_id":"c2","name":"f","arguments":"{}"},
            {"type":"function_call_output","call_id":"c2","output":"two"},
            {"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"one"}]},
            {"role":"user","content":"go on"}]}"#,
        r#"{"input":[{"role":"user","content":"a"},
            {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"s"}],"content":[{"type":"reasoning_text","text":"Who?"}],"status":"completed"},
            {"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]},
            {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"When?"}]},
            {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
            {"type":"function_call_output","call_id":"c1","output":"x"}]}"#,
        r#"{"input":[{"type":"reasoning","summary":[],"content":[{"type":"output_text","text":"a"}]}]}"#,
        r#"{"input":[{"type":"function_call","call_id":"c1","namespace":"agents","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":"x"}]}"#,
        r#"{"input":[{"type":"function_call_output","namespace":"agents","name":"goal","output":"o"}]}"#,
        r#"{"input":[{"type":"function_call","call_id":"c1","name":"f","arguments":"not JSON"},{"type":"function_call_output","call_id":"c1","output":"x"}]}"#,
    ]));
}

#[test]
fn tools_and_forms_become_those_of_chat() {
    let tools = r#""tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":true}]"#;
    let with = |rest: &str| format!("{{{tools}{rest}}}");
    let cases = [
        with(""),
        with(r#","tool_choice":"required","parallel_tool_calls":false"#),
        with(r#","tool_choice":{"type":"function","name":"f"}"#),
        with(r#","tool_choice":"none","text":{"format":{"type":"json_object"},"verbosity":"low"}"#),
        with(r#","text":{"format":{"type":"json_object"}}"#),
        r#"{"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}}}"#.to_owned(),
        r#"{"client_metadata":{"x":"y"},"tools":[{"type":"namespace","name":"agents","description":"d","tools":[{"type":"function","name":"f","parameters":{"type":"object"}}]},{"type":"web_search","external_web_access":false}]}"#.to_owned(),
        r#"{"text":{"format":{"type":"text"}},"truncation":"auto","include":["reasoning.encrypted_content"],"max_tool_calls":3}"#.to_owned(),
    ];
    insta::assert_snapshot!(shown(&cases.each_ref().map(String::as_str)));
}

#[test]
fn parameters_become_those_of_chat() {
    let request = parse(
        r#"{"temperature":0.5,"top_p":0.25,"max_output_tokens":7,"stream":true,"store":false,"previous_response_id":"resp_1",
        "metadata":{"run":"7"},"reasoning":{"effort":"low"},"user":"u","prompt_cache_key":"k","seed":3,"instructions":"Be brief."}"#,
    )
    .unwrap();
    let params = &request.params;
    assert_eq!(params.tokens_max, Some(7));
    assert_eq!(
        (params.sampling.temperature, params.sampling.top_p),
        (0.5, 0.25)
    );
    assert!(matches!(params.delivery, Delivery::Stream { .. }));
    assert_eq!(request.storing, Storing::Forgotten);
    assert_eq!(request.previous.as_deref(), Some("resp_1"));
    insta::assert_snapshot!(serde_json::to_string_pretty(&request.asked).unwrap());
    let request = request.into_first().unwrap();
    assert_eq!(request.params.ignored, ["prompt_cache_key", "user"]);
    assert_eq!(request.switches[0].field, "reasoning");
    assert_eq!(parse("{}").unwrap().storing, Storing::Kept);
}

#[test]
fn a_conversation_goes_on_behind_what_was_kept() {
    let mut kept = History::default();
    kept.answer("ok");
    kept.call("c1", "f", r#"{"x":1}"#);
    let continued = |input: &str| {
        let request = parse(&format!(
            r#"{{"instructions":"Be brief.","input":{input}}}"#
        ))
        .unwrap();
        request.into_chat(kept.clone())
    };
    let error = continued(r#""go on""#).unwrap_err();
    assert!(
        error.to_string().contains("function_call_output"),
        "{error}"
    );
    let output = r#"[{"type":"function_call_output","call_id":"c1","output":"done"}]"#;
    let (request, history) = continued(output).unwrap();
    // Instructions are of one request, and not of the conversation.
    assert_eq!(history.messages.len(), 2);
    assert_eq!(request.conversation.messages.len(), 3);
}

#[test]
fn fields_that_are_refused() {
    insta::assert_snapshot!(shown(&[
        r#"{"input":null}"#,
        r#"{"input":5}"#,
        r#"{"input":[]}"#,
        r#"{"max_output_tokens":0}"#,
        r#"{"max_tokens":5}"#,
        r#"{"messages":[]}"#,
        r#"{"store":"yes"}"#,
        r#"{"previous_response_id":5}"#,
        r#"{"metadata":{"a":1}}"#,
        r#"{"metadata":"a"}"#,
        r#"{"tools":[{"type":"namespace","name":"agents"}]}"#,
        r#"{"tools":[{"type":"namespace","name":"agents","tools":[{"type":"custom","name":"f"}]}]}"#,
        r#"{"tools":[{"type":"function","name":"f"},{"type":"mcp","server_url":"u"}]}"#,
        r#"{"background":true}"#,
        r#"{"conversation":"conv_1"}"#,
        r#"{"prompt":{"id":"pmpt_1"}}"#,
        r#"{"top_logprobs":2}"#,
        r#"{"include":["message.output_text.logprobs"]}"#,
        r#"{"include":[5]}"#,
        r#"{"truncation":"some"}"#,
        r#"{"context_management":[{"type":"compaction"}]}"#,
        r#"{"n":2}"#,
        r#"{"return_token_ids":true,"stream":true}"#,
        r#"{"temperature":-1}"#,
        r#"{"text":"json"}"#,
        r#"{"text":{"format":{"type":"xml"}}}"#,
        r#"{"text":{"format":{"type":"json_schema","schema":{}}}}"#,
        r#"{"text":{"format":{"type":"json_schema","name":"n"}}}"#,
        r#"{"text":{"mystery":1}}"#,
        r#"{"response_format":{"type":"json_object"}}"#,
        r#"{"mystery":1}"#,
    ]));
}

#[test]
fn tools_that_are_refused() {
    insta::assert_snapshot!(shown(&[
        r#"{"tools":5}"#,
        r#"{"tools":[{"name":"f"}]}"#,
        r#"{"tools":[{"type":"function"}]}"#,
        r#"{"tools":[{"type":"function","function":{"name":"f"}}]}"#,
        r#"{"tools":[{"type":"web_search"}]}"#,
        r#"{"tools":[{"type":"function","name":"f","allowed_callers":["programmatic"]}]}"#,
        r#"{"tools":[{"type":"function","name":"f","mystery":1}]}"#,
        r#"{"tool_choice":"required"}"#,
        r#"{"tool_choice":"some"}"#,
        r#"{"tool_choice":{"type":"web_search"}}"#,
        r#"{"tool_choice":{"type":"function"}}"#,
    ]));
}

#[test]
fn items_that_are_refused() {
    insta::assert_snapshot!(shown(&[
        r#"{"input":["hi"]}"#,
        r#"{"input":[{}]}"#,
        r#"{"input":[{"role":"tool","content":"hi"}]}"#,
        r#"{"input":[{"role":"user"}]}"#,
        r#"{"input":[{"role":"user","content":5}]}"#,
        r#"{"input":[{"role":"user","content":"hi","mystery":1}]}"#,
        r#"{"input":[{"role":"user","content":[{"type":"output_text","text":"hi"}]}]}"#,
        r#"{"input":[{"role":"user","content":[{"type":"input_text"}]}]}"#,
        r#"{"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]}"#,
        r#"{"input":[{"role":"assistant","content":[{"type":"input_text","text":"hi"}]}]}"#,
        r#"{"input":[{"type":"item_reference","id":"msg_1"}]}"#,
        r#"{"input":[{"type":"computer_call"}]}"#,
        r#"{"input":[{"type":"function_call","name":"f","arguments":"{}"}]}"#,
        r#"{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":{}}]}"#,
        r#"{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]}"#,
        r#"{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]}"#,
        r#"{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"role":"user","content":"hi"}]}"#,
        r#"{"input":[{"type":"function_call_output","call_id":"c","output":"x"}]}"#,
    ]));
}
