//! `/v1/embeddings`: the vectors of texts as one JSON object. Several texts are on their way at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heg_confine::Wait;
use hyper::Response;
use serde::Serialize;
use serde_json::json;
use tokio::sync::oneshot;

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
use heg_runtime::engine::{AnswerKind, Ending, Engine, Request, Update, to_unit};
use heg_sched::{Finish, RequestId};

/// The texts of a request, as tokens.
struct Texts {
    served: Arc<ServedModel>,
    texts: VecDeque<Vec<u32>>,
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
    let mut texts = preparation.run_until(scope, effort, None, prepare).await?;
    let tokens: usize = texts.texts.iter().map(Vec::len).sum();
    let waiting = std::mem::take(&mut texts.texts);
    let vectors = vectors(scope, waiting, &texts, arrived).await?;
    let Texts {
        served,
        asked,
        mut charge,
        ..
    } = texts;
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
    let texts: VecDeque<Vec<u32>> = texts.collect::<Result<_>>()?;
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

/// Asks the engine for the vectors of all texts, some of them at a time.
async fn vectors(
    scope: Scope,
    mut waiting: VecDeque<Vec<u32>>,
    texts: &Texts,
    arrived: Instant,
) -> Result<Vec<Vec<f32>>> {
    let engine = &texts.served.engine;
    let mut vectors = Vec::with_capacity(waiting.len());
    let mut under_way: VecDeque<UnderWay> = VecDeque::new();
    loop {
        while under_way.len() < TEXTS_AT_ONCE
            && let Some(text) = waiting.pop_front()
        {
            let deadline = texts.asked.deadline;
            let left = deadline.map(|time| time.checked_sub(arrived.elapsed()));
            let request = Request {
                scope: scope.id(),
                class: texts.asked.class,
                deadline: left
                    .map(|left| left.ok_or(ApiError::Deadline))
                    .transpose()?,
                ..Request::vector(text)
            };
            under_way.push_back(UnderWay::submit(engine, request));
        }
        let Some(mut next) = under_way.pop_front() else {
            return Ok(vectors);
        };
        let ended = (&mut next.ended).await;
        next.is_over = true;
        let ended = ended.map_err(|_| ApiError::Failed {
            why: "the engine has ended".to_owned(),
        })?;
        vectors.push(ended.map_err(|ending| refusal(*ending, &texts.permit))?);
    }
}

/// A text whose vector the engine is making; it is cancelled if nobody waits for it any more.
struct UnderWay {
    engine: Engine,
    id: RequestId,
    ended: oneshot::Receiver<std::result::Result<Vec<f32>, Box<Ending>>>,
    is_over: bool,
}

impl UnderWay {
    fn submit(engine: &Engine, request: Request) -> Self {
        let (sender, ended) = oneshot::channel();
        let (mut sender, mut vector) = (Some(sender), None);
        let id = engine.submit(request, move |update| match update {
            Update::Vector(found) => vector = Some(found),
            Update::Finished(ending) => {
                let vector = vector.take().filter(|_| ending.finish == Finish::Complete);
                if let Some(sender) = sender.take() {
                    // A failed send means that nobody waits.
                    let _ = sender.send(vector.ok_or_else(|| Box::new(ending)));
                }
            }
            Update::Accepted { .. } | Update::Prompt(_) | Update::Token { .. } => {}
        });
        Self {
            engine: engine.clone(),
            id,
            ended,
            is_over: false,
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.is_over {
            self.engine.cancel(self.id);
        }
    }
}

/// Returns the error for a text that has no vector.
fn refusal(ending: Ending, permit: &Permit) -> ApiError {
    match (ending.finish, ending.error) {
        (Finish::Deadline, _) => ApiError::Deadline,
        // A client that cancels waits for nothing, so this is the server's shutdown.
        (Finish::Cancelled, _) => ApiError::ShuttingDown,
        (Finish::Shed, _) => ApiError::Shed {
            retry_after: permit.retry().after(),
        },
        (Finish::Complete | Finish::Failed, Some(error)) => ApiError::Broken(error),
        (Finish::Complete | Finish::Failed, None) => ApiError::Failed {
            why: "a kernel failed".to_owned(),
        },
    }
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

/// Texts of one request that the engine has at a time. Chosen: a batch of short ones while the one before it runs; all
/// places in the queue together ask for no more than a policy takes.
const TEXTS_AT_ONCE: usize = 32;

/// Size of an element as text, in bytes: the shortest digits that give the same f32, sign and comma.
const NUMBER_BYTES: usize = 14;
