//! Copies of model folders, to be changed and broken by a test.
//!
//! The parts of a safetensors file are kept unchecked: the files that a test writes here are meant to be wrong.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Error};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// A test's own model folder.
#[derive(Debug, Clone)]
pub struct ModelFolder {
    path: PathBuf,
}

impl ModelFolder {
    /// Copies the files that a compile reads (no golden outputs, no evaluation) to the new folder `to`.
    pub fn copy(from: &Path, to: &Path) -> io::Result<Self> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let name = entry.file_name();
            let unread = ["golden.json", "eval.jsonl", "train_log.json"];
            if !unread.iter().any(|unread| name == *unread) {
                fs::copy(entry.path(), to.join(name))?;
            }
        }
        Ok(Self {
            path: to.to_owned(),
        })
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Changes `config.json`.
    pub fn change_config(&self, change: impl FnOnce(&mut Map<String, Value>)) -> io::Result<()> {
        let path = self.file("config.json");
        let mut config: Map<String, Value> = serde_json::from_slice(&fs::read(&path)?)?;
        change(&mut config);
        fs::write(path, serde_json::to_vec_pretty(&config)?)
    }

    /// Sets one key of `config.json`.
    pub fn set_config(&self, key: &str, value: Value) -> io::Result<()> {
        self.change_config(|config| {
            config.insert(key.to_owned(), value);
        })
    }

    /// Changes `model.safetensors`.
    pub fn change_weights(&self, change: impl FnOnce(&mut Safetensors)) -> io::Result<()> {
        let path = self.file(WEIGHTS);
        let mut weights = Safetensors::read(&path)?;
        change(&mut weights);
        weights.write(&path)
    }

    /// Changes the bytes of one tensor in place; nothing else in the file changes.
    pub fn change_tensor(&self, tensor: &str, change: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let path = self.file(WEIGHTS);
        let mut weights = Safetensors::read(&path)?;
        let bytes = weights.tensor(tensor)?.bytes;
        change(&mut weights.data[bytes]);
        weights.write(&path)
    }

    /// Cuts `model.safetensors` into two shards with an index: every second tensor goes to the second.
    pub fn shard(&self) -> io::Result<()> {
        let path = self.file(WEIGHTS);
        let weights = Safetensors::read(&path)?;
        let mut shards = [Safetensors::default(), Safetensors::default()];
        let mut weight_map = BTreeMap::new();
        for (index, name) in weights.names().enumerate() {
            let Tensor {
                dtype,
                shape,
                bytes,
            } = weights.tensor(&name)?;
            shards[index % 2].push(&name, &dtype, &shape, &weights.data[bytes]);
            weight_map.insert(name, SHARDS[index % 2]);
        }
        for (shard, name) in shards.iter().zip(SHARDS) {
            shard.write(&self.file(name))?;
        }
        let index = json!({"metadata": {}, "weight_map": weight_map});
        fs::write(self.file(INDEX), serde_json::to_vec(&index)?)?;
        fs::remove_file(path)
    }
}

/// The parts of a safetensors file.
#[derive(Debug, Clone, Default)]
pub struct Safetensors {
    /// The header: names, each with dtype, shape and offsets into the data.
    pub header: Map<String, Value>,
    /// The data after the header.
    pub data: Vec<u8>,
}

/// The header's description of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Type, such as `BF16`.
    pub dtype: String,
    /// Shape, row-major.
    pub shape: Vec<usize>,
    /// Range of the data.
    pub bytes: std::ops::Range<usize>,
}

impl Safetensors {
    /// Reads a whole and valid file.
    pub fn read(path: &Path) -> io::Result<Self> {
        let file = fs::read(path)?;
        let (length, rest) = file
            .split_first_chunk::<8>()
            .ok_or_else(|| Error::other("no length"))?;
        let (header, data) = rest
            .split_at_checked(u64::from_le_bytes(*length) as usize)
            .ok_or_else(|| Error::other("no header"))?;
        Ok(Self {
            header: serde_json::from_slice(header)?,
            data: data.to_vec(),
        })
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let header = serde_json::to_vec(&self.header)?;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(&header);
        file.extend_from_slice(&self.data);
        fs::write(path, file)
    }

    /// Names of the tensors, in the order of the header.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let names = self.header.keys().filter(|name| *name != "__metadata__");
        names.cloned()
    }

    /// Returns the header's description of a tensor.
    pub fn tensor(&self, name: &str) -> io::Result<Tensor> {
        let entry = self.header.get(name);
        let entry = entry.ok_or_else(|| Error::other(format!("no tensor `{name}`")))?;
        let shape: Vec<usize> = serde_json::from_value(entry["shape"].clone())?;
        let [start, end]: [usize; 2] = serde_json::from_value(entry["data_offsets"].clone())?;
        let dtype = entry["dtype"].as_str().unwrap_or_default().to_owned();
        Ok(Tensor {
            dtype,
            shape,
            bytes: start..end,
        })
    }

    /// Appends a tensor.
    pub fn push(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) {
        let start = self.data.len();
        self.data.extend_from_slice(bytes);
        let offsets = [start, self.data.len()];
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        self.header.insert(name.to_owned(), entry);
    }

    /// Changes an entry of a tensor's description; the data stays.
    pub fn say(&mut self, tensor: &str, key: &str, value: Value) {
        if let Some(entry) = self.header.get_mut(tensor) {
            entry[key] = value;
        }
    }

    /// Renames a tensor.
    pub fn rename(&mut self, from: &str, to: &str) {
        if let Some(entry) = self.header.remove(from) {
            self.header.insert(to.to_owned(), entry);
        }
    }
}

/// The weights file of a model that is not sharded.
pub const WEIGHTS: &str = "model.safetensors";

/// The index of a sharded model.
pub const INDEX: &str = "model.safetensors.index.json";

/// The files that [`ModelFolder::shard`] makes.
pub const SHARDS: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];
