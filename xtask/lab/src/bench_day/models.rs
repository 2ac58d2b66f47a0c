//! The four models of a day in the form of each system: a model to talk to, a small one for digests, one for vectors, and one
//! that scores documents.

use crate::llama_cpp::LlamaCpp;
use crate::precision::Precision;
use crate::subject::Subject;
use anyhow::{Context, Result};
use heg_spec::Seeded;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::fail::Fail;
use xtask::fetch::{self, Consent};
use xtask::workspace::{self, Build, note, target_dir};

/// The models, as they were published or made.
pub(crate) struct Models {
    pub(crate) chat: Subject,
    pub(crate) digest: Subject,
    pub(crate) embed: Subject,
    pub(crate) rerank: Subject,
}

/// A compiled bundle, and the name of its model.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
}

impl Bundle {
    /// Compiles a model at a precision, once.
    pub(crate) fn of(subject: &Subject, precision: Precision) -> Result<Self> {
        note(format!("compiling {} for HEG", subject.name));
        Ok(Self {
            path: subject.bundle(precision)?,
            name: subject.name.clone(),
        })
    }
}

/// The command that serves bundles, each under an alias. A port is all that it still needs.
pub(crate) fn serve(heg: &Path, named: &[(&str, &Bundle)]) -> Command {
    let mut command = workspace::heg(heg);
    command.arg("serve");
    for (_, bundle) in named {
        command.arg(&bundle.path);
    }
    for (alias, bundle) in named {
        command.args(["--alias", &format!("{alias}={}", bundle.name)]);
    }
    command
}

/// `heg` and its bundles.
#[derive(Debug)]
pub(crate) struct HegModels {
    pub(crate) heg: PathBuf,
    pub(crate) chat: Bundle,
    pub(crate) digest: Bundle,
    pub(crate) embed: Bundle,
    pub(crate) rerank: Bundle,
}

/// llama-server and its models.
#[derive(Debug)]
pub(crate) struct LlamaModels {
    pub(crate) server: PathBuf,
    pub(crate) chat: PathBuf,
    pub(crate) digest: PathBuf,
    pub(crate) embed: PathBuf,
    pub(crate) rerank: PathBuf,
}

impl Models {
    /// Finds the models, or fetches and makes them.
    pub(crate) fn find(chat: &str, digest: &str) -> Result<Self> {
        let embed = Self::embedder()?;
        Ok(Self {
            chat: Subject::find(Some(chat))?,
            digest: Subject::find(Some(digest))?,
            rerank: Self::reranker(&embed)?,
            embed,
        })
    }

    /// Finds the model for vectors, or fetches it.
    pub(crate) fn embedder() -> Result<Subject> {
        let fetched = fetch::ensure(EMBEDDER, Consent::Ask, &workspace::output())?;
        Ok(Subject {
            name: EMBEDDER.to_owned(),
            ..Subject::of_folder(&fetched, None)?
        })
    }

    /// Makes the model that scores documents, once.
    pub(crate) fn reranker(embedder: &Subject) -> Result<Subject> {
        let folder = target_dir().join("peers").join("folders").join(RERANKER);
        make_reranker(&embedder.folder, &folder).context("cannot make a reranker")?;
        Subject::of_folder(&folder, None)
    }

    /// `heg` is the program to measure, if it is not the checkout's. Encoders keep nothing, whatever the precision says of it.
    pub(crate) fn of_heg(&self, heg: Option<&Path>, precision: Precision) -> Result<HegModels> {
        Ok(HegModels {
            heg: heg_program(heg)?,
            chat: Bundle::of(&self.chat, precision)?,
            digest: Bundle::of(&self.digest, precision)?,
            embed: Bundle::of(&self.embed, Precision::EIGHT_BITS)?,
            rerank: Bundle::of(&self.rerank, Precision::EIGHT_BITS)?,
        })
    }

    pub(crate) fn of_llama(&self) -> Result<LlamaModels> {
        let llama = LlamaCpp::open(&self.chat)?;
        let server = "llama-server";
        Ok(LlamaModels {
            server: llama.programs(&[server])?.join(server),
            chat: llama.model(&self.chat, Precision::EIGHT_BITS)?,
            digest: llama.model(&self.digest, Precision::EIGHT_BITS)?,
            embed: llama.encoder(&self.embed)?,
            rerank: llama.encoder(&self.rerank)?,
        })
    }
}

/// The program to measure: this one, or the checkout's, built for release.
pub(crate) fn heg_program(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(heg) => Ok(heg.to_path_buf()),
        None => workspace::build_heg(Build::Release),
    }
}

/// Makes a cross-encoder of the embedder's size: its layers, under a head of random weights. It costs what a real one of
/// that size costs, and its scores mean nothing.
fn make_reranker(embedder: &Path, folder: &Path) -> Result<()> {
    if folder.join(CONFIG).is_file() {
        return Ok(());
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
        "special_tokens_map.json",
    ] {
        let from = embedder.join(name);
        if from.is_file() {
            fs::copy(&from, folder.join(name))
                .with_context(|| format!("cannot copy `{}`", from.display()))?;
        }
    }
    let mut config: Value = serde_json::from_slice(&read(&embedder.join(CONFIG))?)?;
    let hidden = config["hidden_size"].as_u64().context("no hidden_size")? as usize;
    let bytes = read(&embedder.join(WEIGHTS))?;
    let mut seeded = Seeded::new(0);
    let mut random = |count: usize| -> Vec<u8> {
        let values = (0..count).map(|_| (seeded.unit() - 0.5) as f32);
        values.flat_map(f32::to_le_bytes).collect()
    };
    let (head, bias) = (random(hidden), random(1));
    let body = SafeTensors::deserialize(&bytes)?;
    let body = body
        .iter()
        .map(|(name, tensor)| (format!("bert.{name}"), tensor));
    let head = [
        ("classifier.weight", vec![1, hidden], &head),
        ("classifier.bias", vec![1], &bias),
    ];
    let head = head.map(|(name, shape, bytes)| {
        TensorView::new(Dtype::F32, shape, bytes).map(|tensor| (name.to_owned(), tensor))
    });
    let head = head.into_iter().collect::<Result<Vec<_>, _>>()?;
    serialize_to_file(body.chain(head), None, &folder.join(WEIGHTS))?;
    config["architectures"] = json!(["BertForSequenceClassification"]);
    config["id2label"] = json!({"0": "LABEL_0"});
    config["label2id"] = json!({"LABEL_0": 0});
    // Last: it says that all is there.
    let file = folder.join(CONFIG);
    fs::write(&file, config.to_string())
        .with_context(|| format!("cannot write `{}`", file.display()))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| Fail::input(format!("cannot read `{}`", file.display())))
}

const EMBEDDER: &str = "all-minilm-l6-v2";
const RERANKER: &str = "reranker-l6";
const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
