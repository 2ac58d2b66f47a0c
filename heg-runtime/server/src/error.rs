//! The errors of requests in the format of OpenAI's API: a status, and an object with `message`, `type`, `param` and
//! `code`.

use std::sync::Arc;
use std::time::Duration;

use heg_confine::Confined;
use hyper::StatusCode;
use serde_json::{Value, json};
use thiserror::Error;

use super::request::Bound;
use heg_runtime::engine::AnswerKind;
use heg_runtime::exec::chain;
use heg_runtime::{EngineError, ExecError, RuntimeError};

/// The reasons why a request gets no answer.
#[derive(Debug, Error)]
pub enum ApiError {
    /// The body is not JSON, or nests too deeply.
    #[error("the body is not valid JSON: {0}")]
    Json(#[source] serde_json::Error),
    /// The body is JSON, but not an object.
    #[error("the body is {found}, expected an object")]
    NotAnObject {
        /// Description of the value.
        found: String,
    },
    /// A required field is missing.
    #[error("the field `{field}` is missing")]
    Missing {
        /// Name of the field.
        field: &'static str,
    },
    /// A field has an invalid value.
    #[error("`{field}`: expected {expected}, found {found}")]
    Field {
        /// Path to the field.
        field: String,
        /// The values that are valid.
        expected: &'static str,
        /// Description of the value.
        found: String,
    },
    /// A field asks for something that this server does not support.
    #[error("`{field}` is {found}, but this server {limit}")]
    Unsupported {
        /// Name of the field.
        field: String,
        /// Description of the value.
        found: String,
        /// The server's actual behaviour, as the end of a sentence.
        limit: &'static str,
    },
    /// The body has an unknown field.
    #[error("unknown field `{field}`")]
    Unknown {
        /// Name of the field.
        field: String,
    },
    /// Prompt and answer are too long together.
    #[error(
        "prompt and answer take at least {at_least} tokens together, expected at most {tokens_max}, \
         {bounded_by}; shorten the prompt or ask for fewer tokens"
    )]
    TooLong {
        /// Lower bound on the number of tokens: a long prompt is not counted to its end.
        at_least: usize,
        /// Maximum number of tokens.
        tokens_max: u32,
        /// The resource that sets the maximum.
        bounded_by: Bound,
    },
    /// The body has more parts than any request needs.
    #[error("the body has more than {values_max} JSON values")]
    TooManyValues {
        /// Maximum number of JSON values.
        values_max: usize,
    },
    /// The request names a model that is not served.
    #[error("`model`: expected `{served}`, found {asked}")]
    Model {
        /// The model that was asked for.
        asked: String,
        /// The model that is served.
        served: String,
    },
    /// The runtime refused the prompt, or failed while answering.
    #[error("{}", chain(.0))]
    Runtime(#[from] RuntimeError),
    /// The bundle lacks what text prompts need.
    #[error("the bundle has no {missing}: give the prompt as token ids to /v1/completions")]
    NoText {
        /// The missing part: chat template or tokenizer.
        missing: &'static str,
    },
    /// The bundle lacks a tokenizer, without which texts cannot be joined to pairs.
    #[error("the bundle has no tokenizer, which joins a query and a document")]
    NoTokenizer,
    /// The model gives answers of another kind.
    #[error(
        "the model `{model}` gives {}, and no {}: use {}, or serve a model that {}",
        things(*gives),
        things(*asked),
        match gives {
            AnswerKind::Tokens => "/v1/chat/completions or /v1/completions",
            AnswerKind::Vector => "/v1/embeddings",
            AnswerKind::Score => "/v1/rerank",
        },
        match asked {
            AnswerKind::Tokens => "answers",
            AnswerKind::Vector => "gives vectors",
            AnswerKind::Score => "gives scores",
        }
    )]
    Output {
        /// The served model.
        model: String,
        /// The kind that the model gives.
        gives: AnswerKind,
        /// The kind that was asked for.
        asked: AnswerKind,
    },
    /// The token is missing or wrong.
    #[error("expected the server's token as `Authorization: Bearer TOKEN` or `x-api-key: TOKEN`")]
    Token,
    /// The `Host` header names another machine: a foreign web page may have rebound its name to this one.
    #[error("the host `{host}` is not this machine's, expected localhost, 127.0.0.1 or [::1]")]
    Host {
        /// Value of the header.
        host: String,
    },
    /// The head gives two targets, or two lengths of its body.
    #[error("the head is not clear: {why}")]
    Head {
        /// The contradiction.
        why: &'static str,
    },
    /// A browser sends a request on behalf of a page of another origin.
    #[error(
        "a page from elsewhere may not ask this server; open the server's own page, or use a program"
    )]
    ForeignPage,
    /// The client may see its own load only.
    #[error(
        "this shows the load of all clients, expected an operator's token (a line `NAME TOKEN operator` in the token file)"
    )]
    NoOperator,
    /// The client has as many connections as it may have.
    #[error(
        "your {open} connections are busy, more than other clients leave; wait until some are answered"
    )]
    Connections {
        /// Number of connections that the client has.
        open: usize,
    },
    /// The body has the wrong content type.
    #[error("expected a body of `Content-Type: application/json`, found {found}")]
    ContentType {
        /// Value of the header.
        found: String,
    },
    /// The body is too large.
    #[error("the body is larger than {bytes_max} bytes")]
    TooLarge {
        /// Maximum size in bytes.
        bytes_max: usize,
    },
    /// The client disconnected, or was too slow.
    #[error("the body did not arrive: {why}")]
    Body {
        /// The reason that the connection or the limit gave.
        why: String,
    },
    /// No such route.
    #[error("there is no `{path}`")]
    NotFound {
        /// The path.
        path: String,
    },
    /// The route is for another method.
    #[error("`{path}` takes {allowed}, not {method}")]
    Method {
        /// The path.
        path: String,
        /// The method it was called with.
        method: String,
        /// The methods it takes.
        allowed: &'static str,
    },
    /// The client has no kept response of this id.
    #[error("there is no response {id}: it was not stored, was deleted, or is too old")]
    NoResponse {
        /// Description of the id.
        id: String,
    },
    /// The client has no kept response that the request could continue.
    #[error("`previous_response_id`: there is no response {id}; send the whole conversation again")]
    NoPrevious {
        /// Description of the id.
        id: String,
    },
    /// The header `anthropic-version` is missing or names another version.
    #[error(
        "`anthropic-version`: expected the header with the version `2023-06-01` or `2026-10-21`, found {found}"
    )]
    Version {
        /// Description of the value.
        found: String,
    },
    /// The queue of this class is full.
    #[error("{live} {class} requests are waiting or running already; try again later")]
    Busy {
        /// Number of requests of the class that wait or run.
        live: usize,
        /// The class.
        class: &'static str,
        /// Time until a retry is worthwhile.
        retry_after: Duration,
    },
    /// The scheduler shed the request in favour of others.
    #[error("the request was given up because there is too much to do; try again later")]
    Shed {
        /// Time until a retry is worthwhile.
        retry_after: Duration,
    },
    /// The client's own requests make the server keep too much.
    #[error(
        "your requests may keep {bytes_max} bytes of this size together, which they do; wait until some are answered"
    )]
    AccountFull {
        /// Maximum memory of the client's requests, in bytes.
        bytes_max: usize,
    },
    /// All clients together make the server keep too much.
    #[error("too many large requests are arriving; try again later")]
    BodiesFull,
    /// A newer request with the same `supersede_key` came in.
    #[error("a newer request with the same `supersede_key` came in")]
    Superseded,
    /// The deadline passed.
    #[error("the deadline passed before the answer was complete")]
    Deadline,
    /// The engine could not go on with the answer.
    #[error("the request could not be run: {}", chain(&**.0))]
    Broken(Arc<EngineError>),
    /// The devices failed.
    #[error("the request could not be run: {why}")]
    Failed {
        /// The reason that the engine gave.
        why: String,
    },
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Kernels are still being prepared.
    #[error("kernels are being prepared")]
    Loading,
    /// The engine has failed for good.
    #[error("the engine has failed; the server has to be started again")]
    EngineFailed,
}

/// The result of this module's functions.
pub(super) type Result<T, E = ApiError> = std::result::Result<T, E>;

impl ApiError {
    /// Returns the status of the response.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Json(_)
            | Self::NotAnObject { .. }
            | Self::Missing { .. }
            | Self::Field { .. }
            | Self::Unsupported { .. }
            | Self::Unknown { .. }
            | Self::TooLong { .. }
            | Self::TooManyValues { .. }
            | Self::NoText { .. }
            | Self::NoTokenizer
            | Self::Output { .. }
            | Self::NoPrevious { .. }
            | Self::Version { .. }
            | Self::Head { .. } => StatusCode::BAD_REQUEST,
            Self::Runtime(error) if is_refusal(error) => StatusCode::BAD_REQUEST,
            // The prompt and the form were fine; the answer failed on its way.
            Self::Broken(error) if matches!(**error, EngineError::Text(_)) => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            Self::Runtime(_) | Self::Broken(_) | Self::Failed { .. } => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Host { .. } | Self::ForeignPage | Self::NoOperator => StatusCode::FORBIDDEN,
            Self::Model { .. } | Self::NotFound { .. } | Self::NoResponse { .. } => {
                StatusCode::NOT_FOUND
            }
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Body { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::Superseded => StatusCode::CONFLICT,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::ContentType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Busy { .. }
            | Self::Shed { .. }
            | Self::AccountFull { .. }
            | Self::Connections { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::BodiesFull | Self::ShuttingDown | Self::Loading | Self::EngineFailed => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Deadline => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Returns the time until a retry is worthwhile; `None` if a retry cannot help.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } | Self::Shed { retry_after } => Some(*retry_after),
            Self::AccountFull { .. }
            | Self::BodiesFull
            | Self::Loading
            | Self::Connections { .. } => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// Returns whether a body was refused for its size, so that its sender may still be sending it.
    pub(super) fn is_of_size(&self) -> bool {
        matches!(
            self,
            Self::TooLarge { .. } | Self::AccountFull { .. } | Self::BodiesFull
        )
    }

    /// The same error; one about the context names the document that is too long.
    pub(super) fn of_document(self, index: usize) -> Self {
        match self {
            Self::Runtime(RuntimeError::Exec(ExecError::Context { asked, context })) => {
                Self::Field {
                    field: format!("documents[{index}]"),
                    expected: "a document that fits the model's context together with the query",
                    found: format!("{asked} tokens of both, with room for {context}"),
                }
            }
            other => other,
        }
    }

    /// Returns the body of the response.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        }})
    }

    /// Returns the machine-readable name of the error.
    pub fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::Model { .. } => "model_not_found",
            Self::TooLong { .. } | Self::Runtime(RuntimeError::Exec(ExecError::Context { .. })) => {
                "context_length_exceeded"
            }
            Self::Runtime(RuntimeError::Exec(ExecError::Token { .. })) => "invalid_token",
            Self::NoPrevious { .. } => "previous_response_not_found",
            Self::Unknown { .. } => "unknown_parameter",
            Self::Unsupported { .. } => "unsupported_value",
            Self::Missing { .. } => "missing_required_parameter",
            Self::Field { .. } => "invalid_value",
            Self::Token => "invalid_api_key",
            Self::Busy { .. }
            | Self::Shed { .. }
            | Self::AccountFull { .. }
            | Self::BodiesFull
            | Self::Connections { .. } => "rate_limit_exceeded",
            Self::Superseded => "superseded",
            Self::Deadline => "deadline_exceeded",
            Self::ShuttingDown => "shutting_down",
            Self::Loading => "loading",
            Self::EngineFailed => "engine_failed",
            _ => return None,
        })
    }

    fn kind(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// Returns the field at fault.
    fn param(&self) -> Option<&str> {
        match self {
            Self::Missing { field } => Some(field),
            Self::Field { field, .. }
            | Self::Unsupported { field, .. }
            | Self::Unknown { field } => Some(field),
            Self::Model { .. } => Some("model"),
            Self::NoPrevious { .. } => Some("previous_response_id"),
            Self::Runtime(RuntimeError::Exec(ExecError::Token { .. } | ExecError::EmptyPrompt)) => {
                Some("prompt")
            }
            _ => None,
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        RuntimeError::from(error).into()
    }
}

impl From<ExecError> for ApiError {
    fn from(error: ExecError) -> Self {
        RuntimeError::from(error).into()
    }
}

impl From<Confined> for ApiError {
    fn from(error: Confined) -> Self {
        match error {
            Confined::Refused(error) => RuntimeError::from(error).into(),
            Confined::Deadline => Self::Deadline,
            Confined::Gone | Confined::Lost { .. } => Self::Failed {
                why: error.to_string(),
            },
        }
    }
}

/// Name of a kind of answers, in the plural.
fn things(kind: AnswerKind) -> &'static str {
    match kind {
        AnswerKind::Tokens => "tokens",
        AnswerKind::Vector => "vectors of texts",
        AnswerKind::Score => "scores of documents",
    }
}

/// Returns whether the runtime refused what the client sent.
fn is_refusal(error: &RuntimeError) -> bool {
    matches!(
        error,
        RuntimeError::Exec(
            ExecError::Context { .. } | ExecError::EmptyPrompt | ExecError::Token { .. }
        ) | RuntimeError::Text(_)
    )
}

#[cfg(test)]
mod tests {
    use heg_text::TextError;

    use super::*;

    #[test]
    fn an_answer_that_its_form_breaks_off_is_the_senders() {
        let restriction = TextError::Restriction {
            message: "it took too long".to_owned(),
        };
        let broken = ApiError::Broken(Arc::new(EngineError::Text(restriction)));
        assert_eq!(broken.status(), StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(broken.kind(), "invalid_request_error");
        assert!(broken.to_string().ends_with("it took too long"), "{broken}");
    }
}
