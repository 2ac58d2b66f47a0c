//! The process in which a driver may crash or hang: it answers one question about a GPU, and ends.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::child::{Said, ended_within};
use crate::platform::{Ended, ended};

/// A program that answers questions about GPUs.
#[derive(Debug, Clone)]
pub struct GpuProcess {
    /// Path of the executable.
    pub program: PathBuf,
    /// Arguments that make it call [`examine`](crate::examine), before the question.
    pub arguments: Vec<OsString>,
    /// The longest time of an answer.
    pub patience: Duration,
}

/// The reason why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The process was ended by the driver, or did not end: the driver will do so again.
    Fatal(String),
    /// An error that may pass.
    Error(String),
}

impl NoAnswer {
    /// The reason in words.
    pub(crate) fn reason(self) -> String {
        match self {
            Self::Fatal(reason) | Self::Error(reason) => reason,
        }
    }
}

impl GpuProcess {
    /// Starts the program with a question, and reads its answer.
    pub(crate) fn ask<A: DeserializeOwned>(
        &self,
        question: &impl Serialize,
    ) -> Result<A, NoAnswer> {
        let error = |error: serde_json::Error| NoAnswer::Error(error.to_string());
        let text = serde_json::to_string(question).map_err(error)?;
        let started = Command::new(&self.program)
            .args(&self.arguments)
            .arg(text)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let process = started.map_err(|error| {
            let program = self.program.display();
            NoAnswer::Error(format!("its examiner `{program}` does not start: {error}"))
        })?;
        self.answer_of(process)
    }

    fn answer_of<A: DeserializeOwned>(&self, mut process: Child) -> Result<A, NoAnswer> {
        let said = Said::listen(&mut process);
        let Some(status) = ended_within(&mut process, self.patience) else {
            let seconds = self.patience.as_secs();
            return Err(NoAnswer::Fatal(format!(
                "its driver did not end within {seconds} s in the process that examined it"
            )));
        };
        let Said { out, errors } = said;
        match ended(status) {
            Ended::Well => {
                let said = out.last().unwrap_or_default();
                serde_json::from_str(&said).map_err(|error| {
                    NoAnswer::Error(format!(
                        "its examiner said `{said}`, expected findings: {error}"
                    ))
                })
            }
            Ended::Crashed(how) => Err(NoAnswer::Fatal(format!(
                "its driver ended the process that examined it ({how})"
            ))),
            Ended::Otherwise(how) => Err(NoAnswer::Error(errors.last().unwrap_or(how))),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// The answer of a process that runs a line of the shell instead of a driver.
    fn told(line: &str) -> Result<Vec<u32>, NoAnswer> {
        let process = GpuProcess {
            program: PathBuf::from("/bin/sh"),
            arguments: vec!["-c".into(), line.into()],
            patience: Duration::from_millis(500),
        };
        process.ask(&"a question")
    }

    #[test]
    fn however_the_process_ends_it_is_told_as_an_answer() {
        assert_eq!(told("echo noise; echo '[1, 2]'"), Ok(vec![1, 2]));
        let text = |answer| match answer {
            Err(NoAnswer::Fatal(reason)) => format!("fatal: {reason}"),
            Err(NoAnswer::Error(reason)) => format!("error: {reason}"),
            Ok(found) => format!("{found:?}"),
        };
        let lines = [
            "kill -ABRT $$",
            "kill -KILL $$",
            "exec sleep 60",
            "echo no memory >&2; exit 4",
            "exit 4",
            "echo nonsense",
        ];
        let told = lines.map(|line| format!("{line}\n  {}", text(told(line))));
        insta::assert_snapshot!(told.join("\n"));
    }
}
