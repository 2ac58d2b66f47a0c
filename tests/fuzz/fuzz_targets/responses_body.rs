//! Bodies of OpenAI's Responses API: every input is refused with a client error, or is chat's request of a conversation
//! in which every call has its output.

use heg_server::{ApiError, Bound, PromptBounds, ResponsesRequest};

/// Small bounds, so that inputs reach them.
const BOUNDS: PromptBounds = PromptBounds {
    tokens: 32,
    bounded_by: Bound::Context,
    token_bytes: 8,
};

pub(crate) fn run(body: &[u8]) {
    match ResponsesRequest::parse(body, [], &BOUNDS) {
        Ok(request) => check(request),
        Err(error) => refused(&error),
    }
}

fn check(request: ResponsesRequest) {
    let params = &request.params;
    params.sampling.check().unwrap();
    assert!(params.tokens_max != Some(0) && params.choices == 1 && params.stop.len() <= 16);
    let metadata = request.asked["metadata"].as_object().unwrap();
    assert!(metadata.len() <= 16 && metadata.values().all(|text| text.is_string()));
    let request = match request.into_first() {
        Ok(request) => request,
        Err(error) => return refused(&error),
    };
    let messages = serde_json::to_value(&request.conversation.messages).unwrap();
    let messages = messages.as_array().unwrap();
    assert!(!messages.is_empty());
    let count = |role: &str| messages.iter().filter(|it| it["role"] == role).count();
    let calls = messages.iter().filter_map(|it| it["tool_calls"].as_array());
    assert_eq!(calls.map(Vec::len).sum::<usize>(), count("tool"));
    assert!(
        messages
            .iter()
            .all(|message| message["content"].is_string())
    );
    for tool in &request.tooling.tools {
        assert!(tool["function"]["name"].is_string());
    }
}

/// Checks that an error describes the problem in few words, however long the body is.
fn refused(error: &ApiError) {
    assert!(error.status().is_client_error(), "{error}");
    let body = error.body();
    let message = body["error"]["message"].as_str().unwrap();
    assert!((1..1000).contains(&message.len()), "{message}");
}
