//! What agents and other clients send, unchanged but for texts, most of their tools and limits above the model's context:
//! each request is answered, and the header names what has no effect.
//!
//! `agents.json` was recorded from the clients that it names, while each did a task with tools.

use serde_json::Value;

use heg_server::Token;

use crate::cases::HEADERS;
use crate::host::Host;

/// Returns the beginning of the last event of a stream from such a path.
fn last_events(path: &str) -> &'static [&'static str] {
    match path {
        "/v1/chat/completions" => &["data: [DONE]"],
        "/v1/responses" => &["event: response.completed", "event: response.incomplete"],
        _ => &["event: message_stop"],
    }
}

#[test]
fn requests_of_agents_are_answered() {
    let host = Host::with(|options| options.tokens = Token::new("s3cret").unwrap().into());
    let cases: Vec<Value> = serde_json::from_str(include_str!("agents.json")).unwrap();
    let page = include_str!("../../heg-runtime/server/API.md");
    for case in &cases {
        let (client, path) = (
            case["client"].as_str().unwrap(),
            case["path"].as_str().unwrap(),
        );
        assert!(page.contains(client), "{client} is not in API.md");
        let reply = host.post_with(path, HEADERS, &case["body"]);
        assert_eq!(reply.status, 200, "{case}: {}", reply.body);
        let ignored = reply.header("heg-ignored-fields");
        assert_eq!(ignored, case["ignored"].as_str(), "{case}");
        if case["body"]["stream"] == true {
            let last = reply.body.trim_end().rsplit("\n\n").next().unwrap();
            let is_end = last_events(path)
                .iter()
                .any(|begin| last.starts_with(begin));
            assert!(is_end, "{case}: {last}");
        } else {
            assert!(reply.json()["usage"].is_object(), "{case}: {}", reply.body);
        }
    }
}
