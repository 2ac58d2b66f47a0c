//! The text assets of a source folder: tokenizer, chat template, special tokens, stop tokens.
//!
//! Everything is optional: a folder of weights alone compiles to a bundle that takes token ids. The tokenizer is passed
//! on as bytes and not interpreted here. A malformed file is an error, and never treated as absent.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::bounded;
use super::config_json::{CONFIG_BYTES_MAX, ConfigJson, whole, wrong_value};
use super::error::IngestError;
use super::pooling::PooledVectors;

/// Text assets of a model folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextAssets {
    /// `tokenizer.json`, unchanged.
    pub tokenizer: Option<Vec<u8>>,
    /// Jinja source: `chat_template.jinja`, else the default of `tokenizer_config.json`.
    pub chat_template: Option<String>,
    /// `bos_token`, `eos_token` and the like, each with its text.
    pub special_tokens: BTreeMap<String, String>,
    /// Ids that end a generation, from `generation_config.json`, or else from `config.json`. Without duplicates, in the
    /// order of the file.
    pub eos_ids: Vec<u32>,
    /// The way in which vectors are pooled, if the folder says so.
    pub pooled: Option<PooledVectors>,
    /// Hashes of the files that were read, by name: each file is read once.
    pub source_hashes: BTreeMap<&'static str, blake3::Hash>,
}

impl TextAssets {
    /// Reads the text files of a folder; `config` is its `config.json`.
    pub fn read(dir: &Path, config: &ConfigJson) -> Result<Self, IngestError> {
        let mut assets = Self::default();
        assets.tokenizer = assets.take_file(dir, "tokenizer.json", TOKENIZER_BYTES_MAX)?;
        let name = "chat_template.jinja";
        if let Some(content) = assets.take_file(dir, name, TEMPLATE_BYTES_MAX)? {
            assets.chat_template = Some(bounded::text(&dir.join(name), content)?);
        }
        // In this order, as in transformers: `tokenizer_config.json` takes precedence.
        for name in ["special_tokens_map.json", "tokenizer_config.json"] {
            let path = dir.join(name);
            if let Some(content) = assets.take_file(dir, name, CONFIG_BYTES_MAX)? {
                let keys = object(&path, &content)?;
                assets.take_special_tokens(&path, &keys)?;
                if assets.chat_template.is_none() {
                    assets.chat_template = inline_template(&path, &keys)?;
                }
            }
        }
        let name = "generation_config.json";
        if let Some(content) = assets.take_file(dir, name, CONFIG_BYTES_MAX)? {
            let path = dir.join(name);
            let keys = object(&path, &content)?;
            assets.eos_ids = eos_ids(&path, eos_value(&keys))?;
        }
        if assets.eos_ids.is_empty() {
            assets.eos_ids = eos_ids(config.path(), config.value(EOS_KEY))?;
        }
        if let Some((pooled, files)) = PooledVectors::read(dir)? {
            assets.pooled = Some(pooled);
            let hashes = files.into_iter();
            let hashes = hashes.map(|(name, content)| (name, blake3::hash(&content)));
            assets.source_hashes.extend(hashes);
        }
        Ok(assets)
    }

    /// Reads a file of the folder and keeps its hash; `None` if there is no file.
    fn take_file(
        &mut self,
        dir: &Path,
        name: &'static str,
        limit_bytes: u64,
    ) -> Result<Option<Vec<u8>>, IngestError> {
        let content = bounded::read_optional(&dir.join(name), limit_bytes)?;
        if let Some(content) = &content {
            self.source_hashes.insert(name, blake3::hash(content));
        }
        Ok(content)
    }

    /// Takes every `*_token` that is a text, or an object with a text as its `content`.
    fn take_special_tokens(
        &mut self,
        path: &Path,
        keys: &Map<String, Value>,
    ) -> Result<(), IngestError> {
        for (key, value) in keys.iter().filter(|(key, _)| key.ends_with("_token")) {
            let text = match value {
                Value::Object(token) => token.get("content").and_then(Value::as_str),
                other => other.as_str(),
            };
            match text {
                Some(text) => {
                    self.special_tokens.insert(key.clone(), text.to_owned());
                }
                // `add_bos_token: true` ends in the same letters.
                None if value.is_null() || !SPECIAL_TOKENS.contains(&key.as_str()) => {}
                None => {
                    let expected = "a text, or an object with `content`";
                    return Err(wrong_value(path, key, value, expected));
                }
            }
        }
        Ok(())
    }
}

/// Parses a JSON file that has to be an object.
fn object(path: &Path, content: &[u8]) -> Result<Map<String, Value>, IngestError> {
    match bounded::json(path, content)? {
        Value::Object(keys) => Ok(keys),
        _ => Err(IngestError::Config {
            path: path.to_owned(),
            line: 1,
            column: 1,
            message: "expected an object of keys".to_owned(),
        }),
    }
}

/// `chat_template` as a text, or as a list of named ones: then the default, or the only one.
fn inline_template(path: &Path, keys: &Map<String, Value>) -> Result<Option<String>, IngestError> {
    let value = match keys.get("chat_template") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(template)) => return Ok(Some(template.clone())),
        Some(value) => value,
    };
    let named = |item: &Value| {
        let name = item.get("name")?.as_str()?.to_owned();
        Some((name, item.get("template")?.as_str()?.to_owned()))
    };
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let templates: Option<Vec<(String, String)>> = list.iter().map(named).collect();
    let mut templates = templates.unwrap_or_default();
    let default = match templates.len() {
        1 => Some(0),
        _ => templates.iter().position(|(name, _)| name == "default"),
    };
    match default {
        Some(index) => Ok(Some(templates.swap_remove(index).1)),
        None => Err(wrong_value(
            path,
            "chat_template",
            value,
            "a text, or a list of {`name`, `template`} with one named `default`",
        )),
    }
}

/// The value of [`EOS_KEY`] at the top or in `text_config`; null counts as absent.
fn eos_value(keys: &Map<String, Value>) -> Option<&Value> {
    let text = keys.get("text_config").and_then(Value::as_object);
    let places = text.into_iter().chain([keys]);
    let mut values = places.filter_map(|keys| keys.get(EOS_KEY));
    values.find(|value| !value.is_null())
}

/// Token ids as a number or a list.
fn eos_ids(path: &Path, value: Option<&Value>) -> Result<Vec<u32>, IngestError> {
    let (key, Some(value)) = (EOS_KEY, value) else {
        return Ok(Vec::new());
    };
    let mut ids = Vec::new();
    let items = value
        .as_array()
        .map_or_else(|| std::slice::from_ref(value), |items| items.as_slice());
    if items.len() > EOS_IDS_MAX {
        return Err(wrong_value(path, key, value, "at most 1024 token ids"));
    }
    for item in items {
        let id = whole(item).and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| wrong_value(path, key, item, "a token id, or a list of them"))?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// Key of the ids that end a generation.
const EOS_KEY: &str = "eos_token_id";

/// Longest `tokenizer.json`; the largest published one known to us has 33 MB. Chosen.
pub(super) const TOKENIZER_BYTES_MAX: u64 = 64 << 20;

/// Longest chat template; published ones stay below 50 kB. Chosen.
pub(super) const TEMPLATE_BYTES_MAX: u64 = 1 << 20;

/// Largest number of stop tokens; published files have up to 10. Chosen.
const EOS_IDS_MAX: usize = 1024;

/// Keys whose value can only be a token (transformers, `SpecialTokensMixin`).
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "cls_token",
    "eos_token",
    "mask_token",
    "pad_token",
    "sep_token",
    "unk_token",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        dir
    }

    /// Reads the folder's assets, with its `config.json` if it has one.
    fn read(dir: &Path) -> Result<TextAssets, IngestError> {
        let path = dir.join("config.json");
        let config = match path.exists() {
            true => ConfigJson::read(&path)?,
            false => ConfigJson::parse(&path, b"{}")?,
        };
        TextAssets::read(dir, &config)
    }

    #[test]
    fn the_fixture_has_everything() {
        let root = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/tiny-agent"
        );
        let assets = read(Path::new(root)).unwrap();
        assert!(assets.tokenizer.is_some());
        assert!(
            assets
                .chat_template
                .unwrap()
                .starts_with("{{- bos_token }}")
        );
        assert_eq!(assets.eos_ids, [2041, 2033]);
        let eos = assets.special_tokens.get("eos_token").map(String::as_str);
        assert_eq!(eos, Some("<|eot_id|>"));
    }

    #[test]
    fn hashes_are_those_of_the_files_that_were_read() {
        let files = [
            ("tokenizer.json", "{}"),
            ("generation_config.json", r#"{"eos_token_id": 3}"#),
            ("README.md", "unread"),
        ];
        let hashes = read(folder(&files).path()).unwrap().source_hashes;
        let expected = files[..2].iter().rev();
        let expected = expected.map(|(name, text)| (*name, blake3::hash(text.as_bytes())));
        assert!(hashes.into_iter().eq(expected));
    }

    #[test]
    fn a_bare_folder_has_nothing() {
        let assets = read(folder(&[]).path()).unwrap();
        assert_eq!(assets, TextAssets::default());
    }

    #[test]
    fn tokens_are_texts_or_objects() {
        let dir = folder(&[
            (
                "special_tokens_map.json",
                r#"{"bos_token": "old", "pad_token": {"content": "p"}}"#,
            ),
            (
                "tokenizer_config.json",
                r#"{"bos_token": {"content": "<s>"}, "unk_token": null, "add_bos_token": true, "image_token": "<i>"}"#,
            ),
        ]);
        let tokens = read(dir.path()).unwrap().special_tokens;
        let pairs: Vec<_> = tokens
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        assert_eq!(
            pairs,
            [
                ("bos_token", "<s>"),
                ("image_token", "<i>"),
                ("pad_token", "p")
            ]
        );
        let dir = folder(&[("tokenizer_config.json", r#"{"eos_token": 3}"#)]);
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(
            error.ends_with(
                "key `eos_token`: found `3`, expected a text, or an object with `content`"
            )
        );
    }

    #[test]
    fn the_template_file_wins_then_the_default() {
        let list = r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        let template = |files: &[(&str, &str)]| read(folder(files).path()).map(|a| a.chat_template);
        let both = [
            ("tokenizer_config.json", list),
            ("chat_template.jinja", "j"),
        ];
        assert_eq!(template(&both).unwrap().as_deref(), Some("j"));
        assert_eq!(template(&both[..1]).unwrap().as_deref(), Some("d"));
        for refused in [
            r#"{"chat_template": [{"name": "a", "template": "t"}, {"name": "b", "template": "t"}]}"#,
            r#"{"chat_template": [{"name": "default"}]}"#,
            r#"{"chat_template": []}"#,
            r#"{"chat_template": 1}"#,
        ] {
            let error = template(&[("tokenizer_config.json", refused)]).unwrap_err();
            assert!(
                matches!(error, IngestError::ConfigValue { .. }),
                "{refused}"
            );
        }
    }

    #[test]
    fn stop_tokens_are_numbers_or_lists() {
        let ids = |generation: &str, config: &str| {
            let dir = folder(&[
                ("generation_config.json", generation),
                ("config.json", config),
            ]);
            read(dir.path()).map(|assets| assets.eos_ids)
        };
        assert_eq!(ids(r#"{"eos_token_id": 7}"#, "{}").unwrap(), [7]);
        assert_eq!(ids("{}", r#"{"eos_token_id": [7, 8, 7]}"#).unwrap(), [7, 8]);
        assert_eq!(
            ids("{}", r#"{"text_config": {"eos_token_id": 1}}"#).unwrap(),
            [1]
        );
        assert_eq!(ids("{}", r#"{"eos_token_id": null}"#).unwrap(), [0_u32; 0]);
        for refused in ["-1", "1.5", "4294967296", "\"2\"", "[[1]]"] {
            let error = ids(&format!(r#"{{"eos_token_id": {refused}}}"#), "{}").unwrap_err();
            assert!(
                matches!(error, IngestError::ConfigValue { .. }),
                "{refused}"
            );
        }
    }

    #[test]
    fn large_files_and_bad_text_are_refused() {
        let large = " ".repeat(TEMPLATE_BYTES_MAX as usize + 1);
        let error = read(folder(&[("chat_template.jinja", &large)]).path()).unwrap_err();
        assert!(matches!(
            error,
            IngestError::TooLarge {
                found_bytes: 1_048_577,
                ..
            }
        ));
        let dir = folder(&[]);
        std::fs::write(dir.path().join("chat_template.jinja"), b"ab\xff").unwrap();
        let error = read(dir.path()).unwrap_err();
        assert!(matches!(error, IngestError::NotUtf8 { valid_bytes: 2, .. }));
        std::fs::create_dir(dir.path().join("tokenizer.json")).unwrap();
        let error = read(dir.path()).unwrap_err();
        assert!(matches!(error, IngestError::NotAFile { .. }));
    }
}
