//! Routes: from an HTTP request to the handler that answers it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body as _, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, EXPECT, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};

use super::account::{Account, Charge, Scope};
use super::admission::class_name;
use super::answer::ApiKind;
use super::auth::{self, View};
use super::body::RequestBody;
use super::dialect::Dialect;
use super::error::{ApiError, Result};
use super::error_form::ErrorForm;
use super::fields::describe;
use super::flows::FlowName;
use super::listen::Transport;
use super::pace::ConnectionPace;
use super::pool::Activity;
use super::preparation::Effort;
use super::prepare::Posted;
use super::request::{EmbeddingsRequest, FIELD_HEADERS, MessagesPurpose, flow_to_end};
use super::rerank::Ranking;
use super::sending::{Pieces, Sending};
use super::served::ServedModel;
use super::stream::Events;
use super::timeline::lane_name;
use super::{State, complete, dashboard, head, texts};
use heg_runtime::engine::Health;
use heg_sched::Class;

/// The body of a response.
pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The body of a response, with the charges that last until it is sent.
pub(super) type ChargedBody = Sending<Body, Vec<Arc<Charge>>>;

/// Marks a response that the engine has worked for, and holds its charge.
#[derive(Clone)]
pub(super) struct Answered(pub(super) Arc<Charge>);

/// A request whose head is complete, with its sender.
pub(super) struct Asked<'a> {
    pub(super) transport: Transport,
    pub(super) activity: Activity,
    pub(super) pace: &'a ConnectionPace,
    /// Whether the head gives two lengths of the body.
    pub(super) is_ambiguous: bool,
    pub(super) request: Request<Incoming>,
}

/// Answers a request; errors have the form of the route's API.
pub(super) async fn route(state: &Arc<State>, asked: Asked<'_>) -> Response<ChargedBody> {
    let form = ErrorForm::of(asked.request.uri().path());
    let answer = tokio::select! {
        biased;
        answer = handle(state, asked) => answer,
        () = state.closing.begun() => Err(ApiError::ShuttingDown),
    };
    answer.unwrap_or_else(|error| {
        state.metrics.refused(form.status(&error).as_u16());
        refusal(form, &error).map(|body| Sending::new(body, Vec::new()))
    })
}

async fn handle(state: &Arc<State>, asked: Asked<'_>) -> Result<Response<ChargedBody>> {
    let Asked {
        transport,
        activity,
        pace,
        is_ambiguous,
        request,
    } = asked;
    let (parts, body) = request.into_parts();
    if is_ambiguous {
        return Err(ApiError::Head {
            why: "it has both `Content-Length` and `Transfer-Encoding`",
        });
    }
    head::check(&parts)?;
    let route = Route::of(parts.uri.path(), &parts.method)?;
    let client = auth::scope(&state.tokens, &parts.headers, transport);
    let client = match route {
        // Open to anybody, but a client that shows its token is not held up by strangers.
        Route::Page | Route::Health => {
            let client = client.ok();
            client.filter(|client| activity.belongs_to(*client).is_ok())
        }
        Route::Client(_) => {
            head::check_site(&parts.headers)?;
            let client = client?;
            activity.belongs_to(client)?;
            Some(client)
        }
    };
    if let Some(client) = client {
        pace.belongs_to(&state.pace, client);
    }
    let scope = client.unwrap_or_else(|| transport.scope());
    let account = state.accounts.of(scope);
    // This pays for the head until the answer exists, and then for the answer until it is sent.
    let mut charge = account.charge(HEAD_BYTES)?;
    let answer = match route {
        Route::Page => Ok(dashboard::page(state)),
        Route::Health => health(state),
        Route::Client(route) => {
            let asking = Asking {
                account: &account,
                view: auth::view(&state.tokens, scope, transport),
                parts: &parts,
            };
            answer_client(state, asking, route, body).await
        }
    };
    let mut response = answer.inspect_err(|error| {
        let status = ErrorForm::of(parts.uri.path()).status(error);
        state.metrics.of(scope).refused(status.as_u16());
    })?;
    let mut charges = Vec::with_capacity(2);
    match response.extensions_mut().get::<Answered>() {
        Some(Answered(charge)) => charges.push(Arc::clone(charge)),
        None => charge.grow(response.body().size_hint().lower() as usize)?,
    }
    charges.push(Arc::new(charge));
    Ok(response.map(|body| Sending::new(body, charges)))
}

/// The client of a request, and its transport.
struct Asking<'a> {
    account: &'a Account,
    view: View,
    parts: &'a Parts,
}

/// Answers an authenticated client.
async fn answer_client(
    state: &Arc<State>,
    asking: Asking<'_>,
    route: ClientRoute<'_>,
    body: Incoming,
) -> Result<Response<Body>> {
    let Asking {
        account,
        view,
        parts,
    } = asking;
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
    match route {
        ClientRoute::Dashboard => {
            dashboard::data(state, account.scope(), view, parts.uri.query()).await
        }
        ClientRoute::Metrics => metrics(state, account, view).await,
        ClientRoute::Models => {
            let cards = state.models.iter().map(|served| card(state, served));
            let cards: Vec<Value> = cards.collect();
            Ok(json_response(&json!({"object": "list", "data": cards})))
        }
        ClientRoute::Model(name) => model(state, name),
        ClientRoute::Complete(dialect) => {
            if let Dialect::Messages(_) = dialect {
                head::check_version(&parts.headers)?;
            }
            let posted = Posted {
                dialect,
                // Noted before the body is read, which may come slowly.
                arrival: state.superseding.arrival(),
                headers: fields(&parts.headers),
                body: post().await?,
            };
            match dialect {
                COUNT => complete::count(state, account, posted).await,
                _ => complete::complete(state, account, posted).await,
            }
        }
        ClientRoute::Embeddings => {
            let headers = fields(&parts.headers);
            texts::answer::<EmbeddingsRequest>(state, account, post().await?, headers).await
        }
        ClientRoute::Rerank => {
            let headers = fields(&parts.headers);
            texts::answer::<Ranking>(state, account, post().await?, headers).await
        }
        ClientRoute::Response(id) => {
            let found = state.responses.get(account.scope(), id, Instant::now());
            let found = found.ok_or_else(|| no_response(id))?;
            Ok(json_pieces(Pieces::from(found.text.clone())))
        }
        ClientRoute::DeleteResponse(id) => delete_response(state, account.scope(), id),
        ClientRoute::EndFlow => end_flow(state, account, post().await?).await,
    }
}

/// The routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route<'a> {
    /// The page, open to anybody: it is the same for all, and nothing is kept.
    Page,
    Health,
    /// A route open to authenticated clients.
    Client(ClientRoute<'a>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientRoute<'a> {
    Dashboard,
    Metrics,
    Models,
    Model(&'a str),
    Complete(Dialect),
    Embeddings,
    Rerank,
    Response(&'a str),
    DeleteResponse(&'a str),
    EndFlow,
}

/// The route that counts the tokens of a message's prompt.
const COUNT: Dialect = Dialect::Messages(MessagesPurpose::Count);

impl<'a> Route<'a> {
    fn of(path: &'a str, method: &Method) -> Result<Self> {
        let (route, allowed) = match path {
            "/" => (Self::Page, "GET"),
            "/healthz" => (Self::Health, "GET"),
            _ => {
                let (route, allowed) = ClientRoute::of(path, method)?;
                (Self::Client(route), allowed)
            }
        };
        // hyper leaves the body out of answers to HEAD.
        let method_of_body = match *method {
            Method::HEAD => "GET",
            _ => method.as_str(),
        };
        if allowed.split(", ").any(|name| name == method_of_body) {
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
    /// Returns the route of a path, with the methods that it takes.
    fn of(path: &'a str, method: &Method) -> Result<(Self, &'static str)> {
        let answer = |dialect| (Self::Complete(dialect), "POST");
        Ok(match path {
            "/dashboard.json" => (Self::Dashboard, "GET"),
            "/metrics" => (Self::Metrics, "GET"),
            "/v1/models" => (Self::Models, "GET"),
            "/v1/chat/completions" => answer(Dialect::Choices(ApiKind::Chat)),
            "/v1/completions" => answer(Dialect::Choices(ApiKind::Completion)),
            "/v1/messages" => answer(Dialect::Messages(MessagesPurpose::Answer)),
            "/v1/messages/count_tokens" => answer(COUNT),
            "/v1/responses" => answer(Dialect::Responses),
            "/v1/embeddings" => (Self::Embeddings, "POST"),
            // Cohere and Jina have the first; llama.cpp has all of them.
            "/v1/rerank" | "/rerank" | "/v1/reranking" | "/reranking" => (Self::Rerank, "POST"),
            "/v1/flows/end" => (Self::EndFlow, "POST"),
            _ => return Self::named(path, method),
        })
    }

    /// Returns the route of a path that ends with a name.
    fn named(path: &'a str, method: &Method) -> Result<(Self, &'static str)> {
        if let Some(name) = path.strip_prefix("/v1/models/") {
            return Ok((Self::Model(name), "GET"));
        }
        let id = path.strip_prefix("/v1/responses/");
        match id.filter(|id| !id.is_empty() && !id.contains('/')) {
            Some(id) if method == Method::DELETE => Ok((Self::DeleteResponse(id), "GET, DELETE")),
            Some(id) => Ok((Self::Response(id), "GET, DELETE")),
            None => Err(ApiError::NotFound {
                path: path.to_owned(),
            }),
        }
    }
}

fn health(state: &State) -> Result<Response<Body>> {
    let (mut lost_lanes, mut failed, mut serving) = (BTreeSet::new(), Vec::new(), 0);
    for served in state.models.iter() {
        match served.engine.health() {
            Health::Loading => return Err(ApiError::Loading),
            Health::Ready => serving += 1,
            Health::Degraded(lost) => {
                serving += 1;
                lost_lanes.extend(lost.iter().map(|lost| lane_name(lost.lane)));
            }
            Health::Failed(_) => failed.push(served.name()),
        }
    }
    let mut answer = json!({"status": "ok"});
    if !lost_lanes.is_empty() || !failed.is_empty() {
        answer = json!({"status": "degraded", "lost": lost_lanes});
    }
    match (serving, failed.is_empty()) {
        (0, _) => return Err(ApiError::EngineFailed),
        (_, true) => {}
        (_, false) => answer["failed_models"] = json!(failed),
    }
    Ok(json_response(&answer))
}

async fn metrics(state: &Arc<State>, account: &Account, view: View) -> Result<Response<Body>> {
    let text = match view {
        View::Everything => state.metrics_text.of(state).await?,
        View::Own => {
            let scope = account.scope();
            let live = [Class::Reactive, Class::Proactive]
                .map(|class| (class_name(class), state.admission.live(scope, class)));
            state.metrics.own_text(scope, live)?.into()
        }
    };
    let body = Pieces::from(text).boxed_unsync();
    Ok(response(StatusCode::OK, OPEN_METRICS, body))
}

fn model(state: &State, name: &str) -> Result<Response<Body>> {
    let served = state.models.named(name)?;
    Ok(json_response(&card(state, served)))
}

fn card(state: &State, served: &ServedModel) -> Value {
    served.card(state.created, &state.models.aliases_of(served))
}

async fn end_flow(state: &State, account: &Account, body: RequestBody) -> Result<Response<Body>> {
    let bounds = state.models.bounds();
    let effort = Effort::of(body.bytes.len());
    let read = move || flow_to_end(&body.bytes, &bounds);
    let flow = FlowName::Given(state.preparation.run(account.scope(), effort, read).await?);
    let ended = state.models.end_flow(account.scope(), &flow);
    Ok(json_response(&json!({"ended": ended})))
}

/// Drops a kept response; its flow ends with the last response of its conversation.
fn delete_response(state: &State, scope: Scope, id: &str) -> Result<Response<Body>> {
    let removed = state.responses.remove(scope, id, Instant::now());
    if let Some(conversation) = removed.ok_or_else(|| no_response(id))? {
        let flow = FlowName::Conversation(conversation);
        state.models.end_flow(scope, &flow);
    }
    let deleted = json!({"id": id, "object": "response", "deleted": true});
    Ok(json_response(&deleted))
}

fn no_response(id: &str) -> ApiError {
    ApiError::NoResponse {
        id: describe(&id.into()),
    }
}

/// Returns the headers that stand in for fields of the body.
fn fields(headers: &HeaderMap) -> Vec<(&'static str, String)> {
    FIELD_HEADERS
        .iter()
        .filter_map(|(name, _)| Some((*name, headers.get(*name)?.to_str().ok()?.to_owned())))
        .collect()
}

/// Refuses other content types, which any web page can make a browser send without a preflight request.
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

/// Runs blocking work on another thread, so that it does not delay other connections.
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

/// Turns an error into a response.
fn refusal(form: ErrorForm, error: &ApiError) -> Response<Body> {
    let body = whole(form.body(error).to_string());
    let mut response = response(form.status(error), JSON, body);
    let headers = response.headers_mut();
    if let Some(time) = error.retry_after() {
        headers.insert(
            RETRY_AFTER,
            HeaderValue::from(time.as_millis().div_ceil(1000) as u64),
        );
    }
    if let ApiError::Method { allowed, .. } = error {
        headers.insert(ALLOW, HeaderValue::from_static(allowed));
    }
    if matches!(error, ApiError::Token) {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Turns a value into a JSON response.
pub(super) fn json_response(value: &impl Serialize) -> Response<Body> {
    json_pieces(Pieces::json(value))
}

/// Turns JSON text into a response.
pub(super) fn json_pieces(text: Pieces) -> Response<Body> {
    response(StatusCode::OK, JSON, text.boxed_unsync())
}

/// Turns events into a response.
pub(super) fn event_response(events: Events) -> Response<Body> {
    let charge = events.charge();
    let body = events.body().boxed_unsync();
    let mut response = response(StatusCode::OK, "text/event-stream", body);
    if let Some(charge) = charge {
        response.extensions_mut().insert(Answered(charge));
    }
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
    Pieces::from(text).boxed_unsync()
}

/// Memory that a request takes besides its body, in bytes: its head, and its connection's state. Chosen so that no client
/// can fill a listener with requests.
const HEAD_BYTES: usize = 8 << 10;

const JSON: &str = "application/json";

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
