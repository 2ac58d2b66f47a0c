//! The two routes that answer: a request is read, let in, turned into tokens and handed to the engine; its answer
//! goes out whole or as events.

use std::sync::Arc;

use hyper::Response;
use hyper::header::HeaderValue;

use super::State;
use super::account::{Account, Scope};
use super::answer::{Head, Piece, Voice, millis};
use super::answering::{Answering, Step};
use super::body::Taken;
use super::error::{ApiError, Result};
use super::flows::FlowName;
use super::request::{ChatRequest, CompletionRequest, Delivery, EndToken, TokenIds, Wishes};
use super::route::{Body, blocking, event_response, json_response};
use super::served::Served;
use super::stream::{Empty, Events};
use super::supersede::{Key, Turn};
use super::tools::Held;
use crate::engine::Ask;
use crate::text::{AnswerText, TextStream};

/// `/v1/chat/completions`.
pub(super) async fn chat(
    state: &Arc<State>,
    account: &Account,
    body: Taken,
    headers: Vec<(&'static str, &str)>,
) -> Result<Response<Body>> {
    let request = ChatRequest::parse(&body.bytes, headers)?;
    drop(body);
    let (conversation, tooling) = (request.conversation, request.tooling);
    let prompt = move |served: &Served| served.chat_prompt(&conversation, &tooling);
    answer(state, account, Voice::Chat, request.wishes, prompt).await
}

/// `/v1/completions`.
pub(super) async fn bare(
    state: &Arc<State>,
    account: &Account,
    body: Taken,
    headers: Vec<(&'static str, &str)>,
) -> Result<Response<Body>> {
    let request = CompletionRequest::parse(&body.bytes, headers)?;
    drop(body);
    let prompt = move |served: &Served| Ok((served.bare_prompt(request.prompt)?, Held::default()));
    answer(state, account, Voice::Completion, request.wishes, prompt).await
}

async fn answer(
    state: &Arc<State>,
    account: &Account,
    voice: Voice,
    wishes: Wishes,
    prompt: impl FnOnce(&Served) -> Result<(Vec<u32>, Held)> + Send + 'static,
) -> Result<Response<Body>> {
    if let Some(asked) = &wishes.model {
        state.served.check_model(asked)?;
    }
    let place = state.admission.enter(account.scope(), wishes.class)?;
    let mut turn = match &wishes.supersede_key {
        Some(key) => state.superseding.begin(Key {
            scope: account.scope(),
            text: key.clone(),
        }),
        None => Turn::default(),
    };
    // Templates and tokenizers take milliseconds for long prompts.
    let served = Arc::clone(&state.served);
    let (prompt, held) = blocking(move || prompt(&served)).await?;
    if turn.is_over() {
        return Err(ApiError::Superseded);
    }
    let syntax = held.syntax;
    let (ask, text) = ask(state, account.scope(), &wishes, prompt, held);
    let engine = &state.served.engine;
    let mut answering = Answering::submit(engine, ask, text, syntax, turn, place, &state.metrics);
    // Nothing is sent before the scheduler has the request, so that a refusal has a status.
    let predicted = answering.accepted().await?;
    let head = state.head(voice);
    let mut response = match wishes.delivery {
        Delivery::Whole => whole(&head, &mut answering, wishes.token_ids).await?,
        Delivery::Stream { usage } => {
            // Who asks for completions counts tokens, and may have given ids whose text means nothing.
            let empty = match (voice, wishes.token_ids, &state.served.tokenizer) {
                (Voice::Chat, TokenIds::Omitted, Some(_)) => Empty::Omitted,
                _ => Empty::Sent,
            };
            let events = Events::new(head, answering, usage, wishes.token_ids, empty);
            event_response(events)
        }
    };
    if let Ok(predicted) = HeaderValue::from_str(&millis(predicted).to_string()) {
        let headers = response.headers_mut();
        headers.insert("heg-predicted-ttft-ms", predicted);
    }
    Ok(response)
}

/// What the engine is asked, and the text side of its answer.
fn ask(
    state: &State,
    scope: Scope,
    wishes: &Wishes,
    prompt: Vec<u32>,
    held: Held,
) -> (Ask, AnswerText) {
    let served = &state.served;
    let eos_ids = match wishes.end_token {
        EndToken::Ends => served.eos_ids(),
        EndToken::Ignored => &[],
    };
    let tokenizer = served.tokenizer.clone();
    let text = AnswerText::new(
        tokenizer.map(|tokenizer| TextStream::with_calls(tokenizer, held.syntax)),
        wishes.stop.clone(),
        eos_ids,
    );
    let flow = match (&wishes.flow, &wishes.supersede_key) {
        (Some(name), _) => Some(FlowName::Given(name.clone())),
        (None, Some(key)) => Some(FlowName::Superseding(key.clone())),
        (None, None) => None,
    };
    let tokens_max = wishes.tokens_max.unwrap_or(state.limits.answer_tokens);
    let ask = Ask {
        scope: state.prefix_scope(scope),
        class: wishes.class,
        tokens_max: tokens_max.min(served.room(prompt.len())),
        prompt,
        eos_ids: eos_ids.to_vec(),
        sampling: wishes.sampling,
        restriction: held.restriction,
        flow: flow.map(|name| state.flows.named(&served.engine, scope, name)),
        deadline: wishes.deadline,
    };
    (ask, text)
}

async fn whole(
    head: &Head,
    answering: &mut Answering,
    token_ids: TokenIds,
) -> Result<Response<Body>> {
    let mut piece = Piece {
        token_ids: (token_ids == TokenIds::Included).then(Vec::new),
        ..Piece::default()
    };
    loop {
        match answering.next().await? {
            Step::Token { id, said } => {
                piece.add(said);
                piece.token_ids.iter_mut().for_each(|ids| ids.push(id));
            }
            Step::End { said, reason } => {
                piece.add(said);
                let answer = head.whole(piece, reason, answering.figures());
                return Ok(json_response(&answer));
            }
        }
    }
}
