//! `config.json`, normalised.
//!
//! Files of transformers 5, of transformers 4 and of multimodal checkpoints express the same under different keys;
//! reading converts them all to the form of transformers 4 (`config_keys.rs`). Null counts as absent. `read` has
//! checked the kind of every known key, so an accessor that returns `None` for one of them means that it is absent.
//! Whether a number makes sense for a model is checked where it is bound to a dimension.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::bounded;
use super::config_keys;
use super::error::IngestError;

/// A normalised model configuration.
#[derive(Debug, Clone)]
pub struct ConfigJson {
    path: PathBuf,
    keys: Map<String, Value>,
    source_hash: blake3::Hash,
}

impl ConfigJson {
    /// Reads a file of at most 16 MiB.
    pub fn read(path: &Path) -> Result<Self, IngestError> {
        Self::parse(path, &bounded::read(path, CONFIG_BYTES_MAX)?)
    }

    /// As [`ConfigJson::read`], but of bytes in memory; `path` is for messages.
    pub fn parse(path: &Path, content: &[u8]) -> Result<Self, IngestError> {
        let Value::Object(raw) = bounded::json(path, content)? else {
            return Err(IngestError::Config {
                path: path.to_owned(),
                line: 1,
                column: 1,
                message: "expected an object of keys".to_owned(),
            });
        };
        Self::of_keys(path, raw, blake3::hash(content))
    }

    /// Makes a configuration from keys of another source, whose hash is `source_hash`.
    pub(super) fn of_keys(
        path: &Path,
        keys: Map<String, Value>,
        source_hash: blake3::Hash,
    ) -> Result<Self, IngestError> {
        Ok(Self {
            path: path.to_owned(),
            keys: config_keys::normalise(path, keys)?,
            source_hash,
        })
    }

    /// The value at a dotted path such as `rope_scaling.factor`; null counts as absent.
    pub fn value(&self, path: &str) -> Option<&Value> {
        value_at(&self.keys, path)
    }

    /// A number; `None` if absent or of another kind. Always finite: JSON has no other numbers.
    pub fn number(&self, path: &str) -> Option<f64> {
        self.value(path)?.as_f64()
    }

    /// A whole number, `4096` or `4096.0`; `None` if absent or of another kind.
    pub fn integer(&self, path: &str) -> Option<i64> {
        whole(self.value(path)?)
    }

    /// A whole number that must not be negative; anything else is an error.
    pub fn count(&self, path: &str) -> Result<Option<u64>, IngestError> {
        let Some(value) = self.value(path) else {
            return Ok(None);
        };
        match whole(value).map(u64::try_from) {
            Some(Ok(count)) => Ok(Some(count)),
            Some(Err(_)) | None => {
                Err(self.wrong(path, value, "a whole number that is not negative"))
            }
        }
    }

    /// A text; `None` if absent or of another kind.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.value(path)?.as_str()
    }

    /// A truth value; `None` if absent or of another kind.
    pub fn boolean(&self, path: &str) -> Option<bool> {
        self.value(path)?.as_bool()
    }

    /// The elements of a list; `None` if absent or of another kind.
    pub fn list(&self, path: &str) -> Option<&[Value]> {
        Some(self.value(path)?.as_array()?.as_slice())
    }

    /// The names of `architectures`: the classes of transformers that read the model.
    pub fn classes(&self) -> Vec<&str> {
        let names = self.list("architectures").unwrap_or_default();
        names.iter().filter_map(Value::as_str).collect()
    }

    /// The source file, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Hash of the original file, for provenance; for a GGUF file, of everything before the tensors' data.
    pub fn source_hash(&self) -> blake3::Hash {
        self.source_hash
    }

    fn wrong(&self, key: &str, found: &Value, expected: &'static str) -> IngestError {
        wrong_value(&self.path, key, found, expected)
    }
}

/// The value at a dotted path below `keys`; null counts as absent.
pub(super) fn value_at<'a>(keys: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let (first, rest) = match path.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path, None),
    };
    let value = keys.get(first).filter(|value| !value.is_null())?;
    match rest {
        Some(rest) => value_at(value.as_object()?, rest),
        None => Some(value),
    }
}

/// A JSON number without a fraction.
pub(super) fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64().filter(|number| number.fract() == 0.0)?;
        // Exact: whole and within ±2^53.
        (number.abs() <= WHOLE_F64_MAX).then_some(number as i64)
    })
}

/// The error for a key with a wrong value, of which it shows a short form.
pub(super) fn wrong_value(
    path: &Path,
    key: &str,
    found: &Value,
    expected: &'static str,
) -> IngestError {
    let found = match found {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => format!("`{flag}`"),
        Value::Number(number) => format!("`{number}`"),
        Value::String(text) => {
            let mut shown: String = text.chars().take(TEXT_SHOWN).collect();
            if shown.len() < text.len() {
                shown.push('…');
            }
            format!("{shown:?}")
        }
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(keys) => format!("an object of {} keys", keys.len()),
    };
    IngestError::ConfigValue {
        path: path.to_owned(),
        key: key.to_owned(),
        found,
        expected,
    }
}

/// Longest `config.json`. Published ones stay below 100 kB. Chosen.
pub(super) const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Whole numbers up to here are exact in an f64 (2^53).
const WHOLE_F64_MAX: f64 = 9_007_199_254_740_992.0;

/// Characters of a wrong text shown in a message.
const TEXT_SHOWN: usize = 40;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn mutated_files_are_configurations_or_errors(
            family in 0_usize..2,
            mutations in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        ) {
            let family = ["gemma3", "llama"][family];
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/golden/");
            let path = format!("{root}{family}/config.transformers5.json");
            let mut content = std::fs::read(path).unwrap();
            for (place, byte) in mutations {
                let place = place.index(content.len());
                content[place] = byte & 0x7f;
            }
            if let Ok(config) = ConfigJson::parse(Path::new("c"), &content) {
                prop_assert!(config.count("hidden_size").is_ok());
                prop_assert!(config.value("rope_parameters").is_none());
            }
        }
    }

    fn config(json: &str) -> Result<ConfigJson, IngestError> {
        ConfigJson::parse(Path::new("config.json"), json.as_bytes())
    }

    fn fixture(name: &str) -> ConfigJson {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/");
        ConfigJson::read(&Path::new(root).join(name)).unwrap()
    }

    #[test]
    fn both_spellings_of_every_golden_family_agree() {
        let families = [
            "gemma2", "gemma3", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3",
            "smollm3",
        ];
        for family in families {
            let four = fixture(&format!("golden/{family}/config.json"));
            let five = fixture(&format!("golden/{family}/config.transformers5.json"));
            assert_eq!(four.keys, five.keys, "{family}");
            assert!(four.number("rope_theta").is_some(), "{family}");
            assert_eq!(four.text("torch_dtype"), Some("float32"), "{family}");
        }
    }

    #[test]
    fn gemma3_keeps_its_two_bases_and_its_scaling() {
        let config = fixture("golden/gemma3/config.transformers5.json");
        assert_eq!(config.number("rope_theta"), Some(1e6));
        assert_eq!(config.number("rope_local_base_freq"), Some(1e4));
        assert_eq!(config.number("rope_scaling.factor"), Some(8.0));
        assert_eq!(config.text("rope_scaling.rope_type"), Some("linear"));
        assert_eq!(config.value("rope_parameters"), None);
        assert_eq!(config.value("final_logit_softcapping"), None);
    }

    #[test]
    fn typed_access_does_not_convert() {
        let config = config(
            r#"{"a": 3, "b": 4.0, "c": "5", "d": -1, "e": null, "f": [1], "g": {"h": true}, "i": 1.5}"#,
        )
        .unwrap();
        assert_eq!(config.integer("a"), Some(3));
        assert_eq!(config.integer("b"), Some(4));
        assert_eq!(config.integer("c"), None);
        assert_eq!(config.integer("i"), None);
        assert_eq!(config.number("c"), None);
        assert_eq!(config.value("e"), None);
        assert_eq!(config.list("f").map(<[Value]>::len), Some(1));
        assert_eq!(config.boolean("g.h"), Some(true));
        assert_eq!(config.boolean("g.h.i"), None);
        assert_eq!(config.count("a").unwrap(), Some(3));
        assert_eq!(config.count("missing").unwrap(), None);
        let error = config.count("d").unwrap_err().to_string();
        assert_eq!(
            error,
            "`config.json`, key `d`: found `-1`, expected a whole number that is not negative"
        );
        assert!(config.count("c").is_err() && config.count("i").is_err());
    }

    #[test]
    fn what_is_no_configuration_is_refused_with_its_place() {
        for (json, expect) in [
            (
                "",
                "`config.json`, line 1, column 0: EOF while parsing a value",
            ),
            (
                "[1]",
                "`config.json`, line 1, column 1: expected an object of keys",
            ),
            (
                "{\n\"rope_theta\": NaN}",
                "`config.json`, line 2, column 15: expected value",
            ),
            (
                "{\"rms_norm_eps\": 1e999}",
                "`config.json`, line 1, column 22: number out of range",
            ),
        ] {
            assert_eq!(config(json).unwrap_err().to_string(), expect);
        }
        assert!(config(&"[".repeat(100_000)).is_err());
    }
}
