//! The model that all sides of a comparison run: found by name or in a folder, in the form for each side.

use crate::precision::Precision;
use crate::quality;
use anyhow::{Context, Result};
use heg_spec::{KvForm, WeightForm};
use std::fs;
use std::path::{Path, PathBuf};
use xtask::compile;
use xtask::fail::Fail;
use xtask::fetch::Consent;
use xtask::workspace::{self, Build, note, target_dir};
use xtask::{setup, synth};

/// Arguments of commands that measure `heg` on one bundle.
#[derive(clap::Args)]
pub(crate) struct MeasuredArgs {
    /// A model by name, or a Hugging Face folder
    #[arg(long, value_name = "MODEL", default_value = LLAMA_1B)]
    model: String,
    /// A compiled bundle, in place of a model
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    bundle: Option<PathBuf>,
    /// The binary to measure [default: heg of this checkout, built for release]
    #[arg(long, value_name = "PATH")]
    heg: Option<PathBuf>,
}

impl MeasuredArgs {
    /// The binary, which is built if none is given.
    pub(crate) fn heg(&self) -> Result<PathBuf> {
        match &self.heg {
            Some(heg) => Ok(heg.clone()),
            None => workspace::build_heg(Build::Release),
        }
    }

    /// The bundle, which is compiled with weights of 8 bits if none is given.
    pub(crate) fn bundle(&self) -> Result<PathBuf> {
        match &self.bundle {
            Some(bundle) => Ok(bundle.clone()),
            None => Subject::find(Some(&self.model))?.bundle(Precision::EIGHT_BITS),
        }
    }
}

/// A model.
pub(crate) struct Subject {
    /// The Hugging Face folder.
    pub(crate) folder: PathBuf,
    /// The GGUF file that the folder was converted from, if the model comes as one.
    pub(crate) gguf: Option<PathBuf>,
    pub(crate) name: String,
    /// Folder for its other forms and the other sides' programs.
    pub(crate) peers: PathBuf,
}

impl Subject {
    /// Finds the model named `model`, fetched or synthesised if necessary, or a Hugging Face folder; by default
    /// llama-3.2-1b's shape.
    pub(crate) fn find(model: Option<&str>) -> Result<Self> {
        let model = model.unwrap_or(LLAMA_1B);
        if let Some(real) = quality::Model::named(model) {
            let found = real.subject(Consent::Ask)?;
            return found.with_context(|| Fail::input(format!("{model} is not on this machine")));
        }
        if synth::is_known(model) {
            let shape = synth::Args {
                like: model.to_string(),
                output: None,
                seed: 0,
            };
            let folder = synth::ensure_model(&shape, &workspace::output())?;
            return Self::of_folder(&folder, None);
        }
        Self::of_folder(Path::new(model), None)
    }

    /// Makes a subject from a Hugging Face folder, which may have been converted from a GGUF file.
    pub(crate) fn of_folder(folder: &Path, gguf: Option<PathBuf>) -> Result<Self> {
        setup::ensure_openvino()?;
        let peers = target_dir().join("peers");
        fs::create_dir_all(&peers)
            .with_context(|| format!("cannot create `{}`", peers.display()))?;
        let shown = folder.display();
        let folder = folder
            .canonicalize()
            .map_err(anyhow::Error::new)
            .with_context(|| Fail::input(format!("no model at `{shown}`")).hint(NAMES))?;
        let name = folder.file_name().context("the model folder has no name")?;
        let name = name.to_string_lossy().into_owned();
        Ok(Self {
            folder,
            gguf,
            name,
            peers,
        })
    }

    /// Compiles the model into a bundle of this form, from its GGUF file if there is one.
    pub(crate) fn bundle(&self, precision: Precision) -> Result<PathBuf> {
        self.compiled(&precision.to_string(), precision.form(), precision.kv)
    }

    /// Like [`bundle`](Self::bundle), with weights in any form, which has a name.
    pub(crate) fn bundle_as(&self, form_name: &str, form: WeightForm) -> Result<PathBuf> {
        self.compiled(form_name, form, KvForm::Bf16)
    }

    fn compiled(&self, form_name: &str, weights: WeightForm, kv: KvForm) -> Result<PathBuf> {
        let source = self.gguf.as_ref().unwrap_or(&self.folder);
        let bundle = self.peers.join(format!("{}-{form_name}.heg", self.name));
        let mut options = compile::own_use();
        options.weights = Some(weights);
        options.kv = Some(kv);
        options.name = Some(self.name.clone());
        let done = compile::compile(source, &bundle, &workspace::output().store(), &options)
            .with_context(|| Fail::input(format!("cannot compile `{}`", source.display())))?;
        note(done);
        Ok(bundle)
    }
}

const NAMES: &str =
    "give a Hugging Face folder, or a name that `cargo xtask synth-model` or `fetch-model` knows";

/// The default model of `bench-peers` and `bench-serve`.
pub(crate) const LLAMA_1B: &str = "llama-3.2-1b";

pub(crate) const SMOLLM2: &str = "smollm2-135m-instruct";
