//! The form of an error: OpenAI's, or on the routes of the Messages API Anthropic's, each with the status that the
//! original gives.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::error::ApiError;

/// The form in which a route reports errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorForm {
    /// An object `error` with `message`, `type`, `param` and `code`.
    OpenAi,
    /// An object of the type `error` with the type and message of the error.
    Anthropic,
}

impl ErrorForm {
    /// Returns the form of a route's errors.
    pub(super) fn of(path: &str) -> Self {
        match path.strip_prefix("/v1/messages") {
            Some("") => Self::Anthropic,
            Some(rest) if rest.starts_with('/') => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }

    /// Returns the status of the response.
    pub fn status(self, error: &ApiError) -> StatusCode {
        match (self, error) {
            // What all clients together ask is too much: not this client's rate.
            (
                Self::Anthropic,
                ApiError::Shed { .. }
                | ApiError::BodiesFull
                | ApiError::ShuttingDown
                | ApiError::Loading,
            ) => overloaded(),
            (Self::Anthropic, ApiError::EngineFailed) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => error.status(),
        }
    }

    /// Returns the body of the response.
    pub fn body(self, error: &ApiError) -> Value {
        match self {
            Self::OpenAi => error.body(),
            Self::Anthropic => json!({
                "type": "error",
                "error": {"type": self.kind(error), "message": error.to_string()},
            }),
        }
    }

    /// Returns the name of an error's type in Anthropic's API.
    fn kind(self, error: &ApiError) -> &'static str {
        let status = self.status(error);
        match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            _ if status == overloaded() => "overloaded_error",
            _ if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        }
    }
}

/// Anthropic's status of a server that has too much to do.
fn overloaded() -> StatusCode {
    StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_route_has_the_form_of_its_api() {
        for (path, form) in [
            ("/v1/messages", ErrorForm::Anthropic),
            ("/v1/messages/count_tokens", ErrorForm::Anthropic),
            ("/v1/messages/batches", ErrorForm::Anthropic),
            ("/v1/messagesx", ErrorForm::OpenAi),
            ("/v1/responses", ErrorForm::OpenAi),
        ] {
            assert_eq!(ErrorForm::of(path), form, "{path}");
        }
    }

    #[test]
    fn anthropics_errors_have_its_statuses_and_types() {
        let retry_after = Duration::from_secs(1);
        let errors = [
            ApiError::Missing { field: "model" },
            ApiError::Token,
            ApiError::ForeignPage,
            ApiError::NotFound {
                path: "/v1/messages/batches".to_owned(),
            },
            ApiError::TooLarge { bytes_max: 10 },
            ApiError::AccountFull { bytes_max: 10 },
            ApiError::Busy {
                live: 3,
                class: "reactive",
                retry_after,
            },
            ApiError::Shed { retry_after },
            ApiError::BodiesFull,
            ApiError::ShuttingDown,
            ApiError::Loading,
            ApiError::Superseded,
            ApiError::Deadline,
            ApiError::EngineFailed,
            ApiError::Failed {
                why: "a kernel failed".to_owned(),
            },
        ];
        let form = ErrorForm::Anthropic;
        let told =
            errors.map(|error| format!("{} {}\n", form.status(&error).as_u16(), form.body(&error)));
        insta::assert_snapshot!(told.concat());
    }
}
