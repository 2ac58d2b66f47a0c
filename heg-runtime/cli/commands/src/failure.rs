//! Errors as a command prints them: the message, its causes, a hint; and the exit status.

use std::process::ExitCode;
use std::sync::Arc;

use heg_artifacts::plain::escape;
use heg_runtime::engine::Ending;
use heg_runtime::{EngineError, ExecError, ExitStatus, RuntimeError};
use heg_server::ServerError;
use thiserror::Error;

/// Invalid input of the user.
#[derive(Debug, Error)]
#[error("{message}")]
pub(crate) struct InputError {
    /// The message: expected and found.
    pub(crate) message: String,
}

/// A problem that a check found.
#[derive(Debug, Error)]
#[error("{message}")]
pub(crate) struct Finding {
    /// The message: the problem.
    pub(crate) message: String,
}

/// Creates an input error with a message.
pub(crate) fn input(message: impl Into<String>) -> anyhow::Error {
    InputError {
        message: message.into(),
    }
    .into()
}

/// Returns the error of a request without a complete answer.
pub(crate) fn unfinished(ending: Ending) -> anyhow::Error {
    match ending.error.map(Arc::try_unwrap) {
        Some(Ok(error)) => error.into(),
        Some(Err(shared)) => anyhow::Error::new(shared),
        None => anyhow::anyhow!("the engine ended the request: {:?}", ending.finish),
    }
}

/// Prints an error and returns its exit status.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(io) = error.downcast_ref::<std::io::Error>()
        && io.kind() == std::io::ErrorKind::BrokenPipe
    {
        // The reader of our output has closed it.
        return ExitCode::SUCCESS;
    }
    eprint!("{}", render(error));
    #[cfg(feature = "ship")]
    if crate::ship::is_finding(error) {
        return ExitCode::FAILURE;
    }
    if error.is::<Finding>() {
        return ExitCode::FAILURE;
    }
    ExitCode::from(status(error) as u8)
}

/// Formats the message, its causes and the hint, a line each unless they have more. Quoted text may be untrusted, so
/// characters that a terminal would interpret are escaped.
fn render(error: &anyhow::Error) -> String {
    let mut text = format!("error: {error}\n");
    for cause in error.chain().skip(1) {
        text.push_str(&format!("caused by: {cause}\n"));
    }
    if let Some(hint) = hint(error) {
        text.push_str(&format!("hint: {hint}\n"));
    }
    escape(&text).into_owned()
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
    if let Some(error) = error.downcast_ref::<ServerError>() {
        return error.exit_status();
    }
    if let Some(error) = error.downcast_ref::<EngineError>() {
        return error.exit_status();
    }
    if let Some(error) = error.downcast_ref::<Arc<EngineError>>() {
        return error.exit_status();
    }
    if let Some(error) = error.downcast_ref::<ExecError>() {
        return error.exit_status();
    }
    #[cfg(feature = "ship")]
    if let Some(status) = crate::ship::status(error) {
        return status;
    }
    if error.is::<InputError>() {
        ExitStatus::Input
    } else {
        ExitStatus::Environment
    }
}

fn hint(error: &anyhow::Error) -> Option<&'static str> {
    error.chain().find_map(|cause| {
        #[cfg(feature = "ship")]
        if let Some(hint) = crate::ship::hint(cause) {
            return Some(hint);
        }
        let exec = match cause.downcast_ref() {
            Some(RuntimeError::Exec(error)) => Some(error),
            _ => cause.downcast_ref(),
        };
        if let Some(ExecError::Cache { .. }) = exec {
            return Some("set `HEG_CACHE_DIR` to a folder of your own, or remove what is there");
        }
        if let Some(RuntimeError::LockWeights { .. }) = cause.downcast_ref() {
            return Some(
                "raise the limit with `ulimit -l` (in KiB; above the hard limit only root can), or leave \
                 `--lock-weights` out",
            );
        }
        if let Some(RuntimeError::NoRoomForWeights { .. }) = cause.downcast_ref() {
            return Some(
                "leave `--lock-weights` out: pages of weights then come and go, and answers are slower",
            );
        }
        if let Some(cause) = cause.downcast_ref::<heg_openvino::OpenvinoError>() {
            return openvino_hint(cause);
        }
        bundle_hint(cause.downcast_ref::<heg_artifacts::Error>()?)
    })
}

fn openvino_hint(cause: &heg_openvino::OpenvinoError) -> Option<&'static str> {
    use heg_openvino::OpenvinoError::{EnvironmentUnusable, LibraryExposed, LibraryNotFound};
    match cause {
        LibraryNotFound { .. } | EnvironmentUnusable { .. } => Some(
            "run `cargo xtask setup`, set `OPENVINO_DIR` to an OpenVINO installation, or run without OpenVINO: \
                 `--soc host-cpu`",
        ),
        LibraryExposed { .. } => {
            Some("take others' access away, or set `OPENVINO_DIR` to an OpenVINO installation")
        }
        _ => None,
    }
}

fn bundle_hint(cause: &heg_artifacts::Error) -> Option<&'static str> {
    use heg_artifacts::Error::{Changed, Corrupt, Header, Padding, TooNew, Truncated};
    match cause {
        Corrupt { .. } | Header { .. } | Padding { .. } | Truncated { .. } => {
            Some("the file was damaged: copy it again, or compile it again")
        }
        Changed { .. } => {
            Some("start again; to replace a bundle, write another file and rename it")
        }
        TooNew { .. } => Some("use a newer `heg`, or compile the bundle with this version"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use heg_files::FileError;

    use super::*;

    #[test]
    fn what_an_error_quotes_is_not_carried_out_by_a_terminal() {
        let error = input("there is no tool `\u{1b}]52;c;cm0=\u{7}`\nexpected one of yours");
        assert_eq!(
            render(&error),
            "error: there is no tool `\\u{1b}]52;c;cm0=\\u{7}`\nexpected one of yours\n"
        );
    }

    #[test]
    fn a_cache_of_somebody_else_is_an_error_that_says_what_to_do() {
        let path = PathBuf::from("/tmp/heg");
        let source = FileError::Writable {
            path: path.clone(),
            mode: 0o777,
        };
        let error = anyhow::Error::new(RuntimeError::from(ExecError::Cache { path, source }));
        assert_eq!(status(&error) as u8, ExitStatus::Environment as u8);
        assert_eq!(
            render(&error),
            "error: cannot use the cache folder `/tmp/heg`\n\
             caused by: other users can write to `/tmp/heg` (mode 0777), expected its owner only: run `chmod go-w` \
             on it, or use another place\n\
             hint: set `HEG_CACHE_DIR` to a folder of your own, or remove what is there\n"
        );
    }
}
