//! The dashboard: what the lanes do, which requests wait, how full the KV cache is.
//!
//! The page is one file and the same for everybody; it requests its data twice a second, with the token if there is
//! one. So an open page holds nothing in the server, and does not keep it from shutting down.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::State;
use super::error::{ApiError, Result};
use super::fields::describe;
use super::route::{Body, blocking, json_response, response, whole};
use super::timeline::lane_name;
use heg_runtime::engine::{Engine, Phases, Status};

/// Caches the engine's status, so that many open pages query the engine no more often than one.
#[derive(Default)]
pub(super) struct StatusCache(Mutex<Option<(Instant, Arc<Status>)>>);

impl StatusCache {
    async fn of(&self, engine: &Engine) -> Result<Arc<Status>> {
        let mut last = self.0.lock().await;
        if let Some((at, status)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(Arc::clone(status));
        }
        let engine = engine.clone();
        let status = blocking(move || Ok(engine.status()?)).await?;
        let status = Arc::new(status);
        *last = Some((Instant::now(), Arc::clone(&status)));
        Ok(status)
    }
}

/// The page itself.
pub(super) fn page(state: &State) -> Response<Body> {
    // Only the page's own script and style run, whatever text it comes to show.
    let number = state.answers.fetch_add(1, Ordering::Relaxed);
    let nonce = format!("{:016x}", state.ids.hash_one(("page", number)));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let text = PAGE.replace("{{nonce}}", &nonce);
    let mut response = response(StatusCode::OK, "text/html; charset=utf-8", whole(text));
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

/// The data of the page. The query `after=N` leaves out slices that were sent before.
pub(super) async fn data(state: &State, query: Option<&str>) -> Result<Response<Body>> {
    let seen = seen(query)?;
    let status = state.status.of(&state.served.engine).await?;
    let glimpse = state.served.timeline.glimpse(seen);
    let lanes = status.lanes.iter().map(|lane| lane_name(lane.lane));
    Ok(json_response(&json!({
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
    })))
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

/// Time for which a status is cached: a little less than the interval of the page.
const FRESH: Duration = Duration::from_millis(300);
