//! The way in which a model's vectors are pooled, as sentence-transformers writes it beside the model: `modules.json`
//! lists the stages of a model, and the folder of the pooling stage has a `config.json` of its own.

use std::path::Path;

use heg_spec::{Pooling, VectorLength};
use serde_json::{Map, Value};

use super::bounded;
use super::config_json::{CONFIG_BYTES_MAX, wrong_value};
use super::error::IngestError;

/// The way from the rows of a text to its vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PooledVectors {
    /// The pooling of rows.
    pub pooling: Pooling,
    /// Length of the vector.
    pub length: VectorLength,
}

/// A file that was read, with its content.
pub(super) type PoolingFile = (&'static str, Vec<u8>);

impl PooledVectors {
    /// Reads the stages of a folder; `None` if it has no `modules.json`. Returns the files too, in the order of reading.
    pub(super) fn read(dir: &Path) -> Result<Option<(Self, Vec<PoolingFile>)>, IngestError> {
        let path = dir.join(MODULES);
        let Some(content) = bounded::read_optional(&path, CONFIG_BYTES_MAX)? else {
            return Ok(None);
        };
        let stages = stages(&path, &bounded::json(&path, &content)?)?;
        let mut files = vec![(MODULES, content)];
        let mut pooling = None;
        let mut length = VectorLength::Pooled;
        for stage in stages {
            match stage {
                Stage::Transformer => {}
                Stage::Pooling(folder) => {
                    let path = dir.join(folder).join("config.json");
                    let content = bounded::read(&path, CONFIG_BYTES_MAX)?;
                    pooling = Some(pooling_of(&path, &bounded::json(&path, &content)?)?);
                    files.push((POOLING, content));
                }
                Stage::Normalize => length = VectorLength::Unit,
            }
        }
        let pooled = pooling.map(|pooling| (Self { pooling, length }, files));
        Ok(pooled)
    }
}

/// A stage of a model.
enum Stage {
    /// The model itself.
    Transformer,
    /// Pooling, with its folder.
    Pooling(String),
    /// Division of vectors by their length.
    Normalize,
}

fn stages(path: &Path, modules: &Value) -> Result<Vec<Stage>, IngestError> {
    let expected = "a list of modules with `type` and `path`";
    let wrong = |value: &Value, expected| wrong_value(path, "type", value, expected);
    let list = modules.as_array().ok_or_else(|| wrong(modules, expected))?;
    let stage = |module: &Value| {
        let text = |key: &str| module.get(key).and_then(Value::as_str);
        let kind = text("type").ok_or_else(|| wrong(module, expected))?;
        match kind.rsplit('.').next() {
            Some("Transformer") => Ok(Stage::Transformer),
            Some("Normalize") => Ok(Stage::Normalize),
            Some("Pooling") => match text("path").filter(|folder| is_plain_folder(folder)) {
                Some(folder) => Ok(Stage::Pooling(folder.to_owned())),
                None => Err(wrong(module, "a `path` that is a folder of the model")),
            },
            _ => Err(wrong(module, "`Transformer`, `Pooling` or `Normalize`")),
        }
    };
    list.iter().map(stage).collect()
}

/// Whether a name is that of a folder right below the model's.
fn is_plain_folder(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', ':'])
}

/// The one mode of a pooling stage that is on.
fn pooling_of(path: &Path, config: &Value) -> Result<Pooling, IngestError> {
    let none = Map::new();
    let keys = config.as_object().unwrap_or(&none);
    let on = |(key, value): (&String, &Value)| {
        (key.starts_with(MODE) && *value == Value::Bool(true)).then(|| key.clone())
    };
    let modes: Vec<String> = keys.iter().filter_map(on).collect();
    let modes: Vec<&str> = modes.iter().map(|mode| &mode[MODE.len()..]).collect();
    match modes.as_slice() {
        ["mean_tokens"] => Ok(Pooling::Mean),
        ["cls_token"] => Ok(Pooling::First),
        ["lasttoken"] => Ok(Pooling::Last),
        _ => Err(wrong_value(
            path,
            "pooling_mode_*",
            config,
            "one mode that is true: `mean_tokens`, `cls_token` or `lasttoken`",
        )),
    }
}

/// Beginning of the keys of modes.
const MODE: &str = "pooling_mode_";

/// The list of stages.
const MODULES: &str = "modules.json";

/// Name of the pooling stage's file in the provenance of a bundle: its folder has no fixed name.
const POOLING: &str = "pooling config.json";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(modules: &str, pooling: &str) -> Result<Option<PooledVectors>, IngestError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(MODULES), modules).unwrap();
        std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
        std::fs::write(dir.path().join("1_Pooling/config.json"), pooling).unwrap();
        let read = PooledVectors::read(dir.path())?;
        Ok(read.map(|(pooled, _)| pooled))
    }

    /// The list of modules with these stages.
    fn modules(kinds: &[&str]) -> String {
        let one = |(at, kind): (usize, &&str)| {
            let path = if at == 0 {
                String::new()
            } else {
                format!("{at}_{kind}")
            };
            format!(
                r#"{{"idx": {at}, "path": "{path}", "type": "sentence_transformers.models.{kind}"}}"#
            )
        };
        let all: Vec<String> = kinds.iter().enumerate().map(one).collect();
        format!("[{}]", all.join(","))
    }

    #[test]
    fn stages_say_how_vectors_are_pooled() {
        let mean = r#"{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}"#;
        let all = modules(&["Transformer", "Pooling", "Normalize"]);
        let pooled = |pooling, length| Some(PooledVectors { pooling, length });
        let found = read(&all, mean).unwrap();
        assert_eq!(found, pooled(Pooling::Mean, VectorLength::Unit));
        let two = modules(&["Transformer", "Pooling"]);
        let first = r#"{"pooling_mode_cls_token": true}"#;
        let found = read(&two, first).unwrap();
        assert_eq!(found, pooled(Pooling::First, VectorLength::Pooled));
        let last = r#"{"pooling_mode_lasttoken": true}"#;
        let found = read(&two, last).unwrap();
        assert_eq!(found, pooled(Pooling::Last, VectorLength::Pooled));
        assert_eq!(read(&modules(&["Transformer"]), mean).unwrap(), None);
        let bare = tempfile::tempdir().unwrap();
        assert!(PooledVectors::read(bare.path()).unwrap().is_none());
    }

    #[test]
    fn unknown_stages_and_modes_are_refused() {
        let mean = r#"{"pooling_mode_mean_tokens": true}"#;
        let refused = |modules: &str, pooling: &str| {
            let said = read(modules, pooling).unwrap_err().to_string();
            said.split_once("key ").unwrap().1.to_owned()
        };
        let two = modules(&["Transformer", "Pooling"]);
        let said = [
            refused(&modules(&["Transformer", "Pooling", "Dense"]), mean),
            refused("{}", mean),
            refused(&two.replace("1_Pooling", "../x"), mean),
            refused(&two, r#"{"pooling_mode_max_tokens": true}"#),
            refused(&two, "{}"),
            refused(&two, "[]"),
            refused(
                &two,
                r#"{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}"#,
            ),
        ];
        insta::assert_snapshot!("refused_pooling", said.join("\n"));
    }
}
