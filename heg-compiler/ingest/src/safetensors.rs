//! A checkpoint (one safetensors file, several with an index, or a GGUF file) as one set of named tensors.
//!
//! Files are mapped, headers are checked completely before the first tensor is handed out (`header.rs`), and the index
//! is only trusted where the shards agree with it. The choice of files follows transformers: `model.safetensors`, then
//! `model.safetensors.index.json`, then a lone `*.safetensors`. Opening costs O(headers); the bytes of tensors are
//! neither read nor checked here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use heg_artifacts::Mapping;

use super::bounded;
use super::error::IngestError;
use super::gguf::GgufEntry;
use super::header::{TensorEntry, check_header};
use super::tensor::SourceTensor;

/// The tensors of a source folder.
///
/// Invariants: every name is in exactly one shard; every entry is inside its shard's bytes.
#[derive(Debug)]
pub struct Checkpoint {
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Located>,
}

impl Checkpoint {
    /// Maps the weights of a folder and checks all headers. The files must not be changed while the checkpoint lives:
    /// they are mapped.
    pub fn open(dir: &Path) -> Result<Self, IngestError> {
        let single = dir.join(SINGLE_NAME);
        if single.exists() {
            return Self::open_file(&single);
        }
        let index = dir.join(INDEX_NAME);
        if index.exists() {
            return Self::open_index(dir, &index);
        }
        let mut files = weight_files(dir)?;
        match (files.pop(), files.is_empty()) {
            (None, _) => Err(IngestError::NoWeights {
                dir: dir.to_owned(),
            }),
            (Some(lone), true) => Self::open_file(&dir.join(lone)),
            (Some(last), false) => {
                files.push(last);
                Err(IngestError::NoIndex {
                    dir: dir.to_owned(),
                    files,
                })
            }
        }
    }

    /// Makes a checkpoint from one file in memory, with the same checks as for a mapped one.
    pub fn from_bytes(name: &str, content: Vec<u8>) -> Result<Self, IngestError> {
        let mut checkpoint = Self::empty();
        let path = PathBuf::from(name);
        let mapping = Mapping::of_bytes(&content).map_err(|error| unreadable(&path, error))?;
        checkpoint.add(path, mapping)?;
        Ok(checkpoint)
    }

    /// Makes a checkpoint from the tensors of a checked GGUF file.
    pub(super) fn of_gguf(
        path: PathBuf,
        mapping: Mapping,
        entries: BTreeMap<String, GgufEntry>,
    ) -> Self {
        let located = |entry| Located {
            shard: 0,
            entry: Entry::Gguf(entry),
        };
        let tensors = entries.into_iter();
        Self {
            shards: vec![Shard { path, mapping }],
            tensors: tensors
                .map(|(name, entry)| (name, located(entry)))
                .collect(),
        }
    }

    /// The tensor of this name. An error if there is none, with the nearest name, or if its type is not supported.
    pub fn tensor(&self, name: &str) -> Result<SourceTensor<'_>, IngestError> {
        let missing = || IngestError::MissingTensor {
            name: name.to_owned(),
            nearest: self.nearest(name).map(str::to_owned),
        };
        let (name, located) = self.tensors.get_key_value(name).ok_or_else(missing)?;
        let shard = self.shards.get(located.shard).ok_or_else(missing)?;
        match &located.entry {
            Entry::Safetensors(entry) => SourceTensor::from_entry(name, entry, &shard.mapping),
            Entry::Gguf(entry) => entry.tensor(name, &shard.mapping),
        }
    }

    /// Whether there is a tensor of this name, of any type.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Fails if a GGUF file has a tensor that is not `used`: such a file has exactly what its architecture needs, so
    /// that an additional tensor means another model. A folder may have additional ones.
    pub fn check_used<'n>(&self, used: impl Iterator<Item = &'n str>) -> Result<(), IngestError> {
        let used: BTreeSet<&str> = used.collect();
        let unused = |(name, located): &(&String, &Located)| {
            matches!(located.entry, Entry::Gguf(_)) && !used.contains(name.as_str())
        };
        match self.tensors.iter().find(unused) {
            None => Ok(()),
            Some((tensor, _)) => Err(IngestError::UnusedTensor {
                path: self.files().next().unwrap_or(Path::new("")).to_owned(),
                tensor: tensor.clone(),
            }),
        }
    }

    /// Bytes of all tensors together, of any type.
    pub fn tensor_bytes(&self) -> u64 {
        let bytes = self.tensors.values().map(|located| match &located.entry {
            Entry::Safetensors(entry) => entry.bytes.len() as u64,
            Entry::Gguf(entry) => entry.bytes.len() as u64,
        });
        bytes.sum()
    }

    /// The weight files, in the order of their names.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// Gives back all source pages. Called after the last tensor was read.
    pub fn advise_done(&self) {
        for shard in &self.shards {
            // Only advice: if it is refused, pages stay.
            let _ = shard.mapping.give_back(0..shard.mapping.len() as u64);
        }
    }

    fn empty() -> Self {
        Self {
            shards: Vec::new(),
            tensors: BTreeMap::new(),
        }
    }

    fn open_file(path: &Path) -> Result<Self, IngestError> {
        let mut checkpoint = Self::empty();
        checkpoint.add(path.to_owned(), map_file(path)?)?;
        Ok(checkpoint)
    }

    fn open_index(dir: &Path, index: &Path) -> Result<Self, IngestError> {
        let promised = read_index(index)?;
        let mut checkpoint = Self::empty();
        for (shard, tensors) in &promised {
            let path = dir.join(shard);
            if !path.exists() {
                return Err(IngestError::MissingShard {
                    index: index.to_owned(),
                    shard: shard.clone(),
                    tensors: tensors.iter().cloned().collect(),
                });
            }
            let held = checkpoint.add(path.clone(), map_file(&path)?)?;
            let absent = |tensor: &&String| {
                let located = checkpoint.tensors.get(*tensor);
                located.is_none_or(|located| located.shard != held)
            };
            if let Some(tensor) = tensors.iter().find(absent) {
                return Err(IngestError::NotInShard {
                    index: index.to_owned(),
                    shard: shard.clone(),
                    tensor: tensor.clone(),
                });
            }
        }
        Ok(checkpoint)
    }

    /// Checks a file and adds its tensors; returns the number of the shard. Tensors that the index does not list are
    /// added too, as in transformers.
    fn add(&mut self, path: PathBuf, mapping: Mapping) -> Result<usize, IngestError> {
        let shard = self.shards.len();
        for (tensor, entry) in check_header(&path, &mapping)? {
            if let Some(first) = self.tensors.get(&tensor) {
                let first = self.shards.get(first.shard);
                return Err(IngestError::DuplicateTensor {
                    tensor,
                    first: first.map_or_else(|| path.clone(), |shard| shard.path.clone()),
                    second: path,
                });
            }
            let entry = Entry::Safetensors(entry);
            self.tensors.insert(tensor, Located { shard, entry });
        }
        self.shards.push(Shard { path, mapping });
        Ok(shard)
    }

    /// The name that was probably meant: one that ends in `name` (a prefix was added), or the most similar.
    fn nearest(&self, name: &str) -> Option<&str> {
        if name.len() > NEAREST_NAME_BYTES_MAX {
            return None;
        }
        let near = || {
            self.names()
                .filter(|other| other.len() <= NEAREST_NAME_BYTES_MAX)
                .take(NEAREST_NAMES_MAX)
        };
        let alike = || {
            near()
                .map(|other| (strsim::normalized_levenshtein(name, other), other))
                .filter(|(likeness, _)| *likeness >= NEAREST_LIKENESS_MIN)
                .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)))
                .map(|(_, other)| other)
        };
        near()
            .find(|other| !name.is_empty() && other.ends_with(name))
            .or_else(alike)
    }
}

/// One file of a checkpoint.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    mapping: Mapping,
}

/// The place of a tensor.
#[derive(Debug)]
struct Located {
    shard: usize,
    entry: Entry,
}

/// A tensor's description, according to its file's format.
#[derive(Debug)]
enum Entry {
    Safetensors(TensorEntry),
    Gguf(GgufEntry),
}

/// The part of the index that is read. `metadata` is ignored: its total is only informative.
#[derive(Deserialize)]
struct RawIndex {
    weight_map: BTreeMap<String, String>,
}

/// Reads the shards in order, each with the tensors that it should have.
fn read_index(index: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, IngestError> {
    let content = bounded::read(index, INDEX_BYTES_MAX)?;
    let raw: RawIndex =
        serde_json::from_slice(&content).map_err(|error| bounded::json_error(index, &error))?;
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, shard) in raw.weight_map {
        if !is_plain_name(&shard) {
            return Err(IngestError::ShardName {
                index: index.to_owned(),
                shard,
            });
        }
        shards.entry(shard).or_default().insert(tensor);
    }
    if shards.is_empty() {
        return Err(IngestError::ConfigValue {
            path: index.to_owned(),
            key: "weight_map".to_owned(),
            found: "no tensors".to_owned(),
            expected: "tensor names with their files",
        });
    }
    Ok(shards)
}

/// Whether this names a file in the same folder, on any system.
fn is_plain_name(shard: &str) -> bool {
    let mut components = Path::new(shard).components();
    let one = matches!(components.next(), Some(Component::Normal(_)));
    let hostile = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':');
    one && components.next().is_none() && !shard.contains(hostile)
}

/// Names of the `*.safetensors` files of a folder, in order.
fn weight_files(dir: &Path) -> Result<Vec<String>, IngestError> {
    let read = |source| IngestError::Read {
        path: dir.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(read)? {
        let name = entry.map_err(read)?.file_name();
        if let Some(name) = name.to_str().filter(|name| name.ends_with(EXTENSION)) {
            files.push(name.to_owned());
        }
    }
    files.sort();
    Ok(files)
}

pub(super) fn map_file(path: &Path) -> Result<Mapping, IngestError> {
    // Gives the error for a path that is not a file; the mapping then opens it again.
    bounded::open(path)?;
    let mapping = Mapping::open(path).map_err(|error| unreadable(path, error))?;
    mapping.will_read_in_order();
    Ok(mapping)
}

pub(super) fn unreadable(path: &Path, error: heg_artifacts::Error) -> IngestError {
    IngestError::Read {
        path: path.to_owned(),
        source: match error {
            heg_artifacts::Error::Io { source, .. } => source,
            other => std::io::Error::other(other),
        },
    }
}

const SINGLE_NAME: &str = "model.safetensors";
const INDEX_NAME: &str = "model.safetensors.index.json";
const EXTENSION: &str = ".safetensors";

/// Longest index. A tensor takes about 90 bytes of it. Chosen, as for the header.
const INDEX_BYTES_MAX: u64 = 32 << 20;

/// Bounds of the search for a similar name: its cost per name is the product of two lengths. Chosen: below a second at
/// the bounds.
const NEAREST_NAME_BYTES_MAX: usize = 160;
const NEAREST_NAMES_MAX: usize = 20_000;

/// Share of letters that two similar names have in common. Chosen.
const NEAREST_LIKENESS_MIN: f64 = 0.6;
