//! Routes: from an HTTP request to the handler that answers it.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body as _, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, EXPECT, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use super::account::Account;
use super::auth;
use super::body::RequestBody;
use super::error::{ApiError, Result};
use super::fields::describe;
use super::flows::FlowName;
use super::listen::Transport;
use super::preparation::Effort;
use super::request::{FIELD_HEADERS, flow_to_end};
use super::sending::Sending;
use super::stream::Events;
use super::timeline::lane_name;
use super::{State, complete, dashboard};
use heg_runtime::engine::Health;

/// The body of a response.
pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers a request; errors have the format of OpenAI's API.
pub(super) async fn route(
    state: Arc<State>,
    transport: Transport,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let response = handle(&state, transport, request)
        .await
        .unwrap_or_else(|error| {
            state.metrics.refused(error.status().as_u16());
            refusal(&error)
        });
    Ok(response)
}

async fn handle(
    state: &Arc<State>,
    transport: Transport,
    request: Request<Incoming>,
) -> Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let route = Route::of(parts.uri.path(), &parts.method)?;
    let scope = match route {
        Route::Page | Route::Health => transport.scope(),
        Route::Client(_) => auth::scope(&state.tokens, &parts.headers, transport)?,
    };
    let account = state.accounts.of(scope);
    // Its head, until it is answered, and its answer, until that is sent.
    let mut charge = account.charge(HEAD_BYTES)?;
    let response = match route {
        Route::Page => dashboard::page(state),
        Route::Health => health(state)?,
        Route::Client(route) => client(state, &account, route, &parts, body).await?,
    };
    charge.grow(response.body().size_hint().lower() as usize)?;
    Ok(response.map(|body| Sending::new(body, charge).boxed_unsync()))
}

/// Answers an authenticated client.
async fn client(
    state: &Arc<State>,
    account: &Account,
    route: ClientRoute<'_>,
    parts: &Parts,
    body: Incoming,
) -> Result<Response<Body>> {
    let post = async || {
        check_content_type(&parts.headers)?;
        let mut body = body;
        let taken = state.body_reader.take(account, &mut body).await;
        // A client that sent `Expect: 100-continue` has not sent its body yet.
        if taken.as_ref().is_err_and(ApiError::is_of_size) && !parts.headers.contains_key(EXPECT) {
            state.body_reader.pass_over(&mut body).await;
        }
        taken
    };
    let headers = fields(&parts.headers);
    match route {
        ClientRoute::Dashboard => dashboard::data(state, parts.uri.query()).await,
        ClientRoute::Metrics => metrics(state).await,
        ClientRoute::Models => {
            let card = state.served.card(state.created);
            Ok(json_response(&json!({"object": "list", "data": [card]})))
        }
        ClientRoute::Model(name) => model(state, name),
        ClientRoute::Chat => complete::chat(state, account, post().await?, headers).await,
        ClientRoute::Completions => complete::bare(state, account, post().await?, headers).await,
        ClientRoute::EndFlow => end_flow(state, account, post().await?).await,
    }
}

/// The routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route<'a> {
    /// Open to anybody: the same for all, and nothing is kept.
    Page,
    Health,
    /// Open to authenticated clients.
    Client(ClientRoute<'a>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientRoute<'a> {
    Dashboard,
    Metrics,
    Models,
    Model(&'a str),
    Chat,
    Completions,
    EndFlow,
}

impl<'a> Route<'a> {
    fn of(path: &'a str, method: &Method) -> Result<Self> {
        let (route, allowed) = match path {
            "/" => (Self::Page, Method::GET),
            "/healthz" => (Self::Health, Method::GET),
            _ => {
                let (route, allowed) = ClientRoute::of(path)?;
                (Self::Client(route), allowed)
            }
        };
        if *method == allowed {
            return Ok(route);
        }
        Err(ApiError::Method {
            path: path.to_owned(),
            method: method.to_string(),
            allowed,
        })
    }
}

impl<'a> ClientRoute<'a> {
    fn of(path: &'a str) -> Result<(Self, Method)> {
        Ok(match path {
            "/dashboard.json" => (Self::Dashboard, Method::GET),
            "/metrics" => (Self::Metrics, Method::GET),
            "/v1/models" => (Self::Models, Method::GET),
            "/v1/chat/completions" => (Self::Chat, Method::POST),
            "/v1/completions" => (Self::Completions, Method::POST),
            "/v1/flows/end" => (Self::EndFlow, Method::POST),
            _ => match path.strip_prefix("/v1/models/") {
                Some(name) => (Self::Model(name), Method::GET),
                None => {
                    return Err(ApiError::NotFound {
                        path: path.to_owned(),
                    });
                }
            },
        })
    }
}

fn health(state: &State) -> Result<Response<Body>> {
    match state.served.engine.health() {
        Health::Loading => Err(ApiError::Loading),
        Health::Ready => Ok(json_response(&json!({"status": "ok"}))),
        Health::Degraded(lost) => {
            let lost: Vec<_> = lost.iter().map(|lost| lane_name(lost.lane)).collect();
            Ok(json_response(&json!({"status": "degraded", "lost": lost})))
        }
        Health::Failed(_) => Err(ApiError::EngineFailed),
    }
}

async fn metrics(state: &Arc<State>) -> Result<Response<Body>> {
    // The engine answers between two of its steps, which may take a while.
    let engine = state.served.engine.clone();
    let status = blocking(move || Ok(engine.status()?)).await?;
    let text = state.metrics.text(&status);
    let text = text.map_err(|error| ApiError::Failed {
        why: error.to_string(),
    })?;
    Ok(response(StatusCode::OK, OPEN_METRICS, whole(text)))
}

fn model(state: &State, name: &str) -> Result<Response<Body>> {
    state.served.check_model(name)?;
    Ok(json_response(&state.served.card(state.created)))
}

async fn end_flow(state: &State, account: &Account, body: RequestBody) -> Result<Response<Body>> {
    let bounds = *state.served.bounds();
    let effort = Effort::of(body.bytes.len());
    let read = move || flow_to_end(&body.bytes, &bounds);
    let flow = FlowName::Given(state.preparation.run(account.scope(), effort, read).await?);
    let engine = &state.served.engine;
    let found = state.flows.end(engine, account.scope(), &flow);
    Ok(json_response(&json!({"ended": found.is_some()})))
}

/// Headers that stand in for fields of the body.
fn fields(headers: &HeaderMap) -> Vec<(&'static str, &str)> {
    FIELD_HEADERS
        .iter()
        .filter_map(|(name, _)| Some((*name, headers.get(*name)?.to_str().ok()?)))
        .collect()
}

/// Refuses other content types: any web page can make a browser send those without a preflight request.
fn check_content_type(headers: &HeaderMap) -> Result<()> {
    let found = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let found = String::from_utf8_lossy(found.unwrap_or_default());
    let kind = found.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case(JSON) {
        return Ok(());
    }
    Err(ApiError::ContentType {
        found: describe(&found.into()),
    })
}

/// Runs blocking work on another thread, so that it does not hold up other connections.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(ApiError::Failed {
            why: error.to_string(),
        })
    })
}

/// An error as a response.
fn refusal(error: &ApiError) -> Response<Body> {
    let mut response = response(error.status(), JSON, whole(error.body().to_string()));
    let headers = response.headers_mut();
    if let Some(time) = error.retry_after() {
        headers.insert(
            RETRY_AFTER,
            HeaderValue::from(time.as_millis().div_ceil(1000) as u64),
        );
    }
    if let ApiError::Method { allowed, .. } = error
        && let Ok(allowed) = HeaderValue::from_str(allowed.as_str())
    {
        headers.insert(ALLOW, allowed);
    }
    if matches!(error, ApiError::Token) {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// JSON as a response.
pub(super) fn json_response(value: &impl Serialize) -> Response<Body> {
    // Only what has no names as keys cannot be written.
    let text = serde_json::to_string(value).unwrap_or_default();
    response(StatusCode::OK, JSON, whole(text))
}

/// Events as a response.
pub(super) fn event_response(events: Events) -> Response<Body> {
    let body = StreamBody::new(events.frames()).boxed_unsync();
    let mut response = response(StatusCode::OK, "text/event-stream", body);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

pub(super) fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

pub(super) fn whole(text: String) -> Body {
    Full::new(Bytes::from(text)).boxed_unsync()
}

/// Memory that a request takes besides its body, in bytes: its head, and its connection's state. Chosen so that no client
/// can fill a listener with requests.
const HEAD_BYTES: usize = 8 << 10;

const JSON: &str = "application/json";

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
