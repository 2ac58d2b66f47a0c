//! The two completion routes: a request is parsed, admitted, tokenized and submitted to the engine; its answer is sent
//! whole or as events.

use std::sync::Arc;
use std::time::Instant;

use hyper::Response;
use hyper::header::HeaderValue;

use super::State;
use super::account::{Account, Charge, Scope};
use super::admission::Permit;
use super::answer::{ApiKind, Envelope, Piece, millis};
use super::answering::{AnswerEvent, Answering};
use super::body::RequestBody;
use super::error::{ApiError, Result};
use super::flows::FlowName;
use super::preparation::Effort;
use super::request::{
    ChatRequest, CompletionParams, CompletionRequest, Delivery, EndToken, PromptText, TokenIds,
};
use super::route::{Body, event_response, json_response};
use super::stream::{Empty, Events};
use super::supersede::{Key, Turn};
use super::tools::{AnswerConstraint, Tooling};
use heg_runtime::engine::{EndTokens, Request};
use heg_text::{AnswerText, Conversation, TextStream};

/// `/v1/chat/completions`.
pub(super) async fn chat(
    state: &Arc<State>,
    account: &Account,
    body: RequestBody,
    headers: Vec<(&'static str, &str)>,
) -> Result<Response<Body>> {
    answer(state, account, ApiKind::Chat, body, headers).await
}

/// `/v1/completions`.
pub(super) async fn bare(
    state: &Arc<State>,
    account: &Account,
    body: RequestBody,
    headers: Vec<(&'static str, &str)>,
) -> Result<Response<Body>> {
    answer(state, account, ApiKind::Completion, body, headers).await
}

/// A prompt as it stands in the body.
enum Prompt {
    Chat(Box<Conversation>, Box<Tooling>),
    Bare(PromptText),
}

/// An admitted request with its prompt as tokens.
struct Prepared {
    params: CompletionParams,
    prompt: Vec<u32>,
    /// The answer format; its grammar is compiled later.
    tooling: Option<Box<Tooling>>,
    permit: Permit,
    turn: Turn,
    /// The charge for what the request keeps, in place of its body.
    charge: Charge,
}

async fn answer(
    state: &Arc<State>,
    account: &Account,
    api: ApiKind,
    body: RequestBody,
    headers: Vec<(&'static str, &str)>,
) -> Result<Response<Body>> {
    let arrived = Instant::now();
    let headers: Vec<_> = headers
        .into_iter()
        .map(|(name, text)| (name, text.to_owned()))
        .collect();
    let effort = Effort::of(body.bytes.len());
    let prepare = {
        let (state, scope) = (Arc::clone(state), account.scope());
        move || prepare(&state, scope, api, body, &headers)
    };
    let prepared = state
        .preparation
        .run(account.scope(), effort, prepare)
        .await?;
    let Prepared {
        mut params,
        prompt,
        tooling,
        permit,
        mut turn,
        mut charge,
    } = prepared;
    let constraint = match tooling {
        None => AnswerConstraint::default(),
        Some(tooling) => {
            let served = Arc::clone(&state.served);
            let work = move || served.hold(&tooling);
            let forms = &state.preparation;
            forms.run(account.scope(), Effort::Form, work).await?
        }
    };
    let kept_bytes = kept_bytes(&params, &prompt, constraint.kept_bytes);
    charge_exactly(&mut charge, kept_bytes)?;
    if turn.is_over() {
        return Err(ApiError::Superseded);
    }
    if let Some(deadline) = &mut params.deadline {
        let left = deadline.checked_sub(arrived.elapsed());
        *deadline = left.ok_or(ApiError::Deadline)?;
    }
    let syntax = constraint.syntax;
    let (ask, text) = ask(state, account.scope(), api, &params, prompt, constraint)?;
    let engine = &state.served.engine;
    let mut answering = Answering::submit(
        engine,
        ask,
        text,
        syntax,
        turn,
        (permit, charge),
        &state.metrics,
    );
    // Nothing is sent before the scheduler has the request, so that a refusal has a status.
    let predicted = answering.accepted().await?;
    let envelope = state.envelope(api);
    let mut response = match params.delivery {
        Delivery::Whole => whole(&envelope, &mut answering, params.token_ids).await?,
        Delivery::Stream { usage } => {
            // Clients of /v1/completions count tokens, and may have sent ids whose text means nothing.
            let empty = match (api, params.token_ids, &state.served.tokenizer) {
                (ApiKind::Chat, TokenIds::Omitted, Some(_)) => Empty::Omitted,
                _ => Empty::Sent,
            };
            let events = Events::new(envelope, answering, usage, params.token_ids, empty);
            event_response(events)
        }
    };
    if let Ok(predicted) = HeaderValue::from_str(&millis(predicted).to_string()) {
        let headers = response.headers_mut();
        headers.insert("heg-predicted-ttft-ms", predicted);
    }
    Ok(response)
}

/// Parses a body, admits its request, and tokenizes its prompt. Runs outside of the event loop: a body may be large,
/// and templates and tokenizers take milliseconds for long prompts.
fn prepare(
    state: &State,
    scope: Scope,
    api: ApiKind,
    body: RequestBody,
    headers: &[(&'static str, String)],
) -> Result<Prepared> {
    let served = &state.served;
    let headers = headers.iter().map(|(name, text)| (*name, text.as_str()));
    let RequestBody { bytes, mut charge } = body;
    let (params, prompt) = match api {
        ApiKind::Chat => {
            let request = ChatRequest::parse(&bytes, headers, served.bounds())?;
            let prompt = Prompt::Chat(request.conversation.into(), request.tooling.into());
            (request.params, prompt)
        }
        ApiKind::Completion => {
            let request = CompletionRequest::parse(&bytes, headers, served.bounds())?;
            (request.params, Prompt::Bare(request.prompt))
        }
    };
    drop(bytes);
    if let Some(asked) = &params.model {
        served.check_model(asked)?;
    }
    served.check_biases(&params.logit_bias)?;
    let permit = state.admission.enter(scope, params.class)?;
    let turn = match &params.supersede_key {
        Some(key) => state.superseding.begin(Key {
            scope,
            text: key.clone(),
        }),
        None => Turn::default(),
    };
    let (prompt, tooling) = match prompt {
        Prompt::Chat(conversation, tooling) => {
            let prompt = served.chat_prompt(&conversation)?;
            (prompt, Some(tooling).filter(|tooling| tooling.is_held()))
        }
        Prompt::Bare(text) => (served.bare_prompt(text)?, None),
    };
    let form_bytes = tooling.as_ref().map_or(0, |tooling| tooling.kept_bytes());
    charge_exactly(&mut charge, kept_bytes(&params, &prompt, form_bytes))?;
    Ok(Prepared {
        params,
        prompt,
        tooling,
        permit,
        turn,
        charge,
    })
}

/// Memory that a request takes until it is answered, in bytes.
fn kept_bytes(params: &CompletionParams, prompt: &[u32], form_bytes: usize) -> usize {
    let stop: usize = params.stop.iter().map(String::len).sum();
    let biases = params.logit_bias.len() * BIAS_BYTES;
    REQUEST_BYTES + prompt.len() * TOKEN_BYTES + stop * STOP_BYTE_BYTES + biases + form_bytes
}

/// Grows or shrinks a charge to this many bytes.
fn charge_exactly(charge: &mut Charge, bytes: usize) -> Result<()> {
    match bytes.checked_sub(charge.bytes()) {
        Some(more) => charge.grow(more),
        None => {
            charge.shrink(charge.bytes() - bytes);
            Ok(())
        }
    }
}

/// The request to the engine, and the text side of its answer.
///
/// # Errors
/// `TooLong`, if the requested answer does not fit after the prompt.
fn ask(
    state: &State,
    scope: Scope,
    api: ApiKind,
    params: &CompletionParams,
    prompt: Vec<u32>,
    constraint: AnswerConstraint,
) -> Result<(Request, AnswerText)> {
    let served = &state.served;
    let tokens_max = match (params.tokens_max, api) {
        (Some(asked), _) => {
            served.bounds().check(prompt.len(), asked)?;
            asked
        }
        (None, ApiKind::Chat) => served.room(prompt.len()).min(state.limits.answer_tokens),
        (None, ApiKind::Completion) => served.room(prompt.len()).min(COMPLETION_TOKENS),
    };
    let (end_tokens, eos_ids) = match params.end_token {
        EndToken::Ends => (EndTokens::End, served.eos_ids()),
        EndToken::Ignored => (EndTokens::Ignored, &[][..]),
    };
    let tokenizer = served.tokenizer.clone();
    let text = AnswerText::new(
        tokenizer.map(|tokenizer| TextStream::with_calls(tokenizer, constraint.syntax)),
        params.stop.clone(),
        eos_ids,
    );
    let flow = match (&params.flow, &params.supersede_key) {
        (Some(name), _) => Some(FlowName::Given(name.clone())),
        (None, Some(key)) => Some(FlowName::Superseding(key.clone())),
        (None, None) => None,
    };
    let ask = Request {
        scope: state.prefix_scope(scope),
        class: params.class,
        tokens_max,
        prompt,
        end_tokens,
        sampling: params.sampling,
        logit_bias: params.logit_bias.clone(),
        restriction: constraint.restriction,
        flow: flow.map(|name| state.flows.named(&served.engine, scope, name)),
        deadline: params.deadline,
    };
    Ok((ask, text))
}

async fn whole(
    envelope: &Envelope,
    answering: &mut Answering,
    token_ids: TokenIds,
) -> Result<Response<Body>> {
    let mut piece = Piece {
        token_ids: (token_ids == TokenIds::Included).then(Vec::new),
        ..Piece::default()
    };
    loop {
        match answering.next().await? {
            AnswerEvent::Token { id, said } => {
                piece.add(said);
                piece.token_ids.iter_mut().for_each(|ids| ids.push(id));
            }
            AnswerEvent::End { said, reason } => {
                piece.add(said);
                let answer = envelope.whole(piece, reason, answering.stats());
                return Ok(json_response(&answer));
            }
        }
    }
}

/// Maximum number of tokens of a completion whose request sets no limit: OpenAI's default.
const COMPLETION_TOKENS: u32 = 16;

/// Memory that any request takes for its permit, channel and names, in bytes. Chosen as an upper bound.
const REQUEST_BYTES: usize = 8 << 10;

/// Memory of a prompt token, in bytes: its id, in the engine and with its flow.
const TOKEN_BYTES: usize = 8;

/// Memory of a bias on a token, in bytes: here and in the engine.
const BIAS_BYTES: usize = 16;

/// Memory of a byte of a stop text, in bytes: the byte, and its entry in the failure table.
const STOP_BYTE_BYTES: usize = 10;
