//! What can be wrong with a source folder: its weights, its configuration, its text assets.
//!
//! Variants hold data; the sentences are the `#[error]` attributes alone. Every mismatch shows both
//! sides. A checkpoint is foreign bytes, so each variant here is an answer to some file that a
//! download, a conversion script or an adversary can produce; none of them is a bug of the compiler.

use std::path::PathBuf;

use thiserror::Error;

use super::gguf::{GgufMistake, VocabularyMistake};

/// A source folder that cannot be compiled, and why.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IngestError {
    /// The operating system refused.
    #[error("`{}` cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A directory, a pipe or a device stands where a file should.
    #[error("`{}` is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// A text file beyond the bound for its kind; it was not read.
    #[error("`{}` is too large: found {found_bytes} bytes, at most {limit_bytes} are read", path.display())]
    TooLarge {
        path: PathBuf,
        found_bytes: u64,
        limit_bytes: u64,
    },
    /// Text that is not UTF-8.
    #[error("`{}` is not UTF-8 from byte {valid_bytes}", path.display())]
    NotUtf8 { path: PathBuf, valid_bytes: usize },

    /// A JSON file that does not parse, or whose outermost shape is wrong.
    #[error("`{}`, line {line}, column {column}: {message}", path.display())]
    Config {
        path: PathBuf,
        line: usize,
        column: usize,
        message: String,
    },
    /// A key that is there and holds something else than its meaning allows.
    #[error("`{}`, key `{key}`: found {found}, expected {expected}", path.display())]
    ConfigValue {
        path: PathBuf,
        key: String,
        found: String,
        expected: &'static str,
    },

    /// Neither a weight file nor an index.
    #[error("no weights in `{}`: expected `model.safetensors`, `model.safetensors.index.json` or one `*.safetensors` file", dir.display())]
    NoWeights { dir: PathBuf },
    /// Several weight files and nothing that says how they belong together.
    #[error("`{}` holds {} weight files ({}) and no `model.safetensors.index.json`", dir.display(), files.len(), some_of(files))]
    NoIndex { dir: PathBuf, files: Vec<String> },
    /// The index names a file that is not there.
    #[error("`{}` names shard `{shard}`, which is missing; it holds {} of the tensors: {}", index.display(), tensors.len(), some_of(tensors))]
    MissingShard {
        index: PathBuf,
        shard: String,
        tensors: Vec<String>,
    },
    /// The index points out of its own folder, or at something that is not a plain file name.
    #[error("`{}` names shard `{shard}`, expected a plain file name in the same folder", index.display())]
    ShardName { index: PathBuf, shard: String },
    /// The index promises a tensor that its shard does not hold.
    #[error("`{}` says that shard `{shard}` holds tensor `{tensor}`; it does not", index.display())]
    NotInShard {
        index: PathBuf,
        shard: String,
        tensor: String,
    },
    /// One name, two places.
    #[error("tensor `{tensor}` occurs twice: in `{}` and in `{}`", first.display(), second.display())]
    DuplicateTensor {
        tensor: String,
        first: PathBuf,
        second: PathBuf,
    },

    /// The file ends before what its header describes.
    #[error("`{}` is truncated: found {found_bytes} bytes, expected {expected_bytes}", path.display())]
    Truncated {
        path: PathBuf,
        expected_bytes: u64,
        found_bytes: u64,
    },
    /// The file goes on after what its header describes.
    #[error("`{}` has bytes that belong to no tensor at its end: found {found_bytes} bytes, expected {expected_bytes}", path.display())]
    Trailing {
        path: PathBuf,
        expected_bytes: u64,
        found_bytes: u64,
    },
    /// A text of three lines in the place of the file: the repository was cloned without Git LFS.
    #[error("`{}` is a Git LFS pointer, not the weights: fetch them with `git lfs pull`", path.display())]
    LfsPointer { path: PathBuf },
    /// The header is longer than any real one.
    #[error("header of `{}` is too long: found {found_bytes} bytes, at most {limit_bytes} are read", path.display())]
    HeaderTooLong {
        path: PathBuf,
        found_bytes: u64,
        limit_bytes: u64,
    },
    /// The header is not the JSON that the format asks for.
    #[error("header of `{}`: {message}", path.display())]
    Header { path: PathBuf, message: String },
    /// Two tensors claim the same bytes.
    #[error("tensors `{a}` and `{b}` overlap in `{}`", path.display())]
    Overlap { path: PathBuf, a: String, b: String },
    /// Bytes between two tensors that belong to neither.
    #[error("tensor `{tensor}` in `{}` leaves a hole before it: starts at {found_bytes}, expected {expected_bytes}", path.display())]
    Hole {
        path: PathBuf,
        tensor: String,
        expected_bytes: u64,
        found_bytes: u64,
    },
    /// A tensor whose end stands before its start.
    #[error("tensor `{tensor}` in `{}` ends before it starts: {start_bytes} to {end_bytes}", path.display())]
    Backwards {
        path: PathBuf,
        tensor: String,
        start_bytes: u64,
        end_bytes: u64,
    },
    /// The shape describes more bytes than can be addressed, or no whole number of them.
    #[error("tensor `{tensor}` in `{}` has shape {shape:?} of {dtype}, which is no possible number of bytes", path.display())]
    ShapeAbsurd {
        path: PathBuf,
        tensor: String,
        dtype: String,
        shape: Vec<usize>,
    },
    /// Shape and type disagree with the bytes given to the tensor.
    #[error("tensor `{tensor}` in `{}` has {found_bytes} bytes, expected {expected_bytes} from shape and type", path.display())]
    TensorBytes {
        path: PathBuf,
        tensor: String,
        expected_bytes: u64,
        found_bytes: u64,
    },

    /// A GGUF file that is not what its format asks for.
    #[error("`{}`, byte {byte}: {mistake}", path.display())]
    Gguf {
        path: PathBuf,
        byte: u64,
        mistake: GgufMistake,
    },
    /// A GGUF file whose vocabulary is no tokenizer.
    #[error("tokenizer of `{}`: {mistake}", path.display())]
    Vocabulary {
        path: PathBuf,
        mistake: VocabularyMistake,
    },
    /// A GGUF file in order, of something that is not compiled.
    #[error("`{}`: {mistake}", path.display())]
    GgufContent { path: PathBuf, mistake: GgufMistake },

    /// A tensor that would be left out of the model.
    #[error("tensor `{tensor}` in `{}` is not used by the architecture: without it, it would be another model", path.display())]
    UnusedTensor { path: PathBuf, tensor: String },
    /// No tensor of this name; the nearest that there is, when one is near.
    #[error("no tensor `{name}` in the weights{}", nearest.as_ref().map(|near| format!("; the nearest is `{near}`")).unwrap_or_default())]
    MissingTensor {
        name: String,
        nearest: Option<String>,
    },
    /// A tensor of a type that is not compiled.
    #[error("tensor `{tensor}` is of type {found}, expected {expected}")]
    DtypeUnsupported {
        tensor: String,
        found: String,
        expected: &'static str,
    },
    /// The architecture and the checkpoint disagree.
    #[error("tensor `{tensor}` has shape {found:?}, expected {expected:?}")]
    ShapeMismatch {
        tensor: String,
        found: Vec<usize>,
        expected: Vec<usize>,
    },
    /// A row range outside the tensor.
    #[error("rows {start}..{end} of tensor `{tensor}` do not exist: it has {rows}")]
    RowRange {
        tensor: String,
        start: usize,
        end: usize,
        rows: usize,
    },
}

/// The first names of a list, and how many more there are.
fn some_of(names: &[String]) -> String {
    let mut text = String::new();
    for (index, name) in names.iter().take(NAMES_SHOWN).enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        text.push('`');
        text.push_str(name);
        text.push('`');
    }
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// How many names a message lists before it counts. Chosen: one line of a terminal.
const NAMES_SHOWN: usize = 3;
