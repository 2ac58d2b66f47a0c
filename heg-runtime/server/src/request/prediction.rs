//! A client's prediction of the answer, in OpenAI's form.

use serde_json::Value;

use super::PromptBounds;
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::message::joined;

/// Takes the text of `prediction`: its content, whole or in parts.
pub(super) fn prediction(fields: &mut Fields, bounds: &PromptBounds) -> Result<Option<String>> {
    let Some(mut prediction) = fields.object("prediction")? else {
        return Ok(None);
    };
    match prediction.take("type") {
        Some(kind) if kind == "content" => {}
        Some(kind) => return Err(prediction.wrong("type", "content", &kind)),
        None => return Err(missing("prediction.type")),
    }
    let text = match prediction.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => joined(parts, "prediction.content")?,
        Some(other) => {
            let expected = "a text or a list of text parts";
            return Err(prediction.wrong("content", expected, &other));
        }
        None => return Err(missing("prediction.content")),
    };
    prediction.end()?;
    bounds.check_prediction_text(text.len())?;
    Ok(Some(text))
}

fn missing(field: &'static str) -> ApiError {
    ApiError::Missing { field }
}
