//! The routes that answer prompts: a request is prepared, submitted to the engine, and its answer is sent whole or as
//! events, as the document of its API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use heg_confine::Wait;
use hyper::Response;
use hyper::header::HeaderValue;
use serde_json::json;

use super::State;
use super::account::{Account, Scope};
use super::answer::{ApiKind, millis};
use super::answering::{Answering, Holding, Shows, TextSide};
use super::choices::Choices;
use super::dialect::Dialect;
use super::document::{Empty, StreamForm};
use super::drafting::draft_bytes;
use super::echo::Echo;
use super::error::{ApiError, Result};
use super::flows::FlowName;
use super::forms::constraints;
use super::preparation::Effort;
use super::prepare::{Posted, Prepared, kept_bytes, prepare, read};
use super::request::{CompletionParams, Delivery, EchoPrompt, EndToken, TokenIds};
use super::route::{Body, event_response, json_response};
use super::served::ServedModel;
use super::stream::Events;
use super::tools::AnswerConstraint;
use super::whole::whole;
use heg_runtime::engine::{AnswerKind, DraftTexts, EndTokens, KeptPrompt, Request};
use heg_text::{AnswerText, SamplingParams, TextStream, ThoughtParser, ToolSyntax};

/// Handles the routes that answer a prompt.
pub(super) async fn complete(
    state: &Arc<State>,
    account: &Account,
    posted: Posted,
) -> Result<Response<Body>> {
    let arrived = Instant::now();
    let (scope, dialect) = (account.scope(), posted.dialect);
    let effort = Effort::of(posted.body.bytes.len());
    let prepare = {
        let state = Arc::clone(state);
        move |wait: Wait<'_>| prepare(&state, scope, posted, arrived, wait)
    };
    let preparation = &state.preparation;
    let mut prepared = preparation.run_until(scope, effort, None, prepare).await?;
    let document = prepared.document.take();
    let served = Arc::clone(&prepared.served);
    let (params, mut choices) = submit(state, scope, prepared, arrived).await?;
    // Nothing is sent before the scheduler has accepted the request, so that a refusal can still have a status.
    let predicted = choices.accepted().await?;
    let document = document.unwrap_or_else(|| state.document(&served, dialect));
    if let Some(request) = choices.first() {
        served.timeline.answers(document.id(), request);
    }
    let mut response = match params.delivery {
        Delivery::Whole => whole(state, scope, document, choices, params.token_ids).await?,
        Delivery::Stream { usage } => {
            // Clients of /v1/completions count tokens, and may have sent ids that decode to no sensible text.
            let empty = match (dialect, params.token_ids, &served.tokenizer) {
                (Dialect::Choices(ApiKind::Completion), _, _) => Empty::Sent,
                (_, TokenIds::Omitted, Some(_)) => Empty::Omitted,
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
                document,
                choices,
                form,
            ))
        }
    };
    add_headers(&mut response, predicted, &params.ignored);
    Ok(response)
}

fn add_headers(response: &mut Response<Body>, predicted: Duration, ignored: &[&str]) {
    if let Ok(predicted) = HeaderValue::from_str(&millis(predicted).to_string()) {
        let headers = response.headers_mut();
        headers.insert("heg-predicted-ttft-ms", predicted);
    }
    add_ignored(response, ignored);
}

/// Names the fields of a request that have no effect.
pub(super) fn add_ignored(response: &mut Response<Body>, ignored: &[&str]) {
    let headers = response.headers_mut();
    if !ignored.is_empty()
        && let Ok(ignored) = HeaderValue::from_str(&ignored.join(", "))
    {
        headers.insert("heg-ignored-fields", ignored);
    }
}

/// Handles `/v1/messages/count_tokens`: the prompt is made as for an answer, under the same limits.
pub(super) async fn count(
    state: &Arc<State>,
    account: &Account,
    posted: Posted,
) -> Result<Response<Body>> {
    let arrived = Instant::now();
    let scope = account.scope();
    let effort = Effort::of(posted.body.bytes.len());
    let shared = Arc::clone(state);
    let count = move |wait: Wait<'_>| Ok(read(&shared, scope, posted, arrived, wait)?.prompt.len());
    let preparation = &state.preparation;
    let tokens = preparation.run_until(scope, effort, None, count).await?;
    Ok(json_response(&json!({"input_tokens": tokens})))
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
    let form = prepared.form.take();
    let constraints = constraints(state, &prepared.served, scope, form, count, deadline).await?;
    let form_bytes = constraints.iter().map(|constraint| constraint.kept_bytes);
    let params = &prepared.params;
    let answer_tokens = prepared.answer_tokens;
    let draft_bytes = draft_bytes(prepared.draft_texts.as_ref(), params.choices, answer_tokens);
    let beside_bytes = form_bytes.sum::<usize>().saturating_add(draft_bytes);
    let beside_bytes = beside_bytes.saturating_add(prepared.document_bytes);
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
    let served = prepared.served;
    let (mut turn, mut draft_texts) = (prepared.turn, prepared.draft_texts);
    let charge = Arc::new(prepared.charge);
    let last = prepared.permits.len().saturating_sub(1);
    let parts = constraints.into_iter().zip(prepared.permits).enumerate();
    let answerings = parts.map(|(index, (constraint, permit))| {
        let ask = Ask {
            served: &served,
            params: &prepared.params,
            prompt: &prepared.prompt,
            // Shared texts are cheap to copy; a single answer takes them without a copy.
            draft_texts: match index == last {
                true => draft_texts.take(),
                false => draft_texts.clone(),
            },
            kept: prepared.kept.clone(),
            conversation: prepared.conversation.as_deref(),
            answer_tokens: prepared.answer_tokens,
            thoughts: prepared.thoughts.as_ref(),
            index,
        };
        let (request, side) = ask.into_request(state, scope, constraint);
        let holding = Holding {
            turn: std::mem::take(&mut turn),
            permit,
            charge: Arc::clone(&charge),
        };
        let metrics = state.metrics.of(scope);
        Answering::submit(&served.engine, request, side, holding, metrics)
    });
    let choices = Choices::new(answerings.collect());
    (prepared.params, choices)
}

/// One of the answers that a request asks for.
struct Ask<'a> {
    served: &'a ServedModel,
    params: &'a CompletionParams,
    prompt: &'a [u32],
    draft_texts: Option<DraftTexts>,
    kept: KeptPrompt,
    /// Name of the kept conversation that the request continues or begins.
    conversation: Option<&'a str>,
    answer_tokens: u32,
    thoughts: Option<&'a ThoughtParser>,
    index: usize,
}

impl Ask<'_> {
    /// Returns the stream of the answer's text, with the markers of calls and thoughts; `None` without a tokenizer.
    fn stream(&self, calls: Option<ToolSyntax>) -> Option<TextStream> {
        let tokenizer = self.served.tokenizer.as_ref()?;
        let stream = TextStream::with_calls(Arc::clone(tokenizer), calls);
        Some(stream.with_thoughts(self.thoughts))
    }

    /// Splits this into the request to the engine and the text side of its answer.
    fn into_request(
        self,
        state: &State,
        scope: Scope,
        constraint: AnswerConstraint,
    ) -> (Request, TextSide) {
        let (params, served) = (self.params, self.served);
        let (end_tokens, eos_ids) = match params.end_token {
            EndToken::Ends => (EndTokens::End, served.eos_ids()),
            EndToken::Ignored => (EndTokens::Ignored, &[][..]),
        };
        let stream = self.stream(constraint.syntax);
        let text = AnswerText::new(stream, params.stop.clone(), eos_ids);
        let flow = match (&params.flow, &params.supersede_key, self.conversation) {
            (Some(name), _, _) => Some(FlowName::Given(name.clone())),
            (None, Some(key), _) => Some(FlowName::Superseding(key.clone())),
            (None, None, Some(name)) => Some(FlowName::Conversation(name.to_owned())),
            (None, None, None) => None,
        };
        let echoes = params.echo == EchoPrompt::Included;
        let seed = params.sampling.seed.wrapping_add(self.index as u64);
        let request = Request {
            scope: scope.id(),
            prefixes: Some(state.prefix_scope(scope)),
            state: Some(state.state_owner(scope)),
            kept: Some(self.kept),
            class: params.class,
            kind: AnswerKind::Tokens,
            second_at: None,
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
            flow: flow.map(|name| served.flows.named(&served.engine, scope, name)),
            deadline: params.deadline,
        };
        let side = TextSide {
            text,
            thoughts: self.thoughts.cloned(),
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
