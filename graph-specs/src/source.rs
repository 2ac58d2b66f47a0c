//! A spec file's text and the way from a RON error, or a wrong name, to line and column.
//!
//! Names in spec files are string literals. A name that is wrong is wrong wherever it stands, so its first
//! literal in the file is a wrong use: that is how semantic checks find a position without spans in the data.

use ron::error::{Error as Ron, SpannedError};
use serde::de::DeserializeOwned;

use crate::error::{Problem, SpecError, nearest, quoted};

/// Text of one spec file.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// File as named by the user.
    pub file: &'a str,
    /// Its content.
    pub text: &'a str,
}

impl Source<'_> {
    /// Parses the file as RON.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, SpecError> {
        let options = ron::Options::default()
            .with_default_extension(ron::extensions::Extensions::IMPLICIT_SOME)
            .with_recursion_limit(64);
        options
            .from_str(self.text)
            .map_err(|error| SpecError::Invalid {
                problems: vec![self.syntax_problem(&error)],
            })
    }

    /// A problem at the `nth` (from 0) occurrence of the string literal `literal`.
    pub fn problem_at(&self, literal: &str, nth: usize, message: String) -> Problem {
        let quoted = format!("\"{literal}\"");
        let offset = self
            .text
            .match_indices(&quoted)
            .nth(nth)
            .map_or(0, |(offset, _)| offset + 1);
        let before = self.text.get(..offset).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Problem {
            file: self.file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message,
        }
    }

    fn syntax_problem(&self, error: &SpannedError) -> Problem {
        Problem {
            file: self.file.to_owned(),
            line: error.span.start.line,
            column: error.span.start.col,
            message: describe(&error.code),
        }
    }
}

fn describe(code: &Ron) -> String {
    match code {
        Ron::NoSuchStructField {
            expected, found, ..
        } => unknown("field", found, expected),
        Ron::NoSuchEnumVariant {
            expected, found, ..
        } => unknown("variant", found, expected),
        Ron::MissingStructField { field, .. } => format!("missing field `{field}`"),
        other => lower_first(&other.to_string()),
    }
}

fn unknown(kind: &str, found: &str, expected: &[&'static str]) -> String {
    let hint = nearest(found, expected.iter().copied())
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default();
    format!(
        "unknown {kind} `{found}`, expected one of {}{hint}",
        quoted(expected)
    )
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(chars).collect()
    })
}
