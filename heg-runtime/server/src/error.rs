//! What a request can be refused for, as OpenAI's interface says it: a status, and an object with `message`, `type`,
//! `param` and `code`.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use thiserror::Error;

use super::request::Bound;
use heg_runtime::RuntimeError;

/// Why a request gets no answer.
#[derive(Debug, Error)]
pub enum ApiError {
    /// The body is no JSON, or nests too deeply.
    #[error("the body is not valid JSON: {0}")]
    Json(#[source] serde_json::Error),
    /// The body is JSON, but no object.
    #[error("the body is {found}, expected an object")]
    NotAnObject {
        /// What it is.
        found: String,
    },
    /// A field that must be there.
    #[error("the field `{field}` is missing")]
    Missing {
        /// Its name.
        field: &'static str,
    },
    /// A field has a value that it cannot have.
    #[error("`{field}`: expected {expected}, found {found}")]
    Field {
        /// Path to it.
        field: String,
        /// What it can be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A field asks for what this server does not do.
    #[error("`{field}` is {found}, but this server {limit}")]
    Unsupported {
        /// Its name.
        field: String,
        /// What it is.
        found: String,
        /// What the server does instead.
        limit: &'static str,
    },
    /// A field that nobody knows.
    #[error("unknown field `{field}`")]
    Unknown {
        /// Its name.
        field: String,
    },
    /// Prompt and answer are longer than any request can be.
    #[error(
        "prompt and answer take at least {at_least} tokens together, expected at most {tokens_max}, \
         {bounded_by}; shorten the prompt or ask for fewer tokens"
    )]
    TooLong {
        /// How many tokens there are, or would be at the very least: a long prompt is not counted to its end.
        at_least: usize,
        /// How many there may be.
        tokens_max: u32,
        /// Why no more.
        bounded_by: Bound,
    },
    /// The body has more parts than any request needs.
    #[error("the body has more than {values_max} JSON values")]
    TooManyValues {
        /// How many there may be.
        values_max: usize,
    },
    /// A model that is not served.
    #[error("`model`: expected `{served}`, found {asked}")]
    Model {
        /// What was asked for.
        asked: String,
        /// What there is.
        served: String,
    },
    /// The runtime refused the prompt, or failed while answering.
    #[error("{}", Chain(.0))]
    Runtime(#[from] RuntimeError),
    /// A conversation for a bundle that cannot render any.
    #[error("the bundle has no {missing}: give the prompt as token ids to /v1/completions")]
    NoText {
        /// What is missing.
        missing: &'static str,
    },
    /// The token is missing or wrong.
    #[error("expected the server's token as `Authorization: Bearer TOKEN`")]
    Token,
    /// A name for this server that a foreign web page may have made up.
    #[error("the host `{host}` is not this machine's, expected localhost, 127.0.0.1 or [::1]")]
    Host {
        /// The header.
        host: String,
    },
    /// The body is of another type.
    #[error("expected a body of `Content-Type: application/json`, found {found}")]
    ContentType {
        /// The header.
        found: String,
    },
    /// The body is too large.
    #[error("the body is larger than {bytes_max} bytes")]
    TooLarge {
        /// What is allowed.
        bytes_max: usize,
    },
    /// The client broke off, or was too slow.
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
        /// The method it takes.
        allowed: hyper::Method,
    },
    /// There is too much to do already.
    #[error("{live} {class} requests are waiting or running already; try again later")]
    Busy {
        /// How many there are.
        live: usize,
        /// Of which class.
        class: &'static str,
        /// When to try again.
        retry_after: Duration,
    },
    /// The scheduler gave the request up in favour of others.
    #[error("the request was given up because there is too much to do; try again later")]
    Shed {
        /// When to try again.
        retry_after: Duration,
    },
    /// The client's own requests make the server keep too much.
    #[error(
        "your requests may keep {bytes_max} bytes of this size together, which they do; wait until some are answered"
    )]
    AccountFull {
        /// What they may keep.
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
    /// The devices failed.
    #[error("the request could not be run: {why}")]
    Failed {
        /// The reason that the engine gave.
        why: String,
    },
    /// The server ends.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Kernels are still being prepared.
    #[error("kernels are being prepared")]
    Loading,
    /// Nothing can be run any more.
    #[error("the engine has failed; the server has to be started again")]
    EngineFailed,
}

/// The result of this module's functions.
pub(super) type Result<T, E = ApiError> = std::result::Result<T, E>;

impl ApiError {
    /// The status of the response.
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
            | Self::NoText { .. } => StatusCode::BAD_REQUEST,
            Self::Runtime(error) if is_refusal(error) => StatusCode::BAD_REQUEST,
            Self::Runtime(_) | Self::Failed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Host { .. } => StatusCode::FORBIDDEN,
            Self::Model { .. } | Self::NotFound { .. } => StatusCode::NOT_FOUND,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Body { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::Superseded => StatusCode::CONFLICT,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::ContentType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Busy { .. } | Self::Shed { .. } | Self::AccountFull { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::BodiesFull | Self::ShuttingDown | Self::Loading | Self::EngineFailed => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Deadline => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// When to try again, where that helps.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } | Self::Shed { retry_after } => Some(*retry_after),
            Self::AccountFull { .. } | Self::BodiesFull | Self::Loading => {
                Some(Duration::from_secs(1))
            }
            _ => None,
        }
    }

    /// Whether a body was refused for its size, while its sender may still be sending it.
    pub(super) fn is_of_size(&self) -> bool {
        matches!(
            self,
            Self::TooLarge { .. } | Self::AccountFull { .. } | Self::BodiesFull
        )
    }

    /// The body of the response.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        }})
    }

    /// Name of the error for programs.
    pub fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::Model { .. } => "model_not_found",
            Self::TooLong { .. } | Self::Runtime(RuntimeError::Context { .. }) => {
                "context_length_exceeded"
            }
            Self::Runtime(RuntimeError::Token { .. }) => "invalid_token",
            Self::Unknown { .. } => "unknown_parameter",
            Self::Unsupported { .. } => "unsupported_value",
            Self::Missing { .. } => "missing_required_parameter",
            Self::Field { .. } => "invalid_value",
            Self::Token => "invalid_api_key",
            Self::Busy { .. } | Self::Shed { .. } | Self::AccountFull { .. } | Self::BodiesFull => {
                "rate_limit_exceeded"
            }
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

    /// The field at fault.
    fn param(&self) -> Option<&str> {
        match self {
            Self::Missing { field } => Some(field),
            Self::Field { field, .. }
            | Self::Unsupported { field, .. }
            | Self::Unknown { field } => Some(field),
            Self::Model { .. } => Some("model"),
            Self::Runtime(RuntimeError::Token { .. } | RuntimeError::EmptyPrompt) => Some("prompt"),
            _ => None,
        }
    }
}

/// Whether the runtime refused what the client sent.
fn is_refusal(error: &RuntimeError) -> bool {
    matches!(
        error,
        RuntimeError::Context { .. }
            | RuntimeError::EmptyPrompt
            | RuntimeError::Token { .. }
            | RuntimeError::Text(_)
    )
}

/// An error with its causes, on one line.
struct Chain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(source) = cause {
            write!(f, ": {source}")?;
            cause = source.source();
        }
        Ok(())
    }
}
