//! The dashboard: the work of the lanes, the waiting requests, the fill of the KV cache.
//!
//! The page is one file, the same for every client. It requests its data twice a second, with the token if there is
//! one, so an open page holds no resources of the server and does not keep it from shutting down.

use std::hash::BuildHasher;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
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
use super::timeline::lane_name;
use heg_runtime::engine::{Engine, Phases, Status};

/// A status, and the time at which it was read.
type Known = (Instant, Arc<Status>);

/// Caches the engine's status and the metrics, so that many readers query the engine no more often than one.
#[derive(Default)]
pub(super) struct StatusCache {
    status: Arc<Mutex<Option<Known>>>,
    /// The metrics of the last status, as text.
    metrics: std::sync::Mutex<Option<(Arc<Status>, Bytes)>>,
}

impl StatusCache {
    async fn of(&self, engine: &Engine) -> Result<Arc<Status>> {
        let mut last = Arc::clone(&self.status).lock_owned().await;
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

    /// Returns the metrics of all clients.
    pub(super) async fn metrics(&self, state: &State) -> Result<Bytes> {
        let status = self.of(&state.served.engine).await?;
        let mut last = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, text)) = &*last
            && Arc::ptr_eq(of, &status)
        {
            return Ok(text.clone());
        }
        let text = Bytes::from(state.metrics.text(&status)?);
        *last = Some((status, text.clone()));
        Ok(text)
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
    let text = PAGE.replace("{{nonce}}", &nonce);
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

/// Returns the data of the page. The query `after=N` leaves out slices that were sent before.
pub(super) async fn data(
    state: &Arc<State>,
    scope: Scope,
    view: View,
    query: Option<&str>,
) -> Result<Response<Body>> {
    if view == View::Own {
        return Err(ApiError::NoOperator);
    }
    let seen = seen(query)?;
    let status = state.status.of(&state.served.engine).await?;
    // Serialises slices, and the explanation of a slow request from thousands of events.
    let text = {
        let state = Arc::clone(state);
        move || Ok(Pieces::json(&shown(&state, &status, seen)))
    };
    let text = state.preparation.run(scope, Effort::Large, text).await?;
    Ok(json_pieces(text))
}

fn shown(state: &State, status: &Status, seen: u64) -> Value {
    let glimpse = state.served.timeline.glimpse(seen);
    let lanes = status.lanes.iter().map(|lane| lane_name(lane.lane));
    json!({
        "model": state.served.name,
        "ready": state.ready.load(Ordering::Acquire),
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

fn seen(query: Option<&str>) -> Result<u64> {
    let Some(query) = query else {
        return Ok(0);
    };
    let number = query.strip_prefix("after=").and_then(|n| n.parse().ok());
    number.ok_or_else(|| ApiError::Field {
        field: "after".to_owned(),
        expected: "a number of slices",
        found: describe(&query.into()),
    })
}

const PAGE: &str = include_str!("dashboard.html");

/// Time for which a status is cached. Chosen: too short to notice, and ten queries a second cost the engine nothing.
const FRESH: Duration = Duration::from_millis(100);
