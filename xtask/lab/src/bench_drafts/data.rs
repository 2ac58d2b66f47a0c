//! Prompts and answers as token ids.

use crate::shared;
use anyhow::{Context, Result};
use heg_draft::Likely;
use heg_runtime::Loaded;
use heg_text::{Special, Tokenizer};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xtask::fail::Fail;
use xtask::workspace::{note, root};

/// A prompt and its answer.
pub(super) struct Exchange {
    pub(super) prompt: Vec<u32>,
    pub(super) answer: Vec<u32>,
    /// The part of the data set that it belongs to.
    pub(super) part: Option<String>,
    /// The tokens that a model finds likely after each token of the prompt, if a model was given.
    pub(super) likely: Option<Arc<[Likely]>>,
}

/// Exchanges in the order of their file.
pub(super) struct DataSet {
    pub(super) name: String,
    pub(super) exchanges: Vec<Exchange>,
}

#[derive(Deserialize)]
struct Line {
    prompt: String,
    #[serde(default, alias = "reference")]
    answer: Option<String>,
    #[serde(default)]
    task: Option<String>,
}

/// The part of a model folder's generation config that is read.
#[derive(Deserialize)]
struct Generation {
    eos_token_id: EndTokens,
}

/// Tokens that end an answer.
#[derive(Deserialize)]
#[serde(untagged)]
enum EndTokens {
    One(u32),
    /// Several tokens, the usual one first.
    Several(Vec<u32>),
}

impl DataSet {
    /// Reads a file of JSON lines, skipping lines without an answer.
    pub(super) fn read(path: &Path, tokenizers: &mut Tokenizers) -> Result<Self> {
        let shown = path.display();
        let refuse = || Fail::input(format!("cannot use `{shown}`"));
        let text = fs::read_to_string(path).with_context(refuse)?;
        let beside = path.with_file_name("tokenizer.json");
        let own = beside.is_file();
        // A model's questions are named after the model.
        let named = match own {
            true => path.parent().and_then(Path::file_name),
            false => path.file_stem(),
        };
        let name = named.context("the file has no name")?.to_string_lossy();
        let tokenizer = match own {
            true => tokenizers.get(&beside)?,
            false => tokenizers.default()?,
        };
        let end = match own {
            true => end_token(path)?,
            false => None,
        };
        let encode = |text: &str| {
            tokenizer
                .encode(text, Special::AsWritten)
                .with_context(refuse)
        };
        let mut exchanges = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line: Line = serde_json::from_str(line).with_context(|| {
                Fail::input(format!("cannot read line {} of `{shown}`", index + 1))
            })?;
            if let Some(answer) = line.answer.filter(|answer| !answer.is_empty()) {
                let mut answer = encode(&answer)?;
                answer.extend(end);
                exchanges.push(Exchange {
                    prompt: encode(&line.prompt)?,
                    answer,
                    part: line.task,
                    likely: None,
                });
            }
        }
        Ok(Self {
            name: name.into_owned(),
            exchanges,
        })
    }
}

/// The token that ends answers of the model in whose folder the file is, if the folder says.
fn end_token(file: &Path) -> Result<Option<u32>> {
    let path = file.with_file_name("generation_config.json");
    let Ok(text) = fs::read_to_string(&path) else {
        return Ok(None);
    };
    let refuse = || Fail::input(format!("cannot use `{}`", path.display()));
    let said: Generation = serde_json::from_str(&text).with_context(refuse)?;
    Ok(match said.eos_token_id {
        EndTokens::One(token) => Some(token),
        EndTokens::Several(tokens) => tokens.first().copied(),
    })
}

/// The files that are measured by default: tiny-agent's questions, and the data beside the checkout.
pub(super) fn default_files() -> Vec<PathBuf> {
    let mut files = vec![root().join("tests/fixtures/tiny-agent/eval.jsonl")];
    let larger = shared::folder("models/agent-30m").map(|model| model.join("eval.jsonl"));
    files.extend(larger.filter(|file| file.is_file()));
    let workloads = shared::folder("workloads").and_then(|folder| fs::read_dir(folder).ok());
    if workloads.is_none() {
        note(
            "only tiny-agent's questions: the project's data sets are not on this machine (name files with --data)",
        );
    }
    let entries = workloads.into_iter().flatten().flatten();
    let mut workloads: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    workloads.retain(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
    workloads.sort();
    files.extend(workloads);
    files
}

/// Tokenizers, each read once.
pub(super) struct Tokenizers {
    default: PathBuf,
    read: BTreeMap<PathBuf, Tokenizer>,
}

impl Tokenizers {
    /// Makes a cache with a default for files without a tokenizer beside them; it is read on first use.
    pub(super) fn new(default: PathBuf) -> Self {
        Self {
            default,
            read: BTreeMap::new(),
        }
    }

    /// Name of the default tokenizer.
    pub(super) fn default_name(&self) -> String {
        let name = self.default.file_stem().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    fn default(&mut self) -> Result<&Tokenizer> {
        let path = self.default.clone();
        self.get(&path)
    }

    fn get(&mut self, path: &Path) -> Result<&Tokenizer> {
        let read = match self.read.remove(path) {
            Some(read) => read,
            None => tokenizer(path)?,
        };
        Ok(self.read.entry(path.to_owned()).or_insert(read))
    }
}

fn tokenizer(path: &Path) -> Result<Tokenizer> {
    let shown = path.display();
    let refuse = || {
        let fail = Fail::input(format!("cannot read a tokenizer from `{shown}`"));
        fail.hint("name a bundle or a tokenizer.json with --tokenizer; `cargo xtask demo` makes SmolLM2's bundle")
    };
    if path.extension().is_some_and(|ending| ending == "heg") {
        let bundle = Loaded::open(path).with_context(refuse)?;
        return bundle.tokenizer().with_context(refuse);
    }
    let bytes = fs::read(path).with_context(refuse)?;
    Tokenizer::from_json(&bytes).with_context(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_without_an_answer_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("eval.jsonl");
        let lines = [
            r#"{"prompt":"ab","answer":"b","task":"one"}"#,
            r#"{"prompt":"ab","reference":"ab","class":"reactive"}"#,
            r#"{"prompt":"ab","reference":null}"#,
        ];
        fs::write(&file, lines.join("\n")).unwrap();
        let tokenizer = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,
            "post_processor":null,"decoder":null,"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}}"#;
        fs::write(folder.path().join("tokenizer.json"), tokenizer).unwrap();
        let end = r#"{"eos_token_id":[7,8]}"#;
        fs::write(folder.path().join("generation_config.json"), end).unwrap();
        let mut tokenizers = Tokenizers::new(PathBuf::from("none.heg"));
        let data = DataSet::read(&file, &mut tokenizers).unwrap();
        let read: Vec<(&[u32], &[u32], Option<&str>)> = data
            .exchanges
            .iter()
            .map(|it| (&*it.prompt, &*it.answer, it.part.as_deref()))
            .collect();
        let expected: [(&[u32], &[u32], Option<&str>); 2] =
            [(&[0, 1], &[1, 7], Some("one")), (&[0, 1], &[0, 1, 7], None)];
        assert_eq!(read, expected);
        fs::write(&file, "{}").unwrap();
        let error = DataSet::read(&file, &mut tokenizers).err().unwrap();
        assert!(error.to_string().starts_with("cannot read line 1 of "));
    }
}
