//! Errors as people see them: the message, its causes, a hint; and the exit status that scripts see.

use std::process::ExitCode;

use heg_runtime::{ExitStatus, RuntimeError};
use thiserror::Error;

/// What the user gave cannot be used.
#[derive(Debug, Error)]
#[error("{message}")]
pub(crate) struct InputError {
    /// What was expected and found.
    pub(crate) message: String,
}

/// A check ran and found something.
#[derive(Debug, Error)]
#[error("{message}")]
pub(crate) struct Finding {
    /// What it found.
    pub(crate) message: String,
}

/// An input error with a message.
pub(crate) fn input(message: impl Into<String>) -> anyhow::Error {
    InputError {
        message: message.into(),
    }
    .into()
}

/// Prints an error and gives its exit status.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(io) = error.downcast_ref::<std::io::Error>()
        && io.kind() == std::io::ErrorKind::BrokenPipe
    {
        // The reader of our output has seen enough.
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("caused by: {cause}");
    }
    if let Some(hint) = hint(error) {
        eprintln!("hint: {hint}");
    }
    if error.is::<Finding>() {
        return ExitCode::FAILURE;
    }
    ExitCode::from(status(error) as u8)
}

/// Ends a process that panicked.
pub(crate) fn report_bug() -> ExitCode {
    eprintln!("error: this is a bug of heg; the message above says where");
    ExitCode::from(ExitStatus::Bug as u8)
}

fn status(error: &anyhow::Error) -> ExitStatus {
    if let Some(error) = error.downcast_ref::<RuntimeError>() {
        return error.exit_status();
    }
    if error.is::<InputError>() {
        ExitStatus::Input
    } else {
        ExitStatus::Environment
    }
}

fn hint(error: &anyhow::Error) -> Option<&'static str> {
    error.chain().find_map(|cause| {
        if let Some(RuntimeError::Cache { .. }) = cause.downcast_ref() {
            return Some("set `HEG_CACHE_DIR` to a folder of your own, or remove what is there");
        }
        if let Some(cause) = cause.downcast_ref::<heg_openvino::Error>() {
            return openvino_hint(cause);
        }
        bundle_hint(cause.downcast_ref::<heg_artifacts::Error>()?)
    })
}

fn openvino_hint(cause: &heg_openvino::Error) -> Option<&'static str> {
    use heg_openvino::Error::{EnvironmentUnusable, LibraryExposed, LibraryNotFound};
    match cause {
        LibraryNotFound { .. } | EnvironmentUnusable { .. } => {
            Some("run `cargo xtask setup`, or set `OPENVINO_DIR` to an OpenVINO installation")
        }
        LibraryExposed { .. } => {
            Some("take others' access away, or set `OPENVINO_DIR` to an OpenVINO installation")
        }
        _ => None,
    }
}

fn bundle_hint(cause: &heg_artifacts::Error) -> Option<&'static str> {
    use heg_artifacts::Error::{Corrupt, Header, Padding, TooNew, Truncated};
    match cause {
        Corrupt { .. } | Header { .. } | Padding { .. } | Truncated { .. } => {
            Some("the file was damaged: copy it again, or compile it again")
        }
        TooNew { .. } => Some("use a newer `heg`, or compile the bundle with this version"),
        _ => None,
    }
}
