//! `/v1/embeddings`: the vectors of texts as one JSON object.

use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heg_confine::Wait;
use hyper::Response;
use serde::Serialize;
use serde_json::json;

use super::State;
use super::account::{Account, Charge, Scope};
use super::admission::Permit;
use super::body::RequestBody;
use super::complete::add_ignored;
use super::error::{ApiError, Result};
use super::preparation::Effort;
use super::request::{EmbeddingsRequest, Encoding};
use super::route::{Answered, Body, json_pieces};
use super::sending::Pieces;
use super::served::ServedModel;
use super::text_metrics::TextRoute;
use super::text_vectors::TextsOf;
use heg_runtime::engine::{AnswerKind, Request, to_unit};

/// The texts of a request, as tokens.
struct Texts {
    served: Arc<ServedModel>,
    texts: Vec<Vec<u32>>,
    asked: EmbeddingsRequest,
    permit: Permit,
    charge: Charge,
}

/// Handles `/v1/embeddings`.
pub(super) async fn embed(
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
    let Texts {
        served,
        texts,
        asked,
        permit,
        mut charge,
    } = preparation.run_until(scope, effort, None, prepare).await?;
    let tokens: usize = texts.iter().map(Vec::len).sum();
    let count = texts.len();
    let requests = texts.into_iter().map(|text| Request {
        scope: scope.id(),
        class: asked.class,
        ..Request::vector(text)
    });
    let metrics = state.metrics.of(scope);
    let kind = (TextRoute::Embeddings, asked.class);
    let from = TextsOf {
        running: metrics.texts(kind, count, arrived),
        engine: &served.engine,
        permit: &permit,
        arrived,
        deadline: asked.deadline,
    };
    let vectors = from.vectors(requests).await?;
    let ignored = asked.ignored.clone();
    let name = served.name().to_owned();
    let written_bytes = vectors.iter().map(Vec::len).sum::<usize>() * NUMBER_BYTES;
    let write = move || Ok(write(&name, vectors, &asked, tokens));
    let text = preparation
        .run(scope, Effort::of(written_bytes), write)
        .await?;
    charge.set(text.bytes())?;
    let mut response = json_pieces(text);
    response.extensions_mut().insert(Answered(Arc::new(charge)));
    add_ignored(&mut response, &ignored);
    Ok(response)
}

/// Parses a body, admits its request, and tokenizes its texts.
fn prepare(
    state: &State,
    scope: Scope,
    (body, headers): (RequestBody, Vec<(&'static str, String)>),
    arrived: Instant,
    wait: Wait<'_>,
) -> Result<Texts> {
    let headers = headers.iter().map(|(name, text)| (*name, text.as_str()));
    let RequestBody { bytes, mut charge } = body;
    let mut asked = EmbeddingsRequest::parse(&bytes, headers, &state.models.bounds())?;
    drop(bytes);
    let model = asked.model.as_deref();
    let served = Arc::clone(state.models.asked(model, AnswerKind::Vector)?);
    served.check_kind(AnswerKind::Vector)?;
    let width = served.engine.manifest().model.hidden;
    if let Some(found) = asked.dimensions.filter(|asked| *asked > width) {
        return Err(ApiError::Field {
            field: "dimensions".to_owned(),
            expected: "no more than the model's vectors have",
            found: format!("{found}, and they have {width}"),
        });
    }
    let permit = state.admission.enter(scope, asked.class)?;
    let wait = Wait {
        deadline: asked.deadline.map(|time| arrived + time),
        ..wait
    };
    let input = std::mem::take(&mut asked.input);
    // Vectors are kept until the last one is there, and then written as text.
    let vector_bytes = (width as usize).saturating_mul(size_of::<f32>() + NUMBER_BYTES);
    let texts = input.into_iter();
    let texts = texts.map(|text| served.text_tokens(text, wait));
    let texts: Vec<Vec<u32>> = texts.collect::<Result<_>>()?;
    let token_bytes: usize = texts.iter().map(|text| size_of_val(&**text)).sum();
    charge.set(token_bytes.saturating_add(vector_bytes.saturating_mul(texts.len())))?;
    Ok(Texts {
        served,
        texts,
        asked,
        permit,
        charge,
    })
}

/// Writes the answer, with vectors cut to the dimensions that were asked for.
fn write(model: &str, vectors: Vec<Vec<f32>>, asked: &EmbeddingsRequest, tokens: usize) -> Pieces {
    let mut text = Pieces::default();
    text.add(br#"{"object":"list","data":["#);
    for (index, mut vector) in vectors.into_iter().enumerate() {
        if let Some(dimensions) = asked.dimensions {
            vector.truncate(dimensions as usize);
            to_unit(&mut vector);
        }
        let embedding = match asked.encoding {
            Encoding::Float => Written::Numbers(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Written::Text(STANDARD.encode(bytes))
            }
        };
        if index > 0 {
            text.add(b",");
        }
        text.add_json(&Embedding {
            object: "embedding",
            index,
            embedding,
        });
    }
    text.add(b"],\"model\":");
    text.add_json(&model);
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    text.add(b",\"usage\":");
    text.add_json(&usage);
    text.add(b"}");
    text
}

/// An entry of the answer.
#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Written,
}

/// A vector as it is written.
#[derive(Serialize)]
#[serde(untagged)]
enum Written {
    Numbers(Vec<f32>),
    Text(String),
}

/// Size of an element as text, in bytes: the shortest digits that give the same f32, sign and comma.
const NUMBER_BYTES: usize = 14;
