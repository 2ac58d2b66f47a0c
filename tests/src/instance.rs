//! A validator of JSON schemas, read straight from the standard (Draft 2020-12), for the keywords that the tests use.
//! It is independent of the library that makes the grammars, which it judges.

use serde_json::Value;

/// Checks that `value` is an instance of `schema`. References are resolved in `root`.
///
/// # Errors
/// The first keyword that does not hold, or one that is unknown here.
pub fn check(schema: &Value, root: &Value, value: &Value) -> Result<(), String> {
    let Value::Object(keywords) = schema else {
        return ensure(*schema == Value::Bool(true), schema, value);
    };
    for (keyword, wanted) in keywords {
        let holds = match keyword.as_str() {
            "$defs" => true,
            "$ref" => {
                let place = wanted
                    .as_str()
                    .and_then(|reference| reference.strip_prefix('#'));
                let target = place.and_then(|place| root.pointer(place));
                check(target.ok_or("a reference to nothing")?, root, value)?;
                true
            }
            "type" => has_type(value, wanted.as_str().unwrap_or_default()),
            "const" => value == wanted,
            "enum" => list(wanted).contains(value),
            "anyOf" => list(wanted)
                .iter()
                .any(|one| check(one, root, value).is_ok()),
            "allOf" => list(wanted)
                .iter()
                .all(|one| check(one, root, value).is_ok()),
            "minimum" => value
                .as_f64()
                .is_none_or(|number| number >= number_of(wanted)),
            "maximum" => value
                .as_f64()
                .is_none_or(|number| number <= number_of(wanted)),
            "minLength" => length(value).is_none_or(|letters| letters >= number_of(wanted)),
            "maxLength" => length(value).is_none_or(|letters| letters <= number_of(wanted)),
            "minItems" => value
                .as_array()
                .is_none_or(|items| items.len() as f64 >= number_of(wanted)),
            "maxItems" => value
                .as_array()
                .is_none_or(|items| items.len() as f64 <= number_of(wanted)),
            "items" => {
                let mut items = value.as_array().into_iter().flatten();
                items.try_for_each(|item| check(wanted, root, item))?;
                true
            }
            "required" => {
                let names = list(wanted).iter().filter_map(Value::as_str);
                value
                    .as_object()
                    .is_none_or(|fields| names.into_iter().all(|name| fields.contains_key(name)))
            }
            "properties" | "additionalProperties" => {
                let known = keywords.get("properties").and_then(Value::as_object);
                for (name, field) in value.as_object().into_iter().flatten() {
                    let named = known.and_then(|known| known.get(name));
                    match (keyword.as_str(), named) {
                        ("properties", Some(schema)) => check(schema, root, field)?,
                        ("additionalProperties", None) => check(wanted, root, field)?,
                        _ => {}
                    }
                }
                true
            }
            _ => return Err(format!("keyword `{keyword}` is not known")),
        };
        ensure(holds, &serde_json::json!({keyword: wanted}), value)?;
    }
    Ok(())
}

fn ensure(holds: bool, schema: &Value, value: &Value) -> Result<(), String> {
    if holds {
        return Ok(());
    }
    Err(format!("{value} is no instance of {schema}"))
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => false,
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number_of(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn length(value: &Value) -> Option<f64> {
    value.as_str().map(|text| text.chars().count() as f64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_holds_and_what_does_not() {
        let schema = json!({"$defs": {"name": {"type": "string", "minLength": 1}}, "type": "object",
            "properties": {"name": {"$ref": "#/$defs/name"}, "ages": {"items": {"type": "integer", "maximum": 9}}},
            "required": ["name"], "additionalProperties": false});
        let judge = |value: Value| check(&schema, &schema, &value).err();
        assert_eq!(judge(json!({"name": "a", "ages": [1, 2.0]})), None);
        for (value, wrong) in [
            (json!([]), r#"[] is no instance of {"type":"object"}"#),
            (json!({}), r#"{} is no instance of {"required":["name"]}"#),
            (
                json!({"name": ""}),
                r#""" is no instance of {"minLength":1}"#,
            ),
            (json!({"name": "a", "b": 1}), "1 is no instance of false"),
            (
                json!({"name": "a", "ages": [10]}),
                r#"10 is no instance of {"maximum":9}"#,
            ),
            (
                json!({"name": "a", "ages": [0.5]}),
                r#"0.5 is no instance of {"type":"integer"}"#,
            ),
        ] {
            assert_eq!(judge(value).as_deref(), Some(wrong));
        }
    }
}
