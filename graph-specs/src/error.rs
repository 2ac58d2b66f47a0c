//! Errors in spec files, each with its place in the file.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// A problem with the declarative inputs.
#[derive(Debug, Error)]
pub enum SpecError {
    /// The file could not be read.
    #[error("cannot read `{path}`", path = path.display())]
    Read {
        /// File as named by the user.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The file was read and has mistakes; all of them are listed.
    #[error("{}", list(problems))]
    Invalid {
        /// Problems in file order; never empty.
        problems: Vec<Problem>,
    },
    /// No shipped or named file has this name.
    #[error(
        "unknown {kind} `{found}`, expected one of {}{}",
        quoted(known),
        suggestion(nearest)
    )]
    Unknown {
        /// Kind of file, e.g. `architecture`.
        kind: &'static str,
        /// The requested name.
        found: String,
        /// Names that exist.
        known: Vec<String>,
        /// The known name most similar to the requested one.
        nearest: Option<String>,
    },
}

/// One mistake in a spec file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// File as named by the user.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The expected and the found value.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}: {}",
            self.file, self.line, self.column, self.message
        )
    }
}

fn list(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}

/// Formats names as `` `a`, `b` ``, for messages.
pub(crate) fn quoted<S: AsRef<str>>(names: &[S]) -> String {
    let names: Vec<String> = names.iter().map(|n| format!("`{}`", n.as_ref())).collect();
    names.join(", ")
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest
        .as_ref()
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

/// The candidate most similar to `found`, ignoring case; `None` if none is similar.
pub fn nearest<'a>(found: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Comparing takes time proportional to the product of the lengths; no known name is that long.
    let short = |name: &str| name.len() <= NAME_BYTES_COMPARED;
    let found = Some(found).filter(|name| short(name))?.to_lowercase();
    candidates
        .into_iter()
        .filter(|name| short(name))
        .map(|name| (strsim::jaro_winkler(&found, &name.to_lowercase()), name))
        .filter(|(similarity, _)| *similarity > 0.78)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Longest name for which a similar one is looked up. Chosen, not measured.
const NAME_BYTES_COMPARED: usize = 128;
