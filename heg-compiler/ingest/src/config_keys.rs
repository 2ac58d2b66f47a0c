//! Converts the keys of `config.json` to the form of transformers 4.
//!
//! transformers 5 writes `rope_parameters` (one object, or one per layer type) and `dtype`; published checkpoints have
//! `rope_theta`, `rope_scaling`, `rope_local_base_freq`, `torch_dtype`. Multimodal checkpoints keep the language
//! model's keys in `text_config`. If a file states something twice, the two must agree. At the end every known key is
//! checked for its kind.

use std::path::Path;

use serde_json::{Map, Value};

use super::config_json::wrong_value;
use super::config_kinds::check_kinds;
use super::error::IngestError;

type Keys = Map<String, Value>;

/// Returns the configuration in normalised form, without nulls at the top level.
pub(super) fn normalise(path: &Path, raw: Keys) -> Result<Keys, IngestError> {
    let mut keys = lift_text_config(path, raw)?;
    keys.retain(|_, value| !value.is_null());
    rename(path, &mut keys, "dtype", "torch_dtype")?;
    rename(
        path,
        &mut keys,
        "_sliding_window_pattern",
        "sliding_window_pattern",
    )?;
    if let Some(Value::String(dtype)) = keys.get_mut("torch_dtype")
        && let Some(bare) = dtype.strip_prefix("torch.")
    {
        *dtype = bare.to_owned();
    }
    normalise_rope(path, &mut keys)?;
    check_kinds(path, &keys)?;
    Ok(keys)
}

/// Lays the keys of `text_config` over those at the top: they describe the language model itself.
fn lift_text_config(path: &Path, mut keys: Keys) -> Result<Keys, IngestError> {
    match keys.remove("text_config") {
        None | Some(Value::Null) => Ok(keys),
        Some(Value::Object(text)) => {
            keys.extend(text.into_iter().filter(|(_, value)| !value.is_null()));
            Ok(keys)
        }
        Some(other) => Err(wrong_value(path, "text_config", &other, "an object")),
    }
}

fn rename(path: &Path, keys: &mut Keys, new: &str, old: &str) -> Result<(), IngestError> {
    match keys.remove(new) {
        Some(value) => set_agreed(path, keys, old, value),
        None => Ok(()),
    }
}

/// Normalises rotary embedding, which a file describes in `rope_scaling`, in `rope_parameters`, or in both.
fn normalise_rope(path: &Path, keys: &mut Keys) -> Result<(), IngestError> {
    let mut scaling: Option<Option<Keys>> = None;
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(value) = keys.remove(key) else {
            continue;
        };
        let Value::Object(said) = value else {
            return Err(wrong_value(path, key, &value, "an object"));
        };
        let said = merge_layer_types(path, keys, key, said)?;
        let said = split_rope(path, keys, key, said)?;
        if scaling
            .as_ref()
            .is_some_and(|before| !same_keys(before, &said))
        {
            let found = Value::Object(said.unwrap_or_default());
            return Err(wrong_value(path, key, &found, "the same as `rope_scaling`"));
        }
        scaling = Some(said);
    }
    let Some(mut scaling) = scaling.flatten() else {
        return Ok(());
    };
    if scaling.get("rope_type").and_then(Value::as_str) == Some("longrope") {
        share_original_length(keys, &mut scaling);
    }
    keys.insert("rope_scaling".to_owned(), Value::Object(scaling));
    Ok(())
}

/// Turns `{full_attention: {…}, sliding_attention: {…}}` into the first object and `rope_local_base_freq`. Sliding
/// layers have their own base, never a scaling: transformers 4 has no key for that.
fn merge_layer_types(
    path: &Path,
    keys: &mut Keys,
    key: &str,
    mut said: Keys,
) -> Result<Keys, IngestError> {
    let full = said.remove(FULL).filter(|value| !value.is_null());
    let sliding = said.remove(SLIDING).filter(|value| !value.is_null());
    if full.is_none() && sliding.is_none() {
        return Ok(said);
    }
    if let Some((other, value)) = said.iter().find(|(_, value)| value.is_object()) {
        let expected = "`full_attention` and `sliding_attention` only";
        return Err(wrong_value(
            path,
            &format!("{key}.{other}"),
            value,
            expected,
        ));
    }
    let Some(Value::Object(full)) = full else {
        let found = full.unwrap_or(Value::Null);
        return Err(wrong_value(
            path,
            &format!("{key}.{FULL}"),
            &found,
            "an object",
        ));
    };
    match sliding {
        None => {}
        Some(Value::Object(mut local)) => {
            if let Some(theta) = local.remove("rope_theta") {
                set_agreed(path, keys, "rope_local_base_freq", theta)?;
            }
            if let Some(scaling) = split_rope(path, keys, key, local)? {
                return Err(wrong_value(
                    path,
                    &format!("{key}.{SLIDING}"),
                    &Value::Object(scaling),
                    "rotary embedding of type `default`",
                ));
            }
        }
        Some(other) => {
            return Err(wrong_value(
                path,
                &format!("{key}.{SLIDING}"),
                &other,
                "an object",
            ));
        }
    }
    Ok(full)
}

/// Moves keys that do not describe a scaling to the top level; returns the scaling, if there is one.
fn split_rope(
    path: &Path,
    keys: &mut Keys,
    key: &str,
    mut said: Keys,
) -> Result<Option<Keys>, IngestError> {
    said.retain(|_, value| !value.is_null());
    for plain in ["rope_theta", "partial_rotary_factor"] {
        if let Some(value) = said.remove(plain) {
            set_agreed(path, keys, plain, value)?;
        }
    }
    if let Some(old) = said.remove("type") {
        said.entry("rope_type").or_insert(old);
    }
    if said.is_empty() {
        return Ok(None);
    }
    match said.get_mut("rope_type") {
        Some(Value::String(name)) if name == "default" => return Ok(None),
        // The name of longrope in the first Phi-3 files.
        Some(Value::String(name)) if name == "su" => "longrope".clone_into(name),
        Some(_) => {}
        None => {
            let expected = "a `rope_type` beside the other keys";
            return Err(wrong_value(path, key, &Value::Object(said), expected));
        }
    }
    Ok(Some(said))
}

/// Phi-3 keeps the original length at the top, transformers 5 in the scaling: afterwards it is in both.
fn share_original_length(keys: &mut Keys, scaling: &mut Keys) {
    let inner = scaling.get(ORIGINAL_LENGTH).cloned();
    let outer = keys.get(ORIGINAL_LENGTH).cloned();
    match (inner, outer) {
        (Some(length), None) => keys.insert(ORIGINAL_LENGTH.to_owned(), length),
        (None, Some(length)) => scaling.insert(ORIGINAL_LENGTH.to_owned(), length),
        (Some(_), Some(_)) | (None, None) => None,
    };
}

/// Sets a key; an error if it already has another value.
fn set_agreed(path: &Path, keys: &mut Keys, key: &str, value: Value) -> Result<(), IngestError> {
    match keys.get(key) {
        Some(before) if !same(before, &value) => Err(wrong_value(
            path,
            key,
            &value,
            "the same value wherever the file gives it",
        )),
        Some(_) => Ok(()),
        None => {
            keys.insert(key.to_owned(), value);
            Ok(())
        }
    }
}

/// Equality that treats `10000` and `10000.0` as equal.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

fn same_keys(a: &Option<Keys>, b: &Option<Keys>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, value)| b.get(key).is_some_and(|other| same(value, other)))
        }
        (Some(_), None) | (None, Some(_)) => false,
    }
}

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
const ORIGINAL_LENGTH: &str = "original_max_position_embeddings";

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, expect: &str) {
        let parse = |text: &str| match serde_json::from_str(text) {
            Ok(Value::Object(keys)) => keys,
            other => panic!("{other:?}"),
        };
        match normalise(Path::new("c"), parse(json)) {
            Ok(keys) => assert_eq!(keys, parse(expect)),
            Err(error) => assert_eq!(error.to_string(), expect),
        }
    }

    #[test]
    fn text_config_is_lifted_and_wins() {
        check(
            r#"{"model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {"a": 1},
                "text_config": {"model_type": "gemma3_text", "hidden_size": 8, "torch_dtype": null}}"#,
            r#"{"model_type": "gemma3_text", "torch_dtype": "bfloat16", "vision_config": {"a": 1},
                "hidden_size": 8}"#,
        );
        check(
            r#"{"text_config": 3}"#,
            "`c`, key `text_config`: found `3`, expected an object",
        );
    }

    #[test]
    fn dtype_is_named_as_before() {
        check(
            r#"{"dtype": "torch.float16"}"#,
            r#"{"torch_dtype": "float16"}"#,
        );
        check(
            r#"{"dtype": "float16", "torch_dtype": "float32"}"#,
            "`c`, key `torch_dtype`: found \"float16\", expected the same value wherever the file gives it",
        );
    }

    #[test]
    fn legacy_scaling_types_get_their_new_names() {
        check(
            r#"{"original_max_position_embeddings": 4096, "rope_theta": 10000.0,
                "rope_scaling": {"type": "su", "long_factor": [1.0], "short_factor": [1]}}"#,
            r#"{"original_max_position_embeddings": 4096, "rope_theta": 10000.0,
                "rope_scaling": {"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1],
                                 "original_max_position_embeddings": 4096}}"#,
        );
        check(
            r#"{"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [1.0],
                "original_max_position_embeddings": 4096}}"#,
            r#"{"rope_theta": 1e4, "original_max_position_embeddings": 4096,
                "rope_scaling": {"rope_type": "longrope", "long_factor": [1.0],
                                 "original_max_position_embeddings": 4096}}"#,
        );
        check(r#"{"rope_scaling": {"type": "default"}}"#, "{}");
        check(
            r#"{"rope_scaling": {"factor": 2}}"#,
            "`c`, key `rope_scaling`: found an object of 1 keys, expected a `rope_type` beside the other keys",
        );
        check(r#"{"rope_scaling": null}"#, "{}");
    }

    #[test]
    fn what_is_said_twice_must_agree() {
        check(
            r#"{"rope_theta": 10000, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}"#,
            r#"{"rope_theta": 10000}"#,
        );
        check(
            r#"{"rope_theta": 5, "rope_parameters": {"rope_theta": 6, "rope_type": "default"}}"#,
            "`c`, key `rope_theta`: found `6`, expected the same value wherever the file gives it",
        );
        check(
            r#"{"rope_scaling": {"rope_type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}}"#,
            "`c`, key `rope_parameters`: found an object of 0 keys, expected the same as `rope_scaling`",
        );
    }

    #[test]
    fn sliding_layers_cannot_be_scaled() {
        check(
            r#"{"rope_parameters": {"full_attention": {"rope_type": "default"},
                "sliding_attention": {"rope_type": "linear", "factor": 2}}}"#,
            "`c`, key `rope_parameters.sliding_attention`: found an object of 2 keys, expected rotary embedding of type `default`",
        );
        check(
            r#"{"rope_parameters": {"sliding_attention": {"rope_theta": 1}}}"#,
            "`c`, key `rope_parameters.full_attention`: found null, expected an object",
        );
    }

    #[test]
    fn known_keys_hold_their_kind() {
        check(
            r#"{"hidden_size": -64}"#,
            "`c`, key `hidden_size`: found `-64`, expected a whole number that is not negative",
        );
        check(
            r#"{"rope_theta": "10000"}"#,
            "`c`, key `rope_theta`: found \"10000\", expected a number",
        );
        check(
            r#"{"rope_scaling": {"rope_type": ["x"]}}"#,
            "`c`, key `rope_scaling.rope_type`: found a list of 1, expected a text",
        );
    }
}
