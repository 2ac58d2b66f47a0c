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
use super::answering::{AnswerEvent, Answering, Shows, TextSide};
use super::body::RequestBody;
use super::choices::Choices;
use super::echo::Echo;
use super::error::{ApiError, Result};
use super::flows::FlowName;
use super::preparation::Effort;
use super::request::{
    ChatRequest, CompletionParams, CompletionRequest, Delivery, EchoPrompt, EndToken, PromptText,
    TokenIds,
};
use super::route::{Body, event_response, json_response};
use super::served::ServedModel;
use super::stream::{Empty, Events};
use super::supersede::{Key, Turn};
use super::tools::{AnswerConstraint, Tooling};
use heg_runtime::FinishReason;
use heg_runtime::engine::{EndTokens, Request};
use heg_text::{AnswerText, Conversation, SamplingParams, TextStream};

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
    Chat(Box<ChatPrompt>),
    Bare(PromptText),
}

/// The tokens of a prompt, the form of its answer, and the tokens that are expected of it.
type Tokenized = (Vec<u32>, Option<Box<Tooling>>, Vec<u32>);

impl Prompt {
    fn tokens(self, served: &ServedModel) -> Result<Tokenized> {
        Ok(match self {
            Self::Chat(chat) => {
                let prompt = served.chat_prompt(&chat.conversation)?;
                let prediction = chat.prediction.map(|text| served.prediction(&text));
                let tooling = Some(chat.tooling).filter(Tooling::is_held).map(Box::new);
                (prompt, tooling, prediction.transpose()?.unwrap_or_default())
            }
            Self::Bare(text) => (served.bare_prompt(text)?, None, Vec::new()),
        })
    }
}

/// A conversation, the form of what follows, and what that is expected to be.
struct ChatPrompt {
    conversation: Conversation,
    tooling: Tooling,
    prediction: Option<String>,
}

/// An admitted request with its prompt as tokens.
struct Prepared {
    params: CompletionParams,
    prompt: Vec<u32>,
    /// What the answer is expected to be.
    prediction: Vec<u32>,
    /// The answer format; its grammar is compiled later.
    tooling: Option<Box<Tooling>>,
    /// Most tokens of each answer.
    answer_tokens: u32,
    /// One for each answer.
    permits: Vec<Permit>,
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
    let (params, mut choices) = submit(state, account.scope(), prepared, arrived).await?;
    // Nothing is sent before the scheduler has the request, so that a refusal has a status.
    let predicted = choices.accepted().await?;
    let envelope = state.envelope(api);
    let mut response = match params.delivery {
        Delivery::Whole => whole(&envelope, choices, params.token_ids).await?,
        Delivery::Stream { usage } => {
            // Clients of /v1/completions count tokens, and may have sent ids whose text means nothing.
            let empty = match (api, params.token_ids, &state.served.tokenizer) {
                (ApiKind::Chat, TokenIds::Omitted, Some(_)) => Empty::Omitted,
                _ => Empty::Sent,
            };
            let events = Events::new(envelope, choices, usage, params.token_ids, empty);
            event_response(events)
        }
    };
    if let Ok(predicted) = HeaderValue::from_str(&millis(predicted).to_string()) {
        let headers = response.headers_mut();
        headers.insert("heg-predicted-ttft-ms", predicted);
    }
    Ok(response)
}

/// Compiles the form of a request, and hands one request for each of its answers to the engine.
async fn submit(
    state: &Arc<State>,
    scope: Scope,
    prepared: Prepared,
    arrived: Instant,
) -> Result<(CompletionParams, Choices)> {
    let Prepared {
        mut params,
        prompt,
        prediction,
        tooling,
        answer_tokens,
        permits,
        mut turn,
        mut charge,
    } = prepared;
    let constraints = match tooling {
        None => permits
            .iter()
            .map(|_| AnswerConstraint::default())
            .collect(),
        Some(tooling) => {
            let (served, count) = (Arc::clone(&state.served), permits.len());
            let hold = move || (0..count).map(|_| served.hold(&tooling)).collect();
            let held: Vec<_> = state.preparation.run(scope, Effort::Form, hold).await?;
            held
        }
    };
    let form_bytes = constraints.iter().map(|constraint| constraint.kept_bytes);
    let beside_bytes = form_bytes.sum::<usize>() + prediction_bytes(&params, &prediction);
    let kept_bytes = kept_bytes(&params, prompt.len(), answer_tokens, beside_bytes);
    charge_exactly(&mut charge, kept_bytes)?;
    if turn.is_over() {
        return Err(ApiError::Superseded);
    }
    if let Some(deadline) = &mut params.deadline {
        let left = deadline.checked_sub(arrived.elapsed());
        *deadline = left.ok_or(ApiError::Deadline)?;
    }
    let charge = Arc::new(charge);
    let parts = constraints.into_iter().zip(permits).enumerate();
    let answerings = parts.map(|(index, (constraint, permit))| {
        let ask = Ask {
            params: &params,
            prompt: &prompt,
            prediction: &prediction,
            answer_tokens,
            index,
        };
        let (request, side) = ask.to_engine(state, scope, constraint);
        let turn = std::mem::take(&mut turn);
        let kept = (permit, Arc::clone(&charge));
        Answering::submit(
            &state.served.engine,
            request,
            side,
            turn,
            kept,
            &state.metrics,
        )
    });
    let choices = Choices::new(answerings.collect());
    Ok((params, choices))
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
            let prompt = ChatPrompt {
                conversation: request.conversation,
                tooling: request.tooling,
                prediction: request.prediction,
            };
            (request.params, Prompt::Chat(prompt.into()))
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
    let permits = permits(state, scope, &params)?;
    let turn = match &params.supersede_key {
        Some(key) => state.superseding.begin(Key {
            scope,
            text: key.clone(),
        }),
        None => Turn::default(),
    };
    let (prompt, tooling, prediction) = prompt.tokens(served)?;
    let answer_tokens = answer_tokens(state, api, &params, prompt.len())?;
    let form_bytes = tooling.as_ref().map_or(0, |tooling| tooling.kept_bytes());
    let form_bytes = form_bytes * params.choices as usize;
    let beside_bytes = form_bytes + prediction_bytes(&params, &prediction);
    let kept_bytes = kept_bytes(&params, prompt.len(), answer_tokens, beside_bytes);
    if params.log_probs.is_some() && kept_bytes > state.limits.budgets.account_bytes {
        return Err(ApiError::Unsupported {
            field: "logprobs".to_owned(),
            found: "asked of so many tokens".to_owned(),
            limit: "has not the memory for one client; ask for fewer tokens, answers or alternatives",
        });
    }
    charge_exactly(&mut charge, kept_bytes)?;
    Ok(Prepared {
        params,
        prompt,
        prediction,
        tooling,
        answer_tokens,
        permits,
        turn,
        charge,
    })
}

/// A permit for each answer to a request.
fn permits(state: &State, scope: Scope, params: &CompletionParams) -> Result<Vec<Permit>> {
    if params.choices as usize > state.limits.requests {
        return Err(ApiError::Unsupported {
            field: "n".to_owned(),
            found: format!("`{}`", params.choices),
            limit: "has places for fewer requests",
        });
    }
    let permit = |_| state.admission.enter(scope, params.class);
    (0..params.choices).map(permit).collect()
}

/// Memory that the answers to a request take until they are sent, in bytes.
fn kept_bytes(
    params: &CompletionParams,
    prompt_tokens: usize,
    answer_tokens: u32,
    beside_bytes: usize,
) -> usize {
    let stop: usize = params.stop.iter().map(String::len).sum();
    let biases = params.logit_bias.len() * BIAS_BYTES;
    let scored_tokens = match params.echo {
        EchoPrompt::Included => prompt_tokens.saturating_add(answer_tokens as usize),
        EchoPrompt::Omitted => answer_tokens as usize,
    };
    let log_probs = params.log_probs.map_or(0, |top| {
        let bytes = (top as usize + 2) * LOG_PROB_BYTES;
        scored_tokens.saturating_mul(bytes)
    });
    let each = REQUEST_BYTES + prompt_tokens * TOKEN_BYTES + stop * STOP_BYTE_BYTES + biases;
    let all = each.saturating_add(log_probs);
    all.saturating_mul(params.choices as usize)
        .saturating_add(beside_bytes)
}

/// Memory that an expected answer takes with each of the answers to a request, in bytes.
fn prediction_bytes(params: &CompletionParams, prediction: &[u32]) -> usize {
    prediction.len() * PREDICTED_TOKEN_BYTES * params.choices as usize
}

/// Most tokens of each answer.
///
/// # Errors
/// `TooLong`, if the requested answer does not fit after the prompt.
fn answer_tokens(
    state: &State,
    api: ApiKind,
    params: &CompletionParams,
    prompt_tokens: usize,
) -> Result<u32> {
    let served = &state.served;
    Ok(match (params.tokens_max, api) {
        (Some(asked), _) => {
            // The engine makes one token even if none is asked for.
            served.bounds().check(prompt_tokens, asked.max(1))?;
            asked
        }
        (None, ApiKind::Chat) => served.room(prompt_tokens).min(state.limits.answer_tokens),
        (None, ApiKind::Completion) => served.room(prompt_tokens).min(COMPLETION_TOKENS),
    })
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

/// One of the answers that a request asks for.
struct Ask<'a> {
    params: &'a CompletionParams,
    prompt: &'a [u32],
    prediction: &'a [u32],
    answer_tokens: u32,
    index: usize,
}

impl Ask<'_> {
    /// The request to the engine, and the text side of its answer.
    fn to_engine(
        &self,
        state: &State,
        scope: Scope,
        constraint: AnswerConstraint,
    ) -> (Request, TextSide) {
        let (params, served) = (self.params, &state.served);
        let (end_tokens, eos_ids) = match params.end_token {
            EndToken::Ends => (EndTokens::End, served.eos_ids()),
            EndToken::Ignored => (EndTokens::Ignored, &[][..]),
        };
        let stream = |tokenizer| TextStream::with_calls(tokenizer, constraint.syntax);
        let text = AnswerText::new(
            served.tokenizer.clone().map(stream),
            params.stop.clone(),
            eos_ids,
        );
        let flow = match (&params.flow, &params.supersede_key) {
            (Some(name), _) => Some(FlowName::Given(name.clone())),
            (None, Some(key)) => Some(FlowName::Superseding(key.clone())),
            (None, None) => None,
        };
        let echoes = params.echo == EchoPrompt::Included;
        let seed = params.sampling.seed.wrapping_add(self.index as u64);
        let request = Request {
            scope: state.prefix_scope(scope),
            class: params.class,
            tokens_max: self.answer_tokens.max(1),
            prompt: self.prompt.to_vec(),
            end_tokens,
            sampling: SamplingParams {
                seed,
                ..params.sampling
            },
            logit_bias: params.logit_bias.clone(),
            log_probs: params.log_probs,
            prompt_log_probs: params.log_probs.filter(|_| echoes),
            restriction: constraint.restriction,
            speculation: params.speculation,
            prediction: self.prediction.to_vec(),
            flow: flow.map(|name| state.flows.named(&served.engine, scope, name)),
            deadline: params.deadline,
        };
        let side = TextSide {
            text,
            syntax: constraint.syntax,
            echo: echoes.then(|| Echo {
                prompt: self.prompt.to_vec(),
                tokenizer: served.tokenizer.clone(),
            }),
            shows: match self.answer_tokens {
                0 => Shows::Nothing,
                _ => Shows::Answer,
            },
        };
        (request, side)
    }
}

async fn whole(
    envelope: &Envelope,
    mut choices: Choices,
    token_ids: TokenIds,
) -> Result<Response<Body>> {
    let piece = |index| Piece {
        index,
        token_ids: (token_ids == TokenIds::Included).then(Vec::new),
        ..Piece::default()
    };
    let mut pieces: Vec<_> = (0..choices.count())
        .map(|index| (piece(index), FinishReason::Length))
        .collect();
    while let Some((index, event)) = choices.next().await {
        let Some((piece, ended)) = pieces.get_mut(index) else {
            break;
        };
        match event? {
            AnswerEvent::Prompt(echoed) => {
                piece.text.push_str(&echoed.text);
                piece.scored.extend(echoed.tokens);
            }
            AnswerEvent::Token { id, said, scored } => {
                piece.add(said);
                piece.token_ids.iter_mut().for_each(|ids| ids.push(id));
                piece.scored.extend(scored);
            }
            AnswerEvent::End { said, reason } => {
                piece.add(said);
                *ended = reason;
            }
        }
    }
    let answer = envelope.whole(pieces, &choices.stats());
    Ok(json_response(&answer))
}

/// Maximum number of tokens of a completion whose request sets no limit: OpenAI's default.
const COMPLETION_TOKENS: u32 = 16;

/// Memory that any request takes for its permit, channel and names, in bytes. Chosen as an upper bound.
const REQUEST_BYTES: usize = 8 << 10;

/// Memory of a prompt token, in bytes: its id, in the engine and with its flow.
const TOKEN_BYTES: usize = 8;

/// Memory of a token of an expected answer, in bytes: its id, and its states and edges where it is looked for.
const PREDICTED_TOKEN_BYTES: usize = 80;

/// Memory of a bias on a token, in bytes: here and in the engine.
const BIAS_BYTES: usize = 16;

/// Memory of a log probability, in bytes: as numbers while they wait, and as text while the answer is sent.
const LOG_PROB_BYTES: usize = 128;

/// Memory of a byte of a stop text, in bytes: the byte, and its entry in the failure table.
const STOP_BYTE_BYTES: usize = 10;
