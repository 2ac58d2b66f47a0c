//! The valid requests, and the errors for all others, pinned as clients see them.

use super::*;
use heg_runtime::engine::Speculation;
use heg_sched::Class;
use heg_text::SamplingParams;
use std::time::Duration;

/// The bounds of tiny-agent.
const BOUNDS: PromptBounds = PromptBounds {
    tokens: 1024,
    bounded_by: Bound::Context,
    token_bytes: 16,
};

fn chat(body: &str) -> Result<ChatRequest> {
    ChatRequest::parse(body.as_bytes(), [], &BOUNDS)
}

fn bare(body: &str) -> Result<CompletionRequest> {
    CompletionRequest::parse(body.as_bytes(), [], &BOUNDS)
}

/// Returns a chat request with further fields.
fn params(fields: &str) -> Result<CompletionParams> {
    let body = format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{fields}}}"#);
    Ok(chat(&body)?.params)
}

/// Returns the status and body of each error, for a snapshot.
fn refusals<T: std::fmt::Debug>(cases: &[&str], parse: impl Fn(&str) -> Result<T>) -> String {
    let mut text = String::new();
    for case in cases {
        let shown: String = case.chars().take(80).collect();
        let error = match parse(case) {
            Ok(request) => format!("accepted: {request:?}"),
            Err(error) => format!("{} {}", error.status().as_u16(), error.body()),
        };
        text.push_str(&format!("{shown}\n  {error}\n"));
    }
    text
}

#[test]
fn chat_bodies_that_are_refused() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let cases = [
        "",
        "{",
        "[]",
        "\"text\"",
        deep.as_str(),
        "{}",
        r#"{"messages": []}"#,
        r#"{"messages": "hi"}"#,
        r#"{"messages": ["hi"]}"#,
        r#"{"messages": [{"content": "hi"}]}"#,
        r#"{"messages": [{"role": 3, "content": "hi"}]}"#,
        r#"{"messages": [{"role": "user"}]}"#,
        r#"{"messages": [{"role": "user", "content": 5}]}"#,
        r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}"#,
        r#"{"messages": [{"role": "assistant", "content": null, "tool_calls": {}}]}"#,
        r#"{"messages": [{"role": "user", "content": "\ud800"}]}"#,
    ];
    insta::assert_snapshot!(refusals(&cases, chat));
}

#[test]
fn invalid_utf8_is_refused() {
    let body = b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}";
    let error = ChatRequest::parse(body, [], &BOUNDS).unwrap_err();
    insta::assert_snapshot!(error.to_string());
}

#[test]
fn fields_that_are_refused() {
    let cases = [
        r#","n":0"#,
        r#","n":9"#,
        r#","n":1.5"#,
        r#","n":2,"flow_id":"f""#,
        r#","n":2,"supersede_key":"k""#,
        r#","best_of":2"#,
        r#","temperature":-1"#,
        r#","temperature":"hot""#,
        r#","temperature":1e300"#,
        r#","top_p":0"#,
        r#","top_k":-2"#,
        r#","min_p":2"#,
        r#","repetition_penalty":0"#,
        r#","presence_penalty":2.5"#,
        r#","frequency_penalty":-3"#,
        r#","frequency_penalty":"much""#,
        r#","logit_bias":[5]"#,
        r#","logit_bias":{"five":1}"#,
        r#","logit_bias":{"-5":1}"#,
        r#","logit_bias":{"5":101}"#,
        r#","logit_bias":{"5":"1"}"#,
        r#","logprobs":5"#,
        r#","top_logprobs":5"#,
        r#","logprobs":true,"top_logprobs":21"#,
        r#","logprobs":true,"top_logprobs":-1"#,
        r#","echo":true"#,
        r#","max_tokens":0"#,
        r#","max_completion_tokens":-3"#,
        r#","max_tokens":1e9"#,
        r#","seed":1.5"#,
        r#","stop":5"#,
        r#","stop":["a",1]"#,
        r#","stop":["","","","","","","","","","","","","","","","",""]"#,
        r#","stream":"yes""#,
        r#","stream_options":{"include_usage":1}"#,
        r#","stream_options":{"usage":true}"#,
        r#","priority":"urgent""#,
        r#","priority":1.5"#,
        r#","service_tier":"gold""#,
        r#","flow_id":"""#,
        r#","flow_id":7"#,
        r#","deadline_ms":0"#,
        r#","speculate":"more""#,
        r#","speculate":true"#,
        r#","prediction":"text""#,
        r#","prediction":{"content":"text"}"#,
        r#","prediction":{"type":"text","content":"text"}"#,
        r#","prediction":{"type":"content"}"#,
        r#","prediction":{"type":"content","content":5}"#,
        r#","prediction":{"type":"content","content":[{"type":"image_url"}]}"#,
        r#","prediction":{"type":"content","content":"text","more":1}"#,
        r#","modalities":["audio"]"#,
        r#","tools":5"#,
        r#","tool_choice":"required""#,
        r#","tools":[{}],"tool_choice":"some""#,
        r#","tools":[{}],"response_format":{"type":"json_object"}"#,
        r#","response_format":"json""#,
        r#","response_format":{"type":"xml"}"#,
        r#","response_format":{"type":"json_schema"}"#,
        r#","parallel_tool_calls":1"#,
        r#","temprature":1"#,
    ];
    insta::assert_snapshot!(refusals(&cases, params));
}

#[test]
fn prompts_that_are_refused() {
    let cases = [
        r#"{}"#,
        r#"{"prompt": 5}"#,
        r#"{"prompt": [1, -1]}"#,
        r#"{"prompt": [1, 4294967296]}"#,
        r#"{"prompt": [1, "a"]}"#,
        r#"{"prompt": ["a", "b"]}"#,
        r#"{"prompt": [[1], [2]]}"#,
        r#"{"prompt": "a", "echo": "yes"}"#,
        r#"{"prompt": "a", "max_tokens": 0}"#,
        r#"{"prompt": "a", "max_tokens": -1, "echo": true}"#,
        r#"{"prompt": "a", "best_of": 2}"#,
        r#"{"prompt": "a", "logprobs": 6}"#,
        r#"{"prompt": "a", "logprobs": true}"#,
        r#"{"prompt": "a", "top_logprobs": 1}"#,
        r#"{"prompt": "a", "suffix": "b"}"#,
        r#"{"prompt": "a", "messages": []}"#,
        r#"{"prompt": true}"#,
        r#"{"prompt": {}}"#,
        r#"{"prompt": [1, []]}"#,
        r#"{"prompt": [[[]]]}"#,
        r#"{"prompt": [null]}"#,
        r#"{"prompt": null}"#,
        r#"{"prompt": "a"} x"#,
        r#"{"prompt": [1, 2"#,
    ];
    insta::assert_snapshot!(refusals(&cases, bare));
}

/// Values that are too long are refused before they are kept, with a message that gives the limit.
#[test]
fn what_is_too_long_is_refused() {
    let text = |letters: usize| "x".repeat(letters);
    let ids = |count: usize| vec!["0"; count].join(",");
    let biases = |count: usize| {
        let biases: Vec<String> = (0..count).map(|id| format!(r#""{id}":1"#)).collect();
        biases.join(",")
    };
    let cases = [
        format!(r#"{{"prompt": [{}]}}"#, ids(1024)),
        format!(r#"{{"prompt": [[{}]]}}"#, ids(4_000_000)),
        format!(r#"{{"prompt": "{}"}}"#, text(16 * 1023 + 1)),
        format!(r#"{{"prompt": ["{}"]}}"#, text(8_000_000)),
        format!(r#"{{"prompt": "a", "stop": "{}"}}"#, text(257)),
        format!(r#"{{"prompt": "a", "stop": ["b", "{}"]}}"#, text(8_000_000)),
        format!(
            r#"{{"prompt": "a", "stop": [{}]}}"#,
            vec![format!("{:?}", text(256)); 5].join(",")
        ),
        format!(r#"{{"prompt": "a", "logit_bias": [{}]}}"#, ids(4_000_000)),
        format!(r#"{{"prompt": "a", "logit_bias": {{{}}}}}"#, biases(1025)),
        format!(
            r#"{{"prompt": "a", "tools": {{{}}}}}"#,
            vec![r#""a":{}"#; 100_000].join(",")
        ),
    ];
    insta::assert_snapshot!(refusals(&cases.each_ref().map(String::as_str), bare));
    let fits = [
        format!(r#"{{"prompt": [{}]}}"#, ids(1023)),
        format!(r#"{{"prompt": "{}"}}"#, text(16 * 1023)),
        format!(
            r#"{{"prompt": "a", "stop": [{}]}}"#,
            vec![format!("{:?}", text(64)); 16].join(",")
        ),
        format!(r#"{{"prompt": "a", "logit_bias": {{{}}}}}"#, biases(1024)),
        // A field without meaning to this server is not kept.
        format!(r#"{{"prompt": "a", "metadata": [{}]}}"#, ids(4_000_000)),
    ];
    for body in fits {
        assert!(bare(&body).is_ok(), "{}", &body[..40]);
    }
}

#[test]
fn prompts_come_in_four_forms() {
    let prompt = |json: &str| bare(&format!(r#"{{"prompt":{json}}}"#)).unwrap().prompt;
    assert_eq!(prompt(r#""a""#), PromptText::Text("a".into()));
    assert_eq!(prompt(r#"["a"]"#), PromptText::Text("a".into()));
    assert_eq!(prompt("[1,2]"), PromptText::Tokens(vec![1, 2]));
    assert_eq!(prompt("[[1,2]]"), PromptText::Tokens(vec![1, 2]));
    assert_eq!(prompt("[]"), PromptText::Tokens(vec![]));
}

#[test]
fn a_request_without_wishes_gets_the_defaults_of_openai() {
    let CompletionParams { sampling, .. } = params("").unwrap();
    let seed = sampling.seed;
    let expected = CompletionParams {
        model: None,
        tokens_max: None,
        choices: 1,
        log_probs: None,
        echo: EchoPrompt::Omitted,
        sampling: SamplingParams {
            temperature: 1.0,
            seed,
            ..SamplingParams::default()
        },
        logit_bias: Vec::new(),
        stop: Vec::new(),
        thoughts: Thoughts::Apart,
        end_token: EndToken::Ends,
        delivery: Delivery::Whole,
        token_ids: TokenIds::Omitted,
        class: Class::Reactive,
        flow: None,
        deadline: None,
        supersede_key: None,
        speculation: None,
        ignored: Vec::new(),
    };
    assert_eq!(
        CompletionParams {
            sampling,
            ..params("").unwrap()
        },
        expected
    );
    assert_ne!(params("").unwrap().sampling.seed, seed);
    let tokens_max = bare(r#"{"prompt":"a"}"#).unwrap().params.tokens_max;
    assert_eq!(tokens_max, None);
}

#[test]
fn wishes_are_read() {
    let read = params(
        r#","model":"m","max_tokens":5,"max_completion_tokens":7,"temperature":0,"top_p":0.5,"top_k":40,
        "min_p":0.1,"repetition_penalty":1.1,"seed":-1,"stop":"x","ignore_eos":true,"stream":true,
        "stream_options":{"include_usage":true},"return_token_ids":true,"priority":"proactive","flow_id":"f",
        "deadline_ms":1500,"supersede_key":"k","speculate":"chain","user":"me","n":1,
        "presence_penalty":0.5,"frequency_penalty":-0.25,"logit_bias":{"5":-100,"7":1.5},"logprobs":true,
        "top_logprobs":20,"reasoning_format":"none""#,
    );
    let expected = CompletionParams {
        model: Some("m".into()),
        tokens_max: Some(7),
        choices: 1,
        log_probs: Some(20),
        echo: EchoPrompt::Omitted,
        sampling: SamplingParams {
            temperature: 0.0,
            top_k: Some(40),
            top_p: 0.5,
            min_p: 0.1,
            repetition_penalty: 1.1,
            presence_penalty: 0.5,
            frequency_penalty: -0.25,
            seed: u64::MAX,
        },
        logit_bias: vec![(5, -100.0), (7, 1.5)],
        stop: vec!["x".into()],
        thoughts: Thoughts::InText,
        end_token: EndToken::Ignored,
        delivery: Delivery::Stream {
            usage: Usage::Included,
        },
        token_ids: TokenIds::Included,
        class: Class::Proactive,
        flow: Some("f".into()),
        deadline: Some(Duration::from_millis(1500)),
        supersede_key: Some("k".into()),
        speculation: Some(Speculation::Chain),
        ignored: vec!["user"],
    };
    assert_eq!(read.unwrap(), expected);
}

#[test]
fn fields_of_other_runtimes_become_ours_or_are_named() {
    let ollama = params(
        r#","options":{"num_ctx":8192,"num_predict":-1,"temperature":0.25,"repeat_penalty":1.25,"repeat_last_n":-1},
        "keep_alive":"5m""#,
    )
    .unwrap();
    assert_eq!(ollama.tokens_max, None);
    assert_eq!(ollama.sampling.temperature, 0.25);
    assert_eq!(ollama.sampling.repetition_penalty, 1.25);
    assert_eq!(ollama.ignored, ["keep_alive", "num_ctx"]);
    // The settings of llama.cpp's page, where nobody has changed one.
    let page = params(
        r#","cache_prompt":true,"dynatemp_range":0,"dynatemp_exponent":1,"xtc_probability":0,
        "xtc_threshold":0.1,"typ_p":1,"repeat_last_n":64,"repeat_penalty":1,"dry_multiplier":0,"dry_base":1.75,
        "dry_allowed_length":2,"dry_penalty_last_n":-1,"timings_per_token":true,"return_progress":true,"n_predict":7"#,
    )
    .unwrap();
    assert_eq!(page.tokens_max, Some(7));
    assert_eq!(page.sampling.repetition_penalty, 1.0);
    assert_eq!(page.ignored.len(), 8, "{:?}", page.ignored);
    // Our own name counts where both are there.
    let both = params(r#","max_tokens":3,"n_predict":7,"options":{"max_tokens":9}"#).unwrap();
    assert_eq!(both.tokens_max, Some(3));
}

#[test]
fn switches_are_variables_of_the_template() {
    let asked = |fields: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{fields}}}"#);
        let request = chat(&body).unwrap();
        let fields: Vec<&str> = request.switches.iter().map(|it| it.field).collect();
        (
            serde_json::Value::from(request.conversation.variables).to_string(),
            fields.join(" "),
        )
    };
    let cases = [
        r#","enable_thinking":false"#,
        r#","think":true"#,
        r#","thinking":{"type":"enabled","budget_tokens":1024}"#,
        r#","thinking":{"type":"disabled"}"#,
        r#","reasoning_effort":"low""#,
        r#","reasoning":{"effort":"high","summary":"auto"}"#,
        r#","reasoning":{"effort":null}"#,
        r#","chat_template_kwargs":{"enable_thinking":false},"enable_thinking":true"#,
    ];
    let read: Vec<String> = cases
        .map(|case| {
            let (variables, fields) = asked(case);
            format!("{case}\n  {variables} by {fields}\n")
        })
        .into();
    insta::assert_snapshot!(read.concat());
}

#[test]
fn fields_of_other_runtimes_that_are_refused() {
    let cases = [
        r#","mirostat":2"#,
        r#","typical_p":0.9"#,
        r#","typ_p":0.9"#,
        r#","dry_multiplier":0.8"#,
        r#","min_tokens":10"#,
        r#","stop_token_ids":[2]"#,
        r#","use_beam_search":true"#,
        r#","skip_special_tokens":false"#,
        r#","continue_final_message":true"#,
        r#","echo":true"#,
        r#","repeat_penalty":1.1,"repeat_last_n":64"#,
        r#","options":"fast""#,
        r#","options":{"mystery":1}"#,
        r#","num_predict":0"#,
        r#","think":"hard""#,
        r#","reasoning_format":"deepseek-legacy""#,
        r#","thinking":{"type":"enabled","mystery":1}"#,
    ];
    insta::assert_snapshot!(refusals(&cases, params));
}

#[test]
fn predictions_come_whole_and_in_parts() {
    let prediction = |content: &str| {
        let field = format!(r#""prediction":{{"type":"content","content":{content}}}"#);
        let messages = r#""messages":[{"role":"user","content":"hi"}]"#;
        Ok::<_, ApiError>(chat(&format!("{{{messages},{field}}}"))?.prediction)
    };
    assert_eq!(prediction(r#""ab""#).unwrap().as_deref(), Some("ab"));
    let parts = r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#;
    assert_eq!(prediction(parts).unwrap().as_deref(), Some("ab"));
    let text = |letters: usize| format!("{:?}", "x".repeat(letters));
    assert!(prediction(&text(16 * 1024)).is_ok());
    let error = prediction(&text(16 * 1024 + 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`prediction`: expected no more tokens than prompt and answer may have together, found at least 1025 tokens, \
         with room for 1024"
    );
}

#[test]
fn log_probabilities_are_asked_for_in_two_ways() {
    let chat = |fields: &str| params(fields).unwrap().log_probs;
    assert_eq!(chat(r#","logprobs":true"#), Some(0));
    assert_eq!(chat(r#","logprobs":true,"top_logprobs":3"#), Some(3));
    assert_eq!(chat(r#","logprobs":false,"top_logprobs":0"#), None);
    assert_eq!(chat(r#","logprobs":null,"top_logprobs":null"#), None);
    let bare = |fields: &str| {
        bare(&format!(r#"{{"prompt":"a"{fields}}}"#))
            .unwrap()
            .params
    };
    assert_eq!(bare(r#","logprobs":null"#).log_probs, None);
    assert_eq!(bare(r#","logprobs":0"#).log_probs, Some(0));
    let scored = bare(r#","logprobs":5,"echo":true,"max_tokens":0,"n":8"#);
    assert_eq!(
        (
            scored.log_probs,
            scored.echo,
            scored.tokens_max,
            scored.choices
        ),
        (Some(5), EchoPrompt::Included, Some(0), 8)
    );
}

#[test]
fn urgency_is_said_in_three_ways() {
    let class = |fields: &str| params(fields).unwrap().class;
    for (fields, expected) in [
        (r#","priority":"reactive""#, Class::Reactive),
        (r#","priority":0"#, Class::Reactive),
        (r#","priority":-5"#, Class::Reactive),
        (r#","priority":1"#, Class::Proactive),
        (r#","service_tier":"flex""#, Class::Proactive),
        (r#","service_tier":"auto""#, Class::Reactive),
        (
            r#","service_tier":"flex","priority":"reactive""#,
            Class::Reactive,
        ),
    ] {
        assert_eq!(class(fields), expected, "{fields}");
    }
}

#[test]
fn headers_stand_in_for_fields() {
    let headers = [
        ("heg-priority", "1"),
        ("heg-flow-id", "12"),
        ("heg-deadline-ms", "20"),
        ("heg-supersede-key", "k"),
        ("heg-else", "x"),
    ];
    let params = |body: &str| {
        CompletionRequest::parse(body.as_bytes(), headers, &BOUNDS)
            .unwrap()
            .params
    };
    let read = params(r#"{"prompt":"a","supersede_key":"own"}"#);
    assert_eq!(read.class, Class::Proactive);
    assert_eq!(read.flow.as_deref(), Some("12"));
    assert_eq!(read.deadline, Some(Duration::from_millis(20)));
    // The field of the body wins over the header.
    assert_eq!(read.supersede_key.as_deref(), Some("own"));
}

#[test]
fn messages_come_in_the_form_of_templates() {
    let body = r#"{"messages":[
        {"role":"developer","content":"be short"},
        {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
        {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",
            "function":{"name":"f","arguments":"{\"x\":1}"}}]},
        {"role":"tool","tool_call_id":"c1","content":"ok"},
        {"role":"assistant","content":null,"reasoning_content":"Who?"},
        {"role":"assistant","content":"done","tool_calls":null}]}"#;
    let messages = chat(body).unwrap().conversation.messages;
    insta::assert_snapshot!(serde_json::to_string_pretty(&messages).unwrap());
}
