//! `/v1/rerank`: documents by how well they answer a query, the best first.

use std::sync::Arc;
use std::time::Instant;

use heg_confine::Wait;
use hyper::Response;
use serde::Serialize;
use serde_json::json;

use super::State;
use super::account::{Account, Charge, Scope};
use super::admission::Permit;
use super::body::RequestBody;
use super::complete::add_ignored;
use super::error::Result;
use super::preparation::Effort;
use super::request::RerankRequest;
use super::route::{Answered, Body, json_pieces};
use super::sending::Pieces;
use super::served::{PairTokens, ServedModel};
use super::text_metrics::TextRoute;
use super::text_vectors::TextsOf;
use heg_runtime::engine::{AnswerKind, Request};

/// The pairs of a request, as tokens.
struct Pairs {
    served: Arc<ServedModel>,
    /// Each with the index of its document, the longest first: pairs that run together are about as long.
    pairs: Vec<(usize, PairTokens)>,
    asked: RerankRequest,
    permit: Permit,
    charge: Charge,
}

/// Handles `/v1/rerank`.
pub(super) async fn rerank(
    state: &Arc<State>,
    account: &Account,
    body: RequestBody,
    headers: Vec<(&'static str, String)>,
) -> Result<Response<Body>> {
    let arrived = Instant::now();
    let scope = account.scope();
    let effort = Effort::of(body.bytes.len());
    let prepare = {
        let state = Arc::clone(state);
        move |wait: Wait<'_>| prepare(&state, scope, (body, headers), arrived, wait)
    };
    let preparation = &state.preparation;
    let Pairs {
        served,
        pairs,
        asked,
        permit,
        mut charge,
    } = preparation.run_until(scope, effort, None, prepare).await?;
    let tokens: usize = pairs.iter().map(|(_, pair)| pair.tokens.len()).sum();
    let (indices, pairs): (Vec<usize>, Vec<PairTokens>) = pairs.into_iter().unzip();
    let count = pairs.len();
    let requests = pairs.into_iter().map(|pair| Request {
        scope: scope.id(),
        class: asked.class,
        ..Request::score(pair.tokens, pair.second_at)
    });
    let metrics = state.metrics.of(scope);
    let kind = (TextRoute::Rerank, asked.class);
    let from = TextsOf {
        running: metrics.texts(kind, count, arrived),
        engine: &served.engine,
        permit: &permit,
        arrived,
        deadline: asked.deadline,
    };
    let scores = from.vectors(requests).await?.into_iter();
    // A score is a vector of one element.
    let scores = scores.map(|score| score.first().copied().unwrap_or(f32::NAN));
    let scores: Vec<(usize, f32)> = indices.into_iter().zip(scores).collect();
    let ignored = asked.ignored.clone();
    let (name, id) = (served.name().to_owned(), state.new_id("rerank-"));
    let written = Effort::of(answer_bytes(&asked));
    let write = move || Ok(write((&name, &id), scores, &asked, tokens));
    let text = preparation.run(scope, written, write).await?;
    charge.set(text.bytes())?;
    let mut response = json_pieces(text);
    response.extensions_mut().insert(Answered(Arc::new(charge)));
    add_ignored(&mut response, &ignored);
    Ok(response)
}

/// Parses a body, admits its request, and tokenizes its pairs.
fn prepare(
    state: &State,
    scope: Scope,
    (body, headers): (RequestBody, Vec<(&'static str, String)>),
    arrived: Instant,
    wait: Wait<'_>,
) -> Result<Pairs> {
    let headers = headers.iter().map(|(name, text)| (*name, text.as_str()));
    let RequestBody { bytes, mut charge } = body;
    let mut asked = RerankRequest::parse(&bytes, headers, &state.models.bounds())?;
    drop(bytes);
    let model = asked.model.as_deref();
    let served = Arc::clone(state.models.asked(model, AnswerKind::Score)?);
    served.check_kind(AnswerKind::Score)?;
    let permit = state.admission.enter(scope, asked.class)?;
    let wait = Wait {
        deadline: asked.deadline.map(|time| arrived + time),
        ..wait
    };
    let mut pairs = Vec::with_capacity(asked.documents.len());
    for (index, document) in asked.documents.iter_mut().enumerate() {
        // A document that the answer does not repeat is not kept.
        let text = match asked.returns_documents {
            true => document.clone(),
            false => std::mem::take(document),
        };
        let pair = served.pair_tokens(&asked.query, text, wait);
        let pair = pair.map_err(|error| error.of_document(index))?;
        pairs.push((index, pair));
    }
    pairs.sort_by_key(|(_, pair)| std::cmp::Reverse(pair.tokens.len()));
    let tokens = pairs.iter().map(|(_, pair)| pair.tokens.len());
    let token_bytes = tokens.sum::<usize>().saturating_mul(size_of::<u32>());
    charge.set(token_bytes.saturating_add(answer_bytes(&asked)))?;
    Ok(Pairs {
        served,
        pairs,
        asked,
        permit,
        charge,
    })
}

/// About the size of the answer, in bytes, with the documents that it repeats.
fn answer_bytes(asked: &RerankRequest) -> usize {
    let documents = asked.documents.iter().map(String::len);
    let documents = documents.fold(0, usize::saturating_add);
    documents.saturating_add(asked.documents.len().saturating_mul(RESULT_BYTES))
}

/// Writes the answer: the documents with the highest scores, and of equal ones the first.
fn write(
    (model, id): (&str, &str),
    mut scores: Vec<(usize, f32)>,
    asked: &RerankRequest,
    tokens: usize,
) -> Pieces {
    scores.sort_by(|(at, a), (other, b)| b.total_cmp(a).then(at.cmp(other)));
    scores.truncate(asked.top_n.map_or(usize::MAX, |most| most as usize));
    let mut text = Pieces::default();
    text.add(b"{\"id\":");
    text.add_json(&id);
    text.add(b",\"object\":\"list\",\"model\":");
    text.add_json(&model);
    text.add(b",\"results\":[");
    for (place, (index, relevance_score)) in scores.into_iter().enumerate() {
        let document = asked.documents.get(index);
        let document = document.filter(|_| asked.returns_documents);
        if place > 0 {
            text.add(b",");
        }
        text.add_json(&Ranked {
            index,
            relevance_score,
            document: document.map(|text| RankedText { text }),
        });
    }
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    text.add(b"],\"usage\":");
    text.add_json(&usage);
    text.add(b"}");
    text
}

/// An entry of the answer.
#[derive(Serialize)]
struct Ranked<'a> {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RankedText<'a>>,
}

/// A document that the answer repeats.
#[derive(Serialize)]
struct RankedText<'a> {
    text: &'a str,
}

/// Size of an entry as text without its document, in bytes.
const RESULT_BYTES: usize = 80;
