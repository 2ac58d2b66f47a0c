//! Errors that keep a server from starting, or end it.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use heg_runtime::{ExitStatus, RuntimeError};

/// The reason why a server cannot run.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The port or the socket cannot be opened.
    #[error("cannot listen on `{address}`")]
    Listen {
        /// The address that was asked for.
        address: String,
        /// Cause.
        source: io::Error,
    },
    /// Clients' tokens cannot be taken from a file.
    #[error("cannot take tokens from `{}`: {problem}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The problem, as expected and found; never a token.
        problem: String,
    },
    /// A model cannot have a name, or none has it.
    #[error("cannot serve model `{name}`: {why}")]
    Model {
        /// The name.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// The operating system refuses something that a server needs.
    #[error("cannot {doing}")]
    System {
        /// The operation that failed.
        doing: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The engine cannot run.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl ServerError {
    /// Returns the exit status of a process that ends with this error.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Listen { .. } | Self::System { .. } => ExitStatus::Environment,
            Self::TokenFile { .. } | Self::Model { .. } => ExitStatus::Input,
            Self::Runtime(error) => error.exit_status(),
        }
    }
}
