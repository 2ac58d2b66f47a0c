//! Bodies of requests: every input is refused with a client error, or is a request within its limits.

use heg_server::{
    ApiError, Bound, ChatRequest, CompletionParams, CompletionRequest, PromptBounds, PromptText,
    RerankRequest, flow_to_end,
};

/// Small bounds, so that inputs reach them.
const BOUNDS: PromptBounds = PromptBounds {
    tokens: 32,
    bounded_by: Bound::Context,
    token_bytes: 8,
};

pub(crate) fn run(body: &[u8]) {
    match ChatRequest::parse(body, [], &BOUNDS) {
        Ok(request) => {
            assert!(!request.conversation.messages.is_empty());
            let predicted = request.prediction.unwrap_or_default();
            assert!(predicted.len() <= 32 * 8);
            check(&request.params);
        }
        Err(error) => refused(&error),
    }
    match CompletionRequest::parse(body, [("heg-priority", "1")], &BOUNDS) {
        Ok(request) => {
            match request.prompt {
                PromptText::Tokens(ids) => assert!(ids.len() < 32),
                PromptText::Text(text) => assert!(text.len() < 32 * 8),
            }
            check(&request.params);
        }
        Err(error) => refused(&error),
    }
    match RerankRequest::parse(body, [], &BOUNDS) {
        Ok(request) => {
            assert!((1..=2048).contains(&request.documents.len()));
            assert!(request.top_n != Some(0));
        }
        Err(error) => refused(&error),
    }
    match flow_to_end(body, &BOUNDS) {
        Ok(flow) => assert!((1..=256).contains(&flow.len())),
        Err(error) => refused(&error),
    }
}

fn check(params: &CompletionParams) {
    params.sampling.check().unwrap();
    assert!(params.tokens_max != Some(0) && params.stop.len() <= 16);
    assert!(params.stop.iter().all(|text| text.len() <= 256));
    assert!(params.stop.iter().map(String::len).sum::<usize>() <= 1024);
    for name in [&params.flow, &params.supersede_key].into_iter().flatten() {
        assert!((1..=256).contains(&name.len()));
    }
}

/// Checks that an error describes the problem in few words, however long the body is.
fn refused(error: &ApiError) {
    assert!(error.status().is_client_error(), "{error}");
    let body = error.body();
    let message = body["error"]["message"].as_str().unwrap();
    assert!((1..1000).contains(&message.len()), "{message}");
}
