//! The two completion routes: a request is parsed, admitted, tokenized and submitted to the engine; its answer is sent
//! whole or as events.

use std::sync::Arc;
use std::time::Instant;

use heg_confine::Wait;
use hyper::Response;
use hyper::header::HeaderValue;

use super::State;
use super::account::{Account, Charge, Scope};
use super::admission::Permit;
use super::answer::{ApiKind, millis};
use super::answering::{Answering, Holding, Shows, TextSide, WAITING_TOKEN_BYTES};
use super::body::RequestBody;
use super::choices::Choices;
use super::drafting::draft_bytes;
use super::echo::Echo;
use super::error::{ApiError, Result};
use super::flows::FlowName;
use super::forms::constraints;
use super::preparation::Effort;
use super::request::{
    ChatRequest, CompletionParams, CompletionRequest, Delivery, EchoPrompt, EndToken, PromptText,
    TokenIds,
};
use super::route::{Body, event_response};
use super::served::ServedModel;
use super::stream::{Empty, Events, StreamForm};
use super::supersede::{Arrival, Key, Turn};
use super::tools::{AnswerConstraint, AskedForm, Tooling};
use super::whole::whole;
use heg_runtime::engine::{DraftTexts, EndTokens, KeptPrompt, Request};
use heg_text::{AnswerText, Conversation, SamplingParams, TextStream};

/// A completion request as received.
pub(super) struct Posted {
    pub(super) api: ApiKind,
    pub(super) body: RequestBody,
    /// Headers that stand in for fields of the body.
    pub(super) headers: Vec<(&'static str, String)>,
    /// The request's place in the order of arrival.
    pub(super) arrival: Arrival,
}

/// A prompt as it stands in the body.
enum Prompt {
    Chat(Box<ChatPrompt>),
    Bare(PromptText),
}

/// The tokens of a prompt, the tools and format of its answer, and the tokens of its predicted answer.
type Tokenized = (Vec<u32>, Option<Box<Tooling>>, Vec<u32>);

impl Prompt {
    fn tokens(self, served: &ServedModel, wait: Wait<'_>) -> Result<Tokenized> {
        Ok(match self {
            Self::Chat(chat) => {
                let prompt = served.chat_prompt(chat.conversation, wait)?;
                let prediction = chat.prediction.map(|text| served.prediction(text, wait));
                let tooling = Some(chat.tooling).filter(Tooling::is_held).map(Box::new);
                (prompt, tooling, prediction.transpose()?.unwrap_or_default())
            }
            Self::Bare(text) => (served.bare_prompt(text, wait)?, None, Vec::new()),
        })
    }
}

/// A conversation, with the form and the prediction of its answer.
struct ChatPrompt {
    conversation: Conversation,
    tooling: Tooling,
    prediction: Option<String>,
}

/// An admitted request with its prompt as tokens.
struct Prepared {
    params: CompletionParams,
    prompt: Vec<u32>,
    /// The texts that drafts are made from: the prompt and the predicted answer.
    draft_texts: Option<DraftTexts>,
    /// The prefix of the prompt that was kept by an earlier process.
    kept: KeptPrompt,
    /// The form of the answers, to be compiled later.
    form: Option<Box<AskedForm>>,
    /// Maximum number of tokens of each answer.
    answer_tokens: u32,
    /// A permit for each answer.
    permits: Vec<Permit>,
    turn: Turn,
    /// The charge for the request's memory, in place of its body's.
    charge: Charge,
}

/// Handles `/v1/chat/completions` and `/v1/completions`.
pub(super) async fn complete(
    state: &Arc<State>,
    account: &Account,
    posted: Posted,
) -> Result<Response<Body>> {
    let arrived = Instant::now();
    let (scope, api) = (account.scope(), posted.api);
    let effort = Effort::of(posted.body.bytes.len());
    let prepare = {
        let state = Arc::clone(state);
        move |wait: Wait<'_>| prepare(&state, scope, posted, arrived, wait)
    };
    let preparation = &state.preparation;
    let prepared = preparation.run_until(scope, effort, None, prepare).await?;
    let (params, mut choices) = submit(state, scope, prepared, arrived).await?;
    // Nothing is sent before the scheduler has accepted the request, so that a refusal can still have a status.
    let predicted = choices.accepted().await?;
    let envelope = state.envelope(api);
    let mut response = match params.delivery {
        Delivery::Whole => whole(state, scope, envelope, choices, params.token_ids).await?,
        Delivery::Stream { usage } => {
            // Clients of /v1/completions count tokens, and may have sent ids that decode to no sensible text.
            let empty = match (api, params.token_ids, &state.served.tokenizer) {
                (ApiKind::Chat, TokenIds::Omitted, Some(_)) => Empty::Omitted,
                _ => Empty::Sent,
            };
            let form = StreamForm {
                usage,
                token_ids: params.token_ids,
                empty,
            };
            event_response(Events::new(
                Arc::clone(state),
                scope,
                envelope,
                choices,
                form,
            ))
        }
    };
    let headers = response.headers_mut();
    if let Ok(predicted) = HeaderValue::from_str(&millis(predicted).to_string()) {
        headers.insert("heg-predicted-ttft-ms", predicted);
    }
    if !params.ignored.is_empty()
        && let Ok(ignored) = HeaderValue::from_str(&params.ignored.join(", "))
    {
        headers.insert("heg-ignored-fields", ignored);
    }
    Ok(response)
}

/// Compiles the form of a request, and submits one engine request for each of its answers.
async fn submit(
    state: &Arc<State>,
    scope: Scope,
    mut prepared: Prepared,
    arrived: Instant,
) -> Result<(CompletionParams, Choices)> {
    let count = prepared.permits.len();
    let deadline = prepared.params.deadline.map(|time| arrived + time);
    let constraints = constraints(state, scope, prepared.form.take(), count, deadline).await?;
    let form_bytes = constraints.iter().map(|constraint| constraint.kept_bytes);
    let params = &prepared.params;
    let answer_tokens = prepared.answer_tokens;
    let draft_bytes = draft_bytes(prepared.draft_texts.as_ref(), params.choices, answer_tokens);
    let beside_bytes = form_bytes.sum::<usize>().saturating_add(draft_bytes);
    let kept_bytes = kept_bytes(params, prepared.prompt.len(), answer_tokens, beside_bytes);
    let copied_bytes = size_of_val(&*prepared.prompt) * count;
    prepared.charge.set(kept_bytes)?;
    if prepared.turn.is_over() {
        return Err(ApiError::Superseded);
    }
    if let Some(deadline) = &mut prepared.params.deadline {
        let left = deadline.checked_sub(arrived.elapsed());
        *deadline = left.ok_or(ApiError::Deadline)?;
    }
    match Effort::of(copied_bytes) {
        Effort::Small => Ok(hand_in(state, scope, prepared, constraints)),
        // Each answer gets a copy of the prompt; large copies are made off the event loop.
        effort => {
            let shared = Arc::clone(state);
            let hand_in = move || Ok(hand_in(&shared, scope, prepared, constraints));
            state.preparation.run(scope, effort, hand_in).await
        }
    }
}

/// Submits one engine request for each answer.
fn hand_in(
    state: &State,
    scope: Scope,
    prepared: Prepared,
    constraints: Vec<AnswerConstraint>,
) -> (CompletionParams, Choices) {
    let (mut turn, mut draft_texts) = (prepared.turn, prepared.draft_texts);
    let charge = Arc::new(prepared.charge);
    let last = prepared.permits.len().saturating_sub(1);
    let parts = constraints.into_iter().zip(prepared.permits).enumerate();
    let answerings = parts.map(|(index, (constraint, permit))| {
        let ask = Ask {
            params: &prepared.params,
            prompt: &prepared.prompt,
            // Shared texts are cheap to copy; a single answer takes them without a copy.
            draft_texts: match index == last {
                true => draft_texts.take(),
                false => draft_texts.clone(),
            },
            kept: prepared.kept.clone(),
            answer_tokens: prepared.answer_tokens,
            index,
        };
        let (request, side) = ask.into_request(state, scope, constraint);
        let holding = Holding {
            turn: std::mem::take(&mut turn),
            permit,
            charge: Arc::clone(&charge),
        };
        let metrics = state.metrics.of(scope);
        Answering::submit(&state.served.engine, request, side, holding, metrics)
    });
    let choices = Choices::new(answerings.collect());
    (prepared.params, choices)
}

/// Parses a body, admits its request, and tokenizes its prompt. Runs off the event loop: a body may be large, and
/// templates and tokenizers take milliseconds for long prompts.
fn prepare(
    state: &State,
    scope: Scope,
    posted: Posted,
    arrived: Instant,
    wait: Wait<'_>,
) -> Result<Prepared> {
    let served = &state.served;
    let Posted {
        api,
        body,
        headers,
        arrival,
    } = posted;
    let headers = headers.iter().map(|(name, text)| (*name, text.as_str()));
    let RequestBody { bytes, mut charge } = body;
    let (params, prompt) = parse(served, api, &bytes, headers)?;
    drop(bytes);
    if let Some(asked) = &params.model {
        served.check_model(asked)?;
    }
    served.check_biases(&params.logit_bias)?;
    let permits = permits(state, scope, &params)?;
    let turn = match &params.supersede_key {
        Some(key) => arrival.begin(Key {
            scope,
            text: key.clone(),
        })?,
        None => Turn::default(),
    };
    let wait = Wait {
        deadline: params.deadline.map(|time| arrived + time),
        ..wait
    };
    let (prompt, tooling, prediction) = prompt.tokens(served, wait)?;
    let form = tooling.map(|tooling| served.asked_form(scope, &tooling));
    let form = form.transpose()?.map(Box::new);
    let answer_tokens = answer_tokens(state, api, &params, prompt.len())?;
    let form_bytes = form.as_ref().map_or(0, |form| form.kept_bytes);
    let (choices, speculation) = (params.choices, params.speculation);
    let engine = &served.engine;
    let draft_texts = engine.draft_texts(&prompt, &prediction, speculation, choices);
    let draft_bytes = draft_bytes(draft_texts.as_ref(), params.choices, answer_tokens);
    let beside_bytes = form_bytes.saturating_add(draft_bytes);
    let kept_bytes = kept_bytes(&params, prompt.len(), answer_tokens, beside_bytes);
    if kept_bytes > state.limits.budgets.account_bytes {
        return Err(too_much(&params, form_bytes > kept_bytes / 2));
    }
    charge.set(kept_bytes)?;
    let kept = engine.find_kept(Some(state.state_owner(scope)), &prompt);
    Ok(Prepared {
        params,
        prompt,
        draft_texts,
        kept,
        form,
        answer_tokens,
        permits,
        turn,
        charge,
    })
}

/// Parses a body into parameters and a prompt.
fn parse<'a>(
    served: &ServedModel,
    api: ApiKind,
    bytes: &[u8],
    headers: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<(CompletionParams, Prompt)> {
    Ok(match api {
        ApiKind::Chat => {
            let mut request = ChatRequest::parse(bytes, headers, served.bounds())?;
            let unread = request
                .switches
                .iter()
                .filter(|it| !served.reads(it.variable));
            request.params.ignored.extend(unread.map(|it| it.field));
            let prompt = ChatPrompt {
                conversation: request.conversation,
                tooling: request.tooling,
                prediction: request.prediction,
            };
            (request.params, Prompt::Chat(prompt.into()))
        }
        ApiKind::Completion => {
            let request = CompletionRequest::parse(bytes, headers, served.bounds())?;
            (request.params, Prompt::Bare(request.prompt))
        }
    })
}

/// Returns the refusal of a request whose form or tokens need more memory than a client may use.
fn too_much(params: &CompletionParams, is_form: bool) -> ApiError {
    let (field, found, limit) = match (is_form, params.log_probs) {
        (true, _) => (
            "response_format",
            "a form with large tables",
            "has not the memory for them; ask for a smaller schema, or fewer tools",
        ),
        (false, Some(_)) => ("logprobs", "more than one client may keep", FEWER_TOKENS),
        (false, None) => ("max_tokens", "more than one client may keep", FEWER_TOKENS),
    };
    ApiError::Unsupported {
        field: field.to_owned(),
        found: found.to_owned(),
        limit,
    }
}

const FEWER_TOKENS: &str =
    "keeps an answer until it is sent; ask for fewer tokens, answers or alternatives";

/// Returns a permit for each answer to a request.
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

/// Returns the memory that the answers to a request take until they are sent, in bytes.
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
    let waiting = answer_tokens as usize * WAITING_TOKEN_BYTES;
    let all = each.saturating_add(log_probs).saturating_add(waiting);
    all.saturating_mul(params.choices as usize)
        .saturating_add(beside_bytes)
}

/// Returns the maximum number of tokens of each answer.
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

/// One of the answers that a request asks for.
struct Ask<'a> {
    params: &'a CompletionParams,
    prompt: &'a [u32],
    draft_texts: Option<DraftTexts>,
    kept: KeptPrompt,
    answer_tokens: u32,
    index: usize,
}

impl Ask<'_> {
    /// Splits this into the request to the engine and the text side of its answer.
    fn into_request(
        self,
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
            scope: scope.id(),
            prefixes: Some(state.prefix_scope(scope)),
            state: Some(state.state_owner(scope)),
            kept: Some(self.kept),
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
            // The prediction is among the texts that drafts are made from.
            prediction: Vec::new(),
            draft_texts: self.draft_texts,
            flow: flow.map(|name| state.flows.named(&served.engine, scope, name)),
            deadline: params.deadline,
        };
        let side = TextSide {
            text,
            syntax: constraint.syntax,
            echo: echoes.then(|| Echo {
                prompt: self.prompt.to_vec(),
                tokenizer: served.tokenizer.clone(),
                log_probs: None,
            }),
            shows: match self.answer_tokens {
                0 => Shows::Nothing,
                _ => Shows::Answer,
            },
        };
        (request, side)
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

/// Memory of a log probability, in bytes: as numbers while they wait, and as text while the answer is sent.
const LOG_PROB_BYTES: usize = 128;

/// Memory of a byte of a stop text, in bytes: the byte, and its entry in the failure table.
const STOP_BYTE_BYTES: usize = 10;
