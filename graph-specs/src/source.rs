//! A spec file's text, and the line and column of a RON error or a wrong value in it.

use std::cell::OnceCell;

use ron::error::{Error as Ron, SpannedError};
use ron::extensions::Extensions;
use serde::de::DeserializeOwned;

use crate::error::{Problem, SpecError, nearest, quoted};
use crate::outline::Outline;

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
            .with_default_extension(Extensions::IMPLICIT_SOME | Extensions::UNWRAP_NEWTYPES)
            .with_recursion_limit(64);
        options
            .from_str(self.text)
            .map_err(|error| SpecError::Invalid {
                problems: vec![self.syntax_problem(&error)],
            })
    }

    fn syntax_problem(&self, error: &SpannedError) -> Problem {
        let (line, column) = (error.span.start.line, error.span.start.col);
        // If another type of value was expected, RON points at the space before it.
        let before = column.saturating_sub(1);
        let text = self.text.lines().nth(line.saturating_sub(1));
        let space = text
            .into_iter()
            .flat_map(|text| text.chars().skip(before))
            .position(|c| !c.is_whitespace());
        Problem {
            file: self.file.to_owned(),
            line,
            column: column + space.unwrap_or(0),
            message: describe(&error.code),
        }
    }
}

/// Collects the problems with the values of a file that RON has accepted.
pub(crate) struct Problems<'a> {
    source: Source<'a>,
    outline: OnceCell<Outline>,
    found: Vec<Problem>,
}

impl<'a> Problems<'a> {
    pub(crate) fn new(source: Source<'a>) -> Self {
        Self {
            source,
            outline: OnceCell::new(),
            found: Vec::new(),
        }
    }

    /// Adds a problem with the value at `path`, e.g. `layer.3.1.x` (see [`Outline`]).
    pub(crate) fn push(&mut self, path: &str, message: String) {
        let text = self.source.text;
        let offset = self.outline.get_or_init(|| Outline::of(text)).offset(path);
        let before = text.get(..offset).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        self.found.push(Problem {
            file: self.source.file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message,
        });
    }

    /// Returns the file's value if nothing is wrong with it.
    pub(crate) fn finish<T>(self, value: T) -> Result<T, SpecError> {
        let mut problems = self.found;
        if problems.is_empty() {
            return Ok(value);
        }
        problems.sort_by_key(|problem| (problem.line, problem.column));
        Err(SpecError::Invalid { problems })
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
