//! A request to `/v1/embeddings`.

use std::time::Duration;

use serde_json::Value;

use super::{PromptBounds, PromptText, fields, params};
use crate::bounded_json::PromptField;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, describe};
use heg_sched::Class;

/// A request for the vectors of texts.
#[derive(Debug, PartialEq)]
pub(crate) struct EmbeddingsRequest {
    /// The texts, at least one.
    pub(crate) input: Vec<PromptText>,
    /// The model, if named.
    pub(crate) model: Option<String>,
    /// The form in which vectors are written.
    pub(crate) encoding: Encoding,
    /// Number of leading elements to which vectors are cut, if they are.
    pub(crate) dimensions: Option<u32>,
    /// The priority class.
    pub(crate) class: Class,
    /// Time from now after which the vectors are worthless.
    pub(crate) deadline: Option<Duration>,
    /// The fields of the request that have no effect.
    pub(crate) ignored: Vec<&'static str>,
}

/// The form in which vectors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// Lists of numbers.
    Float,
    /// Little-endian f32 in base64.
    Base64,
}

impl EmbeddingsRequest {
    /// Reads a body; `headers` are fields that it may leave out.
    ///
    /// # Errors
    /// The first thing that is wrong, with the field's name.
    pub(crate) fn parse<'a>(
        body: &[u8],
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        bounds: &PromptBounds,
    ) -> Result<Self> {
        let (mut fields, _) = fields(body, headers, bounds, PromptField::Unknown)?;
        let ignored = super::foreign::without_effect(&mut fields);
        let input = fields
            .take("input")
            .ok_or(ApiError::Missing { field: "input" })?;
        let encoding = match fields.text("encoding_format")?.as_deref() {
            None | Some("float") => Encoding::Float,
            Some("base64") => Encoding::Base64,
            Some(other) => {
                return Err(fields.wrong("encoding_format", "float or base64", &other.into()));
            }
        };
        let class = class_of_texts(&mut fields)?;
        let request = Self {
            input: texts(input)?,
            model: fields.text("model")?,
            encoding,
            dimensions: fields.count("dimensions")?,
            class,
            deadline: deadline(&mut fields)?,
            ignored,
        };
        fields.end()?;
        Ok(request)
    }
}

/// Takes the class of a request for texts: they are background work unless their request says otherwise.
pub(super) fn class_of_texts(fields: &mut Fields) -> Result<Class> {
    let is_classed = ["priority", "service_tier"]
        .iter()
        .any(|field| fields.get(field).is_some());
    let class = params::class(fields)?;
    Ok(if is_classed { class } else { Class::Proactive })
}

/// Takes the time after which the answer is worthless.
pub(super) fn deadline(fields: &mut Fields) -> Result<Option<Duration>> {
    let millis = fields.count("deadline_ms")?;
    Ok(millis.map(|millis| Duration::from_millis(millis.into())))
}

/// Returns the texts of `input`: a text, a list of texts, the token ids of one, or a list of those.
fn texts(input: Value) -> Result<Vec<PromptText>> {
    let list = match input {
        Value::String(text) => return Ok(vec![PromptText::Text(text)]),
        Value::Array(list) if list.first().is_some_and(Value::is_number) => {
            return Ok(vec![PromptText::Tokens(ids("input", list)?)]);
        }
        Value::Array(list) => list,
        other => return Err(wrong("input", &other)),
    };
    if list.is_empty() || list.len() > TEXTS_MAX {
        return Err(ApiError::Field {
            field: "input".to_owned(),
            expected: "1 to 2048 texts",
            found: format!("{}", list.len()),
        });
    }
    let texts = list.into_iter().enumerate().map(|(at, value)| match value {
        Value::String(text) => Ok(PromptText::Text(text)),
        Value::Array(list) => Ok(PromptText::Tokens(ids(&format!("input[{at}]"), list)?)),
        other => Err(wrong(&format!("input[{at}]"), &other)),
    });
    texts.collect()
}

/// Returns a list of token ids.
fn ids(field: &str, list: Vec<Value>) -> Result<Vec<u32>> {
    let id = |value: Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| ApiError::Field {
            field: field.to_owned(),
            expected: "token ids",
            found: describe(&value),
        })
    };
    list.into_iter().map(id).collect()
}

fn wrong(field: &str, found: &Value) -> ApiError {
    ApiError::Field {
        field: field.to_owned(),
        expected: "a text or token ids, or a list of these",
        found: describe(found),
    }
}

/// OpenAI's bound on the texts of a request.
pub(super) const TEXTS_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Bound;

    const BOUNDS: PromptBounds = PromptBounds {
        tokens: 512,
        bounded_by: Bound::Context,
        token_bytes: 16,
    };

    fn parse(body: &str) -> Result<EmbeddingsRequest> {
        EmbeddingsRequest::parse(body.as_bytes(), [], &BOUNDS)
    }

    #[test]
    fn texts_have_four_forms() {
        let text = |text: &str| PromptText::Text(text.to_owned());
        let ids = |ids: &[u32]| PromptText::Tokens(ids.to_vec());
        let input = |body: &str| parse(body).unwrap().input;
        assert_eq!(input(r#"{"input": "a"}"#), [text("a")]);
        assert_eq!(input(r#"{"input": ["a", ""]}"#), [text("a"), text("")]);
        assert_eq!(input(r#"{"input": [1, 2]}"#), [ids(&[1, 2])]);
        let several = input(r#"{"input": [[1], [2, 3]]}"#);
        assert_eq!(several, [ids(&[1]), ids(&[2, 3])]);
    }

    #[test]
    fn texts_are_background_work_unless_the_request_says_otherwise() {
        let class = |rest: &str| parse(&format!(r#"{{"input": "a"{rest}}}"#)).unwrap().class;
        assert_eq!(class(""), Class::Proactive);
        assert_eq!(class(r#", "priority": "reactive""#), Class::Reactive);
        assert_eq!(class(r#", "service_tier": "default""#), Class::Reactive);
        let request =
            parse(r#"{"input": "a", "user": "u", "dimensions": 8, "encoding_format": "base64"}"#);
        let request = request.unwrap();
        assert_eq!(request.ignored, ["user"]);
        assert_eq!(request.dimensions, Some(8));
        assert_eq!(request.encoding, Encoding::Base64);
    }

    #[test]
    fn refusals_name_the_field() {
        let refused = [
            "{}",
            r#"{"input": 1}"#,
            r#"{"input": []}"#,
            r#"{"input": ["a", 1]}"#,
            r#"{"input": [1, "a"]}"#,
            r#"{"input": [[1, -1]]}"#,
            r#"{"input": "a", "encoding_format": "hex"}"#,
            r#"{"input": "a", "dimensions": 0}"#,
            r#"{"input": "a", "stream": true}"#,
        ];
        let said = refused.map(|body| format!("{body}: {}\n", parse(body).unwrap_err()));
        insta::assert_snapshot!("refused_embeddings", said.concat());
    }
}
