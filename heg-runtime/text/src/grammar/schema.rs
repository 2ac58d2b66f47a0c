//! Preparation of schemas for the compiler: their size is bounded, the library's own keywords are set, references are
//! moved.

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};

use super::expansion;

/// The meaning of keywords and formats that the compiler does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnknownKeywords {
    /// The schema has none: an answer could not be held to them.
    Refused,
    /// They hold nothing, as in tools' parameters, which agents take from whatever validates them.
    Ignored,
}

/// Returns a copy of a schema with this runtime's options in it.
///
/// # Errors
/// If it is too large.
pub(super) fn prepared(schema: &Value, unknown: UnknownKeywords) -> Result<Value> {
    check(schema)?;
    let fields = match schema {
        Value::Object(fields) => fields.clone(),
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    Ok(with_options(fields, unknown))
}

/// Sets the library's options for writing JSON. The options in an untrusted schema are dropped, since they need not
/// lead to JSON.
fn with_options(mut schema: Map<String, Value>, unknown: UnknownKeywords) -> Value {
    let lenient = unknown == UnknownKeywords::Ignored;
    let options = json!({"whitespace_pattern": WHITE_SPACE, "lenient": lenient});
    schema.insert("x-guidance".to_owned(), options);
    Value::Object(schema)
}

/// Checks that neither a schema nor the compiler's expansion of it is too large.
pub(super) fn check(schema: &Value) -> Result<()> {
    let mut open = vec![(schema, 0)];
    let (mut values, mut bytes) = (0, 0);
    while let Some((value, depth)) = open.pop() {
        values += 1;
        ensure!(values <= VALUES_MAX, "expected at most {VALUES_MAX} values");
        ensure!(depth <= DEPTH_MAX, "expected at most {DEPTH_MAX} levels");
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => {
                bytes += fields.keys().map(String::len).sum::<usize>();
                open.extend(fields.values().map(|value| (value, depth + 1)));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        check_bytes(bytes)?;
    }
    expansion::check(schema)
}

/// Checks the size of an untrusted schema.
pub(super) fn check_bytes(bytes: usize) -> Result<()> {
    ensure!(
        bytes <= BYTES_MAX,
        "expected at most {BYTES_MAX} bytes, found {bytes}"
    );
    Ok(())
}

/// Returns a copy of a schema for a place inside another: references to its root become references to `place`.
pub(super) fn moved(schema: &Value, place: &str) -> Value {
    let Value::Object(fields) = schema else {
        return schema.clone();
    };
    let each = |value: &Value| match value {
        Value::Array(schemas) => schemas.iter().map(|schema| moved(schema, place)).collect(),
        schema => moved(schema, place),
    };
    let moved = |(key, value): (&String, &Value)| {
        let value = match (key.as_str(), value) {
            ("$ref", Value::String(reference)) => match reference.strip_prefix('#') {
                Some(rest) => json!(format!("#{place}{rest}")),
                None => value.clone(),
            },
            // The values of these keywords are not schemas.
            ("const" | "enum" | "default" | "examples", _) => value.clone(),
            (
                "properties" | "patternProperties" | "$defs" | "definitions",
                Value::Object(named),
            ) => named
                .iter()
                .map(|(name, schema)| (name.clone(), each(schema)))
                .collect(),
            _ => each(value),
        };
        (key.clone(), value)
    };
    fields.iter().map(moved).collect()
}

/// The white space allowed between the parts of a value: this, once at most. Lines and indentation would be meaningless
/// tokens, in which small models get lost.
const WHITE_SPACE: &str = " ";

/// Maximum number of values in a schema. Chosen: ten times the largest tool list seen, and a tenth of what compiles in
/// a second.
const VALUES_MAX: usize = 20_000;

/// Maximum depth of a schema: the limit of `serde_json`, and so of every schema that was text.
const DEPTH_MAX: usize = 128;

/// Maximum size of all names and texts in a schema, in bytes.
const BYTES_MAX: usize = 256 << 10;
