//! The fields of a request's JSON object, taken one by one, each with its type; a field left over is an error.
//!
//! Types derived with serde, with `serde_path_to_error`, would name the path too; but they repeat a client's text at
//! any length, and do not list the alternatives of a field that has several forms.
//!
//! A field that is `null` counts as absent, as OpenAI's clients send it.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::bounded_json::{PromptField, Reader};
use super::error::{ApiError, Result};
use super::request::PromptText;

/// The fields of an object that have not been taken yet.
#[derive(Debug)]
pub(super) struct Fields {
    map: Map<String, Value>,
    /// Path to the object with a dot at its end; empty for the body.
    path: String,
}

impl Fields {
    /// Reads a body, with its prompt if that is a field of its own.
    pub(super) fn read(
        body: &[u8],
        reader: &Reader,
        prompt: PromptField,
    ) -> Result<(Self, Option<PromptText>)> {
        let (map, prompt) = reader.object(body, prompt)?;
        let path = String::new();
        Ok((Self { map, path }, prompt))
    }

    /// Returns the fields of an object within a body; `path` leads to it.
    ///
    /// # Errors
    /// `Field`, if the value is something else.
    pub(super) fn of(value: Value, path: &str) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self {
                map,
                path: format!("{path}."),
            }),
            other => Err(ApiError::Field {
                field: path.to_owned(),
                expected: "an object",
                found: describe(&other),
            }),
        }
    }

    /// Adds a field that the body does not have.
    pub(super) fn add(&mut self, name: &str, value: Value) {
        if self.map.get(name).is_none_or(Value::is_null) {
            self.map.insert(name.to_owned(), value);
        }
    }

    /// Returns a field that is not taken yet.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>> {
        self.typed(name, "a text", |value| match value {
            Value::String(text) => Ok(text),
            other => Err(other),
        })
    }

    /// Takes a text that has to be there.
    pub(super) fn needed_text(&mut self, name: &str) -> Result<String> {
        let text = self.text(name)?;
        text.ok_or_else(|| self.absent(name, "a text"))
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "true or false", |value| value.as_bool().ok_or(value))
    }

    pub(super) fn number(&mut self, name: &str) -> Result<Option<f64>> {
        self.typed(name, "a number", |value| value.as_f64().ok_or(value))
    }

    pub(super) fn integer(&mut self, name: &str) -> Result<Option<i64>> {
        self.typed(name, "an integer", |value| value.as_i64().ok_or(value))
    }

    /// Takes a count, a whole number.
    pub(super) fn count(&mut self, name: &str) -> Result<Option<u32>> {
        self.within(name, 1..=u32::MAX, "an integer from 1 to 4294967295")
    }

    /// Takes a whole number in a range, which `expected` describes.
    pub(super) fn within(
        &mut self,
        name: &str,
        range: RangeInclusive<u32>,
        expected: &'static str,
    ) -> Result<Option<u32>> {
        self.typed(name, expected, |value| {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            number.filter(|number| range.contains(number)).ok_or(value)
        })
    }

    pub(super) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>> {
        self.typed(name, "a list", |value| match value {
            Value::Array(list) => Ok(list),
            other => Err(other),
        })
    }

    pub(super) fn object(&mut self, name: &str) -> Result<Option<Fields>> {
        let path = format!("{}{name}.", self.path);
        let map = self.map(name)?;
        Ok(map.map(|map| Fields { map, path }))
    }

    pub(super) fn map(&mut self, name: &str) -> Result<Option<Map<String, Value>>> {
        self.typed(name, "an object", |value| match value {
            Value::Object(map) => Ok(map),
            other => Err(other),
        })
    }

    /// Takes a field that may only have a value without effect.
    pub(super) fn only(
        &mut self,
        name: &str,
        is_neutral: impl FnOnce(&Value) -> bool,
        limit: &'static str,
    ) -> Result<()> {
        match self.take(name) {
            Some(value) if !is_neutral(&value) => Err(self.unsupported(name, &value, limit)),
            _ => Ok(()),
        }
    }

    /// Takes a field if it has such a value; returns whether it had.
    pub(super) fn take_if(&mut self, name: &str, is_so: impl FnOnce(&Value) -> bool) -> bool {
        let has = self.map.get(name).is_some_and(is_so);
        if has {
            self.map.remove(name);
        }
        has
    }

    /// Returns the error for a field with a wrong value.
    pub(super) fn wrong(&self, name: &str, expected: &'static str, found: &Value) -> ApiError {
        ApiError::Field {
            field: self.path_of(name),
            expected,
            found: describe(found),
        }
    }

    /// Returns the error for a field that has to be there and is not.
    pub(super) fn absent(&self, name: &str, expected: &'static str) -> ApiError {
        ApiError::Field {
            field: self.path_of(name),
            expected,
            found: "nothing".to_owned(),
        }
    }

    /// Returns the error for a field that asks for something that is not there; `limit` is the end of a sentence.
    pub(super) fn unsupported(&self, name: &str, found: &Value, limit: &'static str) -> ApiError {
        ApiError::Unsupported {
            field: self.path_of(name),
            found: describe(found),
            limit,
        }
    }

    /// Checks that no field is left.
    pub(super) fn end(self) -> Result<()> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(name) => Err(ApiError::Unknown {
                field: shorten(&self.path_of(name)),
            }),
        }
    }

    fn typed<T>(
        &mut self,
        name: &str,
        expected: &'static str,
        convert: impl FnOnce(Value) -> std::result::Result<T, Value>,
    ) -> Result<Option<T>> {
        self.take(name)
            .map(|value| convert(value).map_err(|value| self.wrong(name, expected, &value)))
            .transpose()
    }

    pub(super) fn path_of(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }
}

/// Describes a value in a message, briefly even if the value is long.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("`{value}`"),
        Value::String(text) => format!("the text `{}`", shorten(text)),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn shorten(text: &str) -> String {
    let mut letters = text.chars();
    let mut short: String = letters.by_ref().take(SHOWN_LETTERS_MAX).collect();
    if letters.next().is_some() {
        short.push('…');
    }
    short
}

/// Maximum number of characters of a client's text in a message. Chosen.
const SHOWN_LETTERS_MAX: usize = 60;
