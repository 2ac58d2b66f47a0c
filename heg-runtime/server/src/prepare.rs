//! From a body to a request that the engine can take: parsed, admitted, with its prompt as tokens and its memory
//! charged. Every API's bodies take this way.

use std::sync::Arc;
use std::time::Instant;

use heg_confine::Wait;

use super::State;
use super::account::{Charge, Scope};
use super::admission::Permit;
use super::answer::ApiKind;
use super::answering::WAITING_TOKEN_BYTES;
use super::body::RequestBody;
use super::dialect::Dialect;
use super::document::{AnswerDocument, Keeping, ResponseDocument};
use super::drafting::draft_bytes;
use super::error::{ApiError, Result};
use super::fields::describe;
use super::models::Models;
use super::request::{
    ChatRequest, CompletionParams, CompletionRequest, EchoPrompt, History, PromptText,
    ResponsesRequest, Storing, Thoughts,
};
use super::served::ServedModel;
use super::supersede::{Arrival, Key, Turn};
use super::tools::{AskedForm, Tooling};
use heg_runtime::engine::{AnswerKind, DraftTexts, KeptPrompt};
use heg_text::{Conversation, ThoughtParser};

/// A request as received.
pub(super) struct Posted {
    pub(super) dialect: Dialect,
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

/// An admitted request with its prompt as tokens, before its answer is planned.
pub(super) struct Read {
    served: Arc<ServedModel>,
    pub(super) prompt: Vec<u32>,
    params: CompletionParams,
    tooling: Option<Box<Tooling>>,
    /// Tokens of the predicted answer.
    prediction: Vec<u32>,
    response: Option<Responding>,
    permits: Vec<Permit>,
    turn: Turn,
    charge: Charge,
}

/// The parts of a request to `/v1/responses` that chat does not have.
struct Responding {
    document: Box<ResponseDocument>,
    /// Name of the kept conversation that the request continues or begins.
    conversation: Option<String>,
}

impl Responding {
    /// Returns the memory of what the document repeats and keeps of the request and of an answer of so many tokens.
    fn document_bytes(&self, answer_tokens: u32) -> usize {
        let answer = (answer_tokens as usize).saturating_mul(REPEATED_TOKEN_BYTES);
        let request = self.document.kept_bytes();
        request.saturating_mul(COPIES).saturating_add(answer)
    }
}

/// A request that is ready for the engine, but for its form.
pub(super) struct Prepared {
    /// The model that the request asks for.
    pub(super) served: Arc<ServedModel>,
    pub(super) params: CompletionParams,
    pub(super) prompt: Vec<u32>,
    /// The texts that drafts are made from: the prompt and the predicted answer.
    pub(super) draft_texts: Option<DraftTexts>,
    /// The prefix of the prompt that was kept by an earlier process.
    pub(super) kept: KeptPrompt,
    /// The form of the answers, to be compiled later.
    pub(super) form: Option<Box<AskedForm>>,
    /// Maximum number of tokens of each answer.
    pub(super) answer_tokens: u32,
    /// A parser of what the model thinks, if that is shown apart.
    pub(super) thoughts: Option<ThoughtParser>,
    /// The document that the answer is written as, if it begins with the request.
    pub(super) document: Option<AnswerDocument>,
    /// Memory of what the document repeats and keeps of the request, in bytes.
    pub(super) document_bytes: usize,
    /// Name of the kept conversation that the request continues or begins.
    pub(super) conversation: Option<String>,
    /// A permit for each answer.
    pub(super) permits: Vec<Permit>,
    pub(super) turn: Turn,
    /// The charge for the request's memory, in place of its body's.
    pub(super) charge: Charge,
}

/// Prepares a request. Runs off the event loop: a body may be large, and templates and tokenizers take milliseconds for
/// long prompts.
pub(super) fn prepare(
    state: &Arc<State>,
    scope: Scope,
    posted: Posted,
    arrived: Instant,
    wait: Wait<'_>,
) -> Result<Prepared> {
    let dialect = posted.dialect;
    let Read {
        served,
        prompt,
        params,
        tooling,
        prediction,
        response,
        permits,
        turn,
        mut charge,
    } = read(state, scope, posted, arrived, wait)?;
    let thoughts = match params.thoughts {
        Thoughts::Apart => served.thoughts(&prompt)?,
        Thoughts::InText => None,
    };
    let form = tooling.map(|tooling| served.asked_form(scope, &tooling, thoughts.as_ref()));
    let form = form.transpose()?.map(Box::new);
    let answer_tokens = answer_tokens(state, &served, dialect, &params, prompt.len())?;
    let form_bytes = form.as_ref().map_or(0, |form| form.kept_bytes);
    let (choices, speculation) = (params.choices, params.speculation);
    let engine = &served.engine;
    let draft_texts = engine.draft_texts(&prompt, &prediction, speculation, choices);
    let draft_bytes = draft_bytes(draft_texts.as_ref(), params.choices, answer_tokens);
    let document_bytes = response
        .as_ref()
        .map_or(0, |response| response.document_bytes(answer_tokens));
    let beside_bytes = form_bytes.saturating_add(draft_bytes);
    let beside_bytes = beside_bytes.saturating_add(document_bytes);
    let kept_bytes = kept_bytes(&params, prompt.len(), answer_tokens, beside_bytes);
    if kept_bytes > state.limits.budgets.account_bytes {
        return Err(too_much(dialect, &params, form_bytes > kept_bytes / 2));
    }
    charge.set(kept_bytes)?;
    let kept = engine.find_kept(Some(state.state_owner(scope)), &prompt);
    let (document, conversation) = match response {
        Some(Responding {
            document,
            conversation,
        }) => (Some(AnswerDocument::Response(document)), conversation),
        None => (None, None),
    };
    Ok(Prepared {
        served,
        params,
        prompt,
        draft_texts,
        kept,
        form,
        answer_tokens,
        thoughts,
        document,
        document_bytes,
        conversation,
        permits,
        turn,
        charge,
    })
}

/// Parses a body, admits its request, and tokenizes its prompt.
pub(super) fn read(
    state: &Arc<State>,
    scope: Scope,
    posted: Posted,
    arrived: Instant,
    wait: Wait<'_>,
) -> Result<Read> {
    let Posted {
        dialect,
        body,
        headers,
        arrival,
    } = posted;
    let headers = headers.iter().map(|(name, text)| (*name, text.as_str()));
    let RequestBody { bytes, charge } = body;
    let Parsed {
        served,
        params,
        prompt,
        response,
    } = parse(state, scope, dialect, &bytes, headers)?;
    drop(bytes);
    served.check_kind(AnswerKind::Tokens)?;
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
    let (prompt, tooling, prediction) = prompt.tokens(&served, wait)?;
    Ok(Read {
        served,
        prompt,
        params,
        tooling,
        prediction,
        response,
        permits,
        turn,
        charge,
    })
}

/// A parsed body.
struct Parsed {
    served: Arc<ServedModel>,
    params: CompletionParams,
    prompt: Prompt,
    response: Option<Responding>,
}

impl Parsed {
    fn chat(models: &Models, mut request: ChatRequest) -> Result<Self> {
        let served = models.asked(request.params.model.as_deref(), AnswerKind::Tokens)?;
        let switches = request.switches.iter();
        let unread = switches.filter(|it| !served.reads(it.variable));
        request.params.ignored.extend(unread.map(|it| it.field));
        let prompt = ChatPrompt {
            conversation: request.conversation,
            tooling: request.tooling,
            prediction: request.prediction,
        };
        Ok(Self {
            served: Arc::clone(served),
            params: request.params,
            prompt: Prompt::Chat(prompt.into()),
            response: None,
        })
    }
}

/// Parses a body into parameters and a prompt.
fn parse<'a>(
    state: &Arc<State>,
    scope: Scope,
    dialect: Dialect,
    bytes: &[u8],
    headers: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Parsed> {
    let models = &state.models;
    // Which model is asked for stands in the body, whose bounds are then checked again.
    let bounds = &models.bounds();
    Ok(match dialect {
        Dialect::Choices(ApiKind::Chat) => {
            Parsed::chat(models, ChatRequest::parse(bytes, headers, bounds)?)?
        }
        Dialect::Choices(ApiKind::Completion) => {
            let request = CompletionRequest::parse(bytes, headers, bounds)?;
            Parsed {
                served: Arc::clone(
                    models.asked(request.params.model.as_deref(), AnswerKind::Tokens)?,
                ),
                params: request.params,
                prompt: Prompt::Bare(request.prompt),
                response: None,
            }
        }
        Dialect::Messages(purpose) => {
            let request = ChatRequest::parse_messages(bytes, headers, bounds, purpose)?;
            Parsed::chat(models, request)?
        }
        Dialect::Responses => {
            let request = ResponsesRequest::parse(bytes, headers, bounds)?;
            respond(state, scope, request)?
        }
    })
}

/// Joins a request to `/v1/responses` to the conversation that it continues.
fn respond(state: &Arc<State>, scope: Scope, mut request: ResponsesRequest) -> Result<Parsed> {
    let model = request.params.model.as_deref();
    let served = state.models.asked(model, AnswerKind::Tokens)?;
    let label = state.label(served, Dialect::Responses);
    let (mut history, mut conversation) = (History::default(), None);
    if let Some(id) = &request.previous {
        let previous = state.responses.get(scope, id, Instant::now());
        let previous = previous.ok_or_else(|| ApiError::NoPrevious {
            id: describe(&id.as_str().into()),
        })?;
        history = previous.history.clone();
        conversation = Some(previous.conversation.clone());
    }
    let stores = request.storing == Storing::Kept;
    if stores && conversation.is_none() {
        conversation = Some(label.id.clone());
    }
    let mut asked = std::mem::take(&mut request.asked);
    asked.insert("store".to_owned(), stores.into());
    let (request, history) = request.into_chat(history)?;
    let keeping = conversation.clone().filter(|_| stores);
    let keeping = keeping.map(|conversation| Keeping {
        state: Arc::clone(state),
        scope,
        history,
        conversation,
    });
    Ok(Parsed {
        response: Some(Responding {
            document: Box::new(ResponseDocument {
                label,
                asked,
                keeping,
            }),
            conversation,
        }),
        ..Parsed::chat(&state.models, request)?
    })
}

/// Returns the refusal of a request whose form or tokens need more memory than a client may use.
fn too_much(dialect: Dialect, params: &CompletionParams, is_form: bool) -> ApiError {
    let (field, found, limit) = match (is_form, params.log_probs) {
        (true, _) => (
            dialect.format_field(),
            "a form with large tables",
            "has not the memory for them; ask for a smaller schema, or fewer tools",
        ),
        (false, Some(_)) => ("logprobs", "more than one client may keep", FEWER_TOKENS),
        (false, None) => (
            dialect.tokens_field(),
            "more than one client may keep",
            FEWER_TOKENS,
        ),
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
pub(super) fn kept_bytes(
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
/// `TooLong`, if the prompt leaves no room for an answer, the requested answer fits behind no prompt or, for bare
/// prompts, not behind this one.
fn answer_tokens(
    state: &State,
    served: &ServedModel,
    dialect: Dialect,
    params: &CompletionParams,
    prompt_tokens: usize,
) -> Result<u32> {
    Ok(match (params.tokens_max, dialect) {
        (Some(asked), Dialect::Choices(ApiKind::Completion)) => {
            // The engine makes one token even if none is asked for.
            served.bounds().check(prompt_tokens, asked.max(1))?;
            asked
        }
        // Agents ask for 32,000 tokens behind any prompt: their answers end where the context does.
        (Some(asked), _) => {
            served.bounds().check(0, asked)?;
            served.bounds().check(prompt_tokens, 1)?;
            asked.min(served.room(prompt_tokens))
        }
        (None, Dialect::Choices(ApiKind::Completion)) => {
            served.room(prompt_tokens).min(COMPLETION_TOKENS)
        }
        (None, _) => served.room(prompt_tokens).min(state.limits.answer_tokens),
    })
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

/// Number of copies of what a response repeats of its request that exist at once: the fields, and its first and its last
/// events.
const COPIES: usize = 3;

/// Memory of a token of a response's answer, in bytes: its text, four times in the last events, and in the conversation.
/// Chosen as for a long answer in prose.
const REPEATED_TOKEN_BYTES: usize = 32;
