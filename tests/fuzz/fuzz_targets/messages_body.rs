//! Bodies of Anthropic's Messages API: every input is refused with a client error in its form, or is chat's request of a
//! conversation that ends with the user.

use heg_server::{ApiError, Bound, ChatRequest, ErrorForm, MessagesPurpose, PromptBounds};

/// Small bounds, so that inputs reach them.
const BOUNDS: PromptBounds = PromptBounds {
    tokens: 32,
    bounded_by: Bound::Context,
    token_bytes: 8,
};

pub(crate) fn run(body: &[u8]) {
    let read = |purpose| ChatRequest::parse_messages(body, [], &BOUNDS, purpose);
    let (answer, count) = (read(MessagesPurpose::Answer), read(MessagesPurpose::Count));
    // Whatever is answered can be counted.
    assert!(answer.is_err() || count.is_ok());
    for request in [answer, count] {
        match request {
            Ok(request) => check(&request),
            Err(error) => refused(&error),
        }
    }
}

fn check(request: &ChatRequest) {
    let params = &request.params;
    params.sampling.check().unwrap();
    assert!(params.sampling.temperature <= 1.0 && params.choices == 1);
    assert!(params.model.is_some() && params.tokens_max != Some(0));
    assert!(params.stop.len() <= 16);
    assert!(params.stop.iter().all(|text| !text.trim().is_empty()));
    let messages = serde_json::to_value(&request.conversation.messages).unwrap();
    let messages = messages.as_array().unwrap();
    let role = |at: usize| messages[at]["role"].as_str().unwrap();
    assert!(matches!(role(messages.len() - 1), "user" | "tool"));
    for at in 0..messages.len() {
        assert!(messages[at]["content"].is_string());
        // Results follow their calls, one for each.
        let calls = messages[at]["tool_calls"].as_array().map_or(0, Vec::len);
        let results = (at + 1..messages.len()).take_while(|next| role(*next) == "tool");
        assert!(role(at) == "tool" || calls <= results.count());
    }
    for tool in &request.tooling.tools {
        assert!(tool["function"]["name"].is_string());
        assert_eq!(tool["function"]["parameters"]["type"], "object");
    }
}

/// Checks that an error describes the problem in few words, however long the body is.
fn refused(error: &ApiError) {
    let form = ErrorForm::Anthropic;
    assert!(form.status(error).is_client_error(), "{error}");
    let body = form.body(error);
    assert_eq!(body["error"]["type"], "invalid_request_error");
    let message = body["error"]["message"].as_str().unwrap();
    assert!((1..1000).contains(&message.len()), "{message}");
}
