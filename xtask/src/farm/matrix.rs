//! The matrix: the models, platforms and machines that somebody wrote down.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;

/// A matrix of what shall be compiled.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FarmMatrix {
    revision: u32,
    /// Folder of the store, and of the bundles beside it: one that all machines share, or each its own beside a bucket.
    pub(super) store: String,
    /// URL of the bucket in which the machines share their stores, if they share no folder.
    #[serde(default)]
    pub(super) shared: Option<String>,
    /// File with the farm's key, at the same place on each machine.
    #[serde(default)]
    pub(super) key: Option<String>,
    pub(super) models: Vec<FarmModel>,
    /// Machines with an NPU compiler, a label for each of its versions.
    #[serde(default)]
    pub(super) compilers: Vec<FarmCompiler>,
    /// Machines whose speed the bundles carry.
    #[serde(default)]
    pub(super) profiles: Vec<FarmProfile>,
    /// Registry and folder to send bundles to.
    #[serde(default)]
    pub(super) push: Option<String>,
    /// Tag of what is sent.
    #[serde(default = "latest")]
    pub(super) tag: String,
    /// Image of a container that has `heg` and `hegc`, for Kubernetes.
    #[serde(default)]
    pub(super) image: Option<String>,
}

/// A model to compile.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FarmModel {
    pub(super) name: String,
    /// File or folder that `hegc compile` takes, at the same place on each machine.
    pub(super) path: String,
    #[serde(default)]
    pub(super) weights: Option<String>,
    /// Memory of the jobs of this model, in gigabytes.
    pub(super) memory_gb: u32,
}

/// The machines with one version of the NPU compiler.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FarmCompiler {
    pub(super) label: String,
    /// Platforms that it compiles for.
    pub(super) platforms: Vec<u32>,
}

/// The machines of one kind, which are measured.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FarmProfile {
    pub(super) label: String,
    /// The SoC, as `heg profile --soc` takes it.
    pub(super) soc: String,
}

impl FarmMatrix {
    /// Reads a matrix, and refuses what would give jobs that overwrite each other or cannot be placed.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut options = ron::Options::default();
        options.recursion_limit = Some(RECURSION_MAX);
        let matrix: Self = options.from_str(text).context("it is not a matrix")?;
        let revision = matrix.revision;
        ensure!(revision == 1, "revision `{revision}`, expected `1`");
        ensure!(!matrix.models.is_empty(), "it has no models");
        distinct("model", matrix.models.iter().map(|model| &model.name))?;
        let compilers = matrix.compilers.iter().map(|it| &it.label);
        distinct("compiler", compilers)?;
        distinct("profile", matrix.profiles.iter().map(|it| &it.label))?;
        if matrix.shared.is_some() {
            ensure!(
                matrix.key.is_some(),
                "it has `shared` and no `key`: machines would take what anybody wrote into that bucket"
            );
            ensure!(
                matrix.profiles.is_empty(),
                "it has `shared` and `profiles`, whose files need a folder that all machines share"
            );
            ensure!(
                matrix.push.is_none() || matrix.compilers.len() <= 1,
                "it has `shared`, `push` and more than one compiler: bundles of one name are sent together, from a folder \
                 that all machines share"
            );
        }
        for compiler in &matrix.compilers {
            let label = &compiler.label;
            ensure!(
                !compiler.platforms.is_empty(),
                "the compiler `{label}` has no platforms"
            );
        }
        Ok(matrix)
    }
}

/// Refuses names that are equal, or that are not one as a label of a node and the name of a file.
fn distinct<'a>(kind: &str, names: impl Iterator<Item = &'a String>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let inner = |byte: u8| fits(byte) || matches!(byte, b'-' | b'.');
        let bytes = name.as_bytes();
        let is_label = bytes.first().is_some_and(|byte| fits(*byte))
            && bytes.last().is_some_and(|byte| fits(*byte))
            && bytes.iter().all(|byte| inner(*byte))
            && bytes.len() <= LABEL_BYTES_MAX;
        if !is_label {
            bail!(
                "the {kind} `{name}`: expected at most {LABEL_BYTES_MAX} of a-z, 0-9, `-` and `.`, with a letter or digit \
                 at both ends"
            );
        }
        ensure!(seen.insert(name), "the {kind} `{name}` is there twice");
    }
    Ok(())
}

fn latest() -> String {
    "latest".to_owned()
}

/// Longest label of a node in Kubernetes.
const LABEL_BYTES_MAX: usize = 63;

/// Deepest nesting of a matrix. Chosen.
const RECURSION_MAX: usize = 16;
