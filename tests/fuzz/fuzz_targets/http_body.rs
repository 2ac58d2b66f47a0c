//! Bodies of requests: whatever comes in is refused with a client's error, or is a request within its limits.
#![no_main]

use heg_runtime::server::{ApiError, ChatRequest, CompletionRequest, Wishes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    match ChatRequest::parse(body, []) {
        Ok(request) => {
            assert!(!request.conversation.messages.is_empty());
            check(&request.wishes);
        }
        Err(error) => refused(&error),
    }
    match CompletionRequest::parse(body, [("heg-priority", "1")]) {
        Ok(request) => {
            assert!(request.wishes.tokens_max.is_some());
            check(&request.wishes);
        }
        Err(error) => refused(&error),
    }
});

fn check(wishes: &Wishes) {
    wishes.sampling.check().unwrap();
    assert!(wishes.tokens_max != Some(0) && wishes.stop.len() <= 16);
    for name in [&wishes.flow, &wishes.supersede_key].into_iter().flatten() {
        assert!((1..=256).contains(&name.len()));
    }
}

/// An error says what is wrong, in few words however long the body is.
fn refused(error: &ApiError) {
    assert!(error.status().is_client_error(), "{error}");
    let body = error.body();
    let message = body["error"]["message"].as_str().unwrap();
    assert!((1..1000).contains(&message.len()), "{message}");
}
