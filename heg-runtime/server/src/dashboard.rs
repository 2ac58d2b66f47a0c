//! The dashboard: the work of the lanes, the waiting requests, the fill of the KV cache.
//!
//! The page is one file, the same for every client. It requests its data twice a second, with the token if there is
//! one, so an open page holds no resources of the server and does not keep it from shutting down.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::State;
use super::account::Scope;
use super::auth::View;
use super::error::{ApiError, Result};
use super::fields::describe;
use super::preparation::Effort;
use super::route::{Body, blocking, json_pieces, response};
use super::sending::Pieces;
use super::served::ServedModel;
use super::timeline::lane_name;
use heg_runtime::engine::{Engine, Phases, Status};

/// A status, and the time at which it was read.
type Known = (Instant, Arc<Status>);

/// Caches an engine's status, so that many readers query the engine no more often than one.
#[derive(Default)]
pub(super) struct StatusCache(Arc<Mutex<Option<Known>>>);

impl StatusCache {
    /// Returns the status of shortly before now.
    pub(super) async fn of(&self, engine: &Engine) -> Result<Arc<Status>> {
        let mut last = Arc::clone(&self.0).lock_owned().await;
        if let Some((at, status)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(Arc::clone(status));
        }
        let engine = engine.clone();
        // The engine answers between two of its steps, which may take a while. The client that asked may be gone by
        // then; the next one waits for this query instead of starting its own.
        let asking = tokio::spawn(async move {
            let status = Arc::new(blocking(move || Ok(engine.status()?)).await?);
            *last = Some((Instant::now(), Arc::clone(&status)));
            Ok(status)
        });
        asking.await.unwrap_or(Err(ApiError::EngineFailed))
    }
}

/// Returns the page itself.
pub(super) fn page(state: &State) -> Response<Body> {
    // Only the page's own script and style may run, whatever text the page shows.
    let number = state.answers.fetch_add(1, Ordering::Relaxed);
    let nonce = format!("{:016x}", state.ids.hash_one(("page", number)));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let text = PAGE.replace("{{conversation}}", CONVERSATION);
    let text = text.replace("{{nonce}}", &nonce);
    let text = Pieces::from(text).boxed_unsync();
    let mut response = response(StatusCode::OK, "text/html; charset=utf-8", text);
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    let fixed: [(HeaderName, &str); 3] = [
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Returns the data of the page. The query `after=N` leaves out slices that were sent before, `model=N` asks for the
/// model at this place of the list of all, and `answer=ID` for the reasons why an answer of it waited.
pub(super) async fn data(
    state: &Arc<State>,
    scope: Scope,
    view: View,
    query: Option<&str>,
) -> Result<Response<Body>> {
    if view == View::Own {
        return Err(ApiError::NoOperator);
    }
    let Wanted {
        seen,
        model,
        answer,
    } = Wanted::of(query)?;
    let served = state
        .models
        .iter()
        .nth(model)
        .ok_or_else(|| ApiError::Field {
            field: "model".to_owned(),
            expected: "the place of a model, from 0 on",
            found: format!("{model}, of {}", state.models.iter().count()),
        })?;
    let served = Arc::clone(served);
    let status = served.status.of(&served.engine).await?;
    // Serialises slices, and the explanation of a slow request from thousands of events.
    let text = {
        let state = Arc::clone(state);
        move || {
            let mut data = shown(&state, &served, &status, seen);
            if let Some(answer) = answer {
                data["answer"] = json!(served.timeline.answer(&answer));
            }
            Ok(Pieces::json(&data))
        }
    };
    let text = state.preparation.run(scope, Effort::Large, text).await?;
    Ok(json_pieces(text))
}

fn shown(state: &State, served: &ServedModel, status: &Status, seen: u64) -> Value {
    let glimpse = served.timeline.glimpse(seen);
    let models = state.models.iter().map(|served| served.name());
    let chats = state.models.iter().filter(|served| served.chats());
    let chats = chats.map(|served| served.name());
    let lanes = status.lanes.iter().map(|lane| lane_name(lane.lane));
    json!({
        "model": served.name(),
        "models": models.collect::<Vec<_>>(),
        "chat_models": chats.collect::<Vec<_>>(),
        "ready": served.is_ready(),
        "lanes": lanes.collect::<Vec<_>>(),
        "queues": {
            "reactive": queue(&status.reactive),
            "proactive": queue(&status.proactive),
        },
        "kv_bytes": status.kv_bytes,
        "kv_budget_bytes": status.kv_budget_bytes,
        "flows_kept": status.flows_kept,
        "prompt_tokens": status.prompt_tokens,
        "decode_steps": status.decode_steps,
        "accepted_tokens": status.accepted_tokens,
        "finished": status.finished,
        "warm_failures": status.warm_failures,
        "texts": state.metrics.shown_texts(),
        "timeline": glimpse,
    })
}

fn queue(phases: &Phases) -> Value {
    json!({
        "queued": phases.queued,
        "prefilling": phases.prefilling,
        "decoding": phases.decoding,
    })
}

/// The part of the data that a page asks for.
struct Wanted {
    /// Number of slices that it has seen.
    seen: u64,
    /// Place of the model.
    model: usize,
    /// The answer whose wait it asks about.
    answer: Option<String>,
}

impl Wanted {
    fn of(query: Option<&str>) -> Result<Self> {
        let mut wanted = Self {
            seen: 0,
            model: 0,
            answer: None,
        };
        for field in query.into_iter().flat_map(|query| query.split('&')) {
            let refused = |field: &str, expected| ApiError::Field {
                field: field.to_owned(),
                expected,
                found: describe(&query.unwrap_or_default().into()),
            };
            match field.split_once('=') {
                Some(("after", number)) => {
                    let seen = number.parse();
                    wanted.seen = seen.map_err(|_| refused("after", "a number of slices"))?;
                }
                Some(("model", place)) => {
                    let model = place.parse();
                    let expected = "the place of a model, from 0 on";
                    wanted.model = model.map_err(|_| refused("model", expected))?;
                }
                Some(("answer", id)) => wanted.answer = Some(id.to_owned()),
                _ => return Err(refused("after", "a number of slices")),
            }
        }
        Ok(wanted)
    }
}

const PAGE: &str = include_str!("dashboard.html");

/// The part of its script that talks to a model.
const CONVERSATION: &str = include_str!("conversation.js");

/// Time for which a status is cached. Chosen: too short to notice, and ten queries a second cost the engine nothing.
const FRESH: Duration = Duration::from_millis(100);
