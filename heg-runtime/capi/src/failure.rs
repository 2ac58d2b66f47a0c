//! Errors of the C interface, and the code of each.

use std::sync::Arc;

use heg_runtime::engine::EngineError;
use heg_runtime::exec::chain;
use heg_runtime::{ExitStatus, RuntimeError};
use heg_state::StateError;
use heg_text::TextError;
use thiserror::Error;

/// The reason why a function of the interface did not do its work.
#[derive(Debug, Error)]
pub(crate) enum InterfaceError {
    /// A pointer that is needed is NULL.
    #[error("`{argument}` is NULL, expected {expected}")]
    Null {
        /// Name of the argument in the header.
        argument: &'static str,
        /// The thing that it should point to.
        expected: &'static str,
    },
    /// A text is not UTF-8.
    #[error("`{argument}` is not UTF-8: its byte {at} begins no character")]
    Encoding {
        /// Name of the argument in the header.
        argument: &'static str,
        /// Number of valid bytes before the wrong one.
        at: usize,
    },
    /// A document cannot be read as JSON with the fields of the header.
    #[error("`{argument}` cannot be read")]
    Document {
        /// Name of the argument in the header.
        argument: &'static str,
        /// Cause.
        source: serde_json::Error,
    },
    /// A document asks for what does not go together.
    #[error("{0}")]
    Asked(String),
    /// An ending was asked for while the answer goes on.
    #[error("the answer goes on: expected a call of `heg_next` that returned HEG_END or an error")]
    GoesOn,
    /// The folder of kept state cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The runtime refused.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A request failed; others of its batch may share the error.
    #[error(transparent)]
    Request(Arc<EngineError>),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The code below panicked.
    #[error("this is a bug of libheg: {0}")]
    Panic(String),
}

impl From<EngineError> for InterfaceError {
    fn from(error: EngineError) -> Self {
        Self::Runtime(error.into())
    }
}

impl From<TextError> for InterfaceError {
    fn from(error: TextError) -> Self {
        Self::Runtime(error.into())
    }
}

impl InterfaceError {
    /// The code of the error in the header: an exit status of `heg`.
    pub(crate) fn code(&self) -> i32 {
        let status = match self {
            Self::Null { .. } | Self::Encoding { .. } | Self::Document { .. } => ExitStatus::Input,
            Self::Asked(_) | Self::GoesOn => ExitStatus::Input,
            Self::State(_) | Self::Thread(_) => ExitStatus::Environment,
            Self::Runtime(error) => error.exit_status(),
            Self::Request(error) => error.exit_status(),
            Self::Panic(_) => ExitStatus::Bug,
        };
        status as i32
    }

    /// The error and its causes, on one line.
    pub(crate) fn message(&self) -> String {
        chain(self)
    }
}
