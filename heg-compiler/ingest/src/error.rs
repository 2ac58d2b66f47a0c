//! Errors in a source folder: its weights, its configuration, its text assets.
//!
//! Variants hold data; only the `#[error]` attributes have sentences. Every mismatch shows both sides. A checkpoint is
//! foreign bytes, so each variant here is the response to some file that a download, a conversion script or an
//! adversary can produce; none of them is a bug of the compiler.

use std::path::PathBuf;

use thiserror::Error;

use super::gguf::{GgufMistake, VocabularyMistake};

/// Reasons why a source folder cannot be compiled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IngestError {
    /// The operating system refused.
    #[error("`{}` cannot be read", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// A directory, a pipe or a device in place of a file.
    #[error("`{}` is not a regular file", path.display())]
    NotAFile {
        /// Path of the directory, pipe or device.
        path: PathBuf,
    },
    /// A text file that exceeds the bound for its kind; it was not read.
    #[error("`{}` is too large: found {found_bytes} bytes, at most {limit_bytes} are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The file's length, in bytes.
        found_bytes: u64,
        /// The most that is read of such a file, in bytes.
        limit_bytes: u64,
    },
    /// Text that is not UTF-8.
    #[error("`{}` is not UTF-8 from byte {valid_bytes}", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Position of the first invalid byte: the number of valid bytes before it.
        valid_bytes: usize,
    },

    /// A JSON file that does not parse, or whose outermost value has the wrong type.
    #[error("`{}`, line {line}, column {column}: {message}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The line of the mistake, from 1.
        line: usize,
        /// The column in that line, as the parser counts.
        column: usize,
        /// The reason, in words.
        message: String,
    },
    /// A key whose value is not valid for it.
    #[error("`{}`, key `{key}`: found {found}, expected {expected}", path.display())]
    ConfigValue {
        /// The file with the key.
        path: PathBuf,
        /// The key's name or path.
        key: String,
        /// The value that was found, or a description of it.
        found: String,
        /// A description of valid values.
        expected: &'static str,
    },

    /// Neither a weight file nor an index.
    #[error("no weights in `{}`: expected `model.safetensors`, `model.safetensors.index.json` or one `*.safetensors` file", dir.display())]
    NoWeights {
        /// The folder that was searched.
        dir: PathBuf,
    },
    /// Several weight files without an index.
    #[error("`{}` holds {} weight files ({}) and no `model.safetensors.index.json`", dir.display(), files.len(), some_of(files))]
    NoIndex {
        /// The folder.
        dir: PathBuf,
        /// Names of the weight files in it.
        files: Vec<String>,
    },
    /// The index names a file that does not exist.
    #[error("`{}` names shard `{shard}`, which is missing; it holds {} of the tensors: {}", index.display(), tensors.len(), some_of(tensors))]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// The shard's file name, as the index has it.
        shard: String,
        /// Names of the tensors that the index places in the shard.
        tensors: Vec<String>,
    },
    /// The index names a place outside its own folder, or something that is not a plain file name.
    #[error("`{}` names shard `{shard}`, expected a plain file name in the same folder", index.display())]
    ShardName {
        /// The index file.
        index: PathBuf,
        /// The invalid name, as the index has it.
        shard: String,
    },
    /// The index lists a tensor that its shard does not have.
    #[error("`{}` says that shard `{shard}` holds tensor `{tensor}`; it does not", index.display())]
    NotInShard {
        /// The index file.
        index: PathBuf,
        /// The shard's file name, as the index has it.
        shard: String,
        /// Name of the tensor that the shard does not have.
        tensor: String,
    },
    /// One tensor name in two places.
    #[error("tensor `{tensor}` occurs twice: in `{}` and in `{}`", first.display(), second.display())]
    DuplicateTensor {
        /// The name that occurs twice.
        tensor: String,
        /// The file with its first occurrence.
        first: PathBuf,
        /// The file with its second occurrence.
        second: PathBuf,
    },

    /// The file ends before the end of the described data.
    #[error("`{}` is truncated: found {found_bytes} bytes, expected {expected_bytes}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The least length that the file must have, in bytes.
        expected_bytes: u64,
        /// The file's actual length, in bytes.
        found_bytes: u64,
    },
    /// The file continues after the end of the described data.
    #[error("`{}` has bytes that belong to no tensor at its end: found {found_bytes} bytes, expected {expected_bytes}", path.display())]
    Trailing {
        /// The file.
        path: PathBuf,
        /// The file's length according to its header, in bytes.
        expected_bytes: u64,
        /// The file's actual length, in bytes.
        found_bytes: u64,
    },
    /// A text of three lines in place of the file: the repository was cloned without Git LFS.
    #[error("`{}` is a Git LFS pointer, not the weights: fetch them with `git lfs pull`", path.display())]
    LfsPointer {
        /// The file with the pointer.
        path: PathBuf,
    },
    /// The header is longer than any real one.
    #[error("header of `{}` is too long: found {found_bytes} bytes, at most {limit_bytes} are read", path.display())]
    HeaderTooLong {
        /// The file.
        path: PathBuf,
        /// The header's length according to the file, in bytes.
        found_bytes: u64,
        /// The most that is read of a header, in bytes.
        limit_bytes: u64,
    },
    /// The header is not JSON as the format requires.
    #[error("header of `{}`: {message}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The reason, in words.
        message: String,
    },
    /// Two tensors overlap.
    #[error("tensors `{a}` and `{b}` overlap in `{}`", path.display())]
    Overlap {
        /// The file.
        path: PathBuf,
        /// Name of the tensor that starts first.
        a: String,
        /// Name of the tensor that starts before the other's end.
        b: String,
    },
    /// Bytes between two tensors that belong to neither.
    #[error("tensor `{tensor}` in `{}` leaves a hole before it: starts at {found_bytes}, expected {expected_bytes}", path.display())]
    Hole {
        /// The file.
        path: PathBuf,
        /// Name of the tensor after the hole.
        tensor: String,
        /// The end of the tensor before it, in bytes from the start of the data.
        expected_bytes: u64,
        /// The tensor's start, in bytes from the start of the data.
        found_bytes: u64,
    },
    /// A tensor whose end is before its start.
    #[error("tensor `{tensor}` in `{}` ends before it starts: {start_bytes} to {end_bytes}", path.display())]
    Backwards {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The tensor's start, in bytes from the start of the data.
        start_bytes: u64,
        /// The tensor's end, in bytes from the start of the data.
        end_bytes: u64,
    },
    /// The shape describes more bytes than can be addressed, or a fractional number of them.
    #[error("tensor `{tensor}` in `{}` has shape {shape:?} of {dtype}, which is no possible number of bytes", path.display())]
    ShapeAbsurd {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The type of its elements.
        dtype: String,
        /// The tensor's shape: elements in each dimension.
        shape: Vec<usize>,
    },
    /// Shape and type contradict the tensor's number of bytes.
    #[error("tensor `{tensor}` in `{}` has {found_bytes} bytes, expected {expected_bytes} from shape and type", path.display())]
    TensorBytes {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The tensor's length according to its shape and type, in bytes.
        expected_bytes: u64,
        /// The tensor's actual length, in bytes.
        found_bytes: u64,
    },

    /// A GGUF file that violates its format.
    #[error("`{}`, byte {byte}: {mistake}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// The place of the violation, in bytes from the start of the file.
        byte: u64,
        /// The violation.
        mistake: GgufMistake,
    },
    /// A GGUF file whose vocabulary does not make a tokenizer.
    #[error("tokenizer of `{}`: {mistake}", path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// The reason why there is no tokenizer.
        mistake: VocabularyMistake,
    },
    /// A valid GGUF file with unsupported content.
    #[error("`{}`: {mistake}", path.display())]
    GgufContent {
        /// The file.
        path: PathBuf,
        /// The content that is not supported.
        mistake: GgufMistake,
    },

    /// A tensor that would be left out of the model.
    #[error("tensor `{tensor}` in `{}` is not used by the architecture: without it, it would be another model", path.display())]
    UnusedTensor {
        /// The file with the tensor.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
    },
    /// A missing tensor, with the most similar name, if one is similar.
    #[error("no tensor `{name}` in the weights{}", nearest.as_ref().map(|near| format!("; the nearest is `{near}`")).unwrap_or_default())]
    MissingTensor {
        /// Name of the missing tensor.
        name: String,
        /// The most similar name in the weights.
        nearest: Option<String>,
    },
    /// A tensor of an unsupported type.
    #[error("tensor `{tensor}` is of type {found}, expected {expected}")]
    DtypeUnsupported {
        /// The tensor's name.
        tensor: String,
        /// The type of its elements.
        found: String,
        /// The types that are supported.
        expected: &'static str,
    },
    /// The architecture and the checkpoint disagree.
    #[error("tensor `{tensor}` has shape {found:?}, expected {expected:?}")]
    ShapeMismatch {
        /// The tensor's name.
        tensor: String,
        /// The shape in the checkpoint.
        found: Vec<usize>,
        /// The shape that the architecture requires.
        expected: Vec<usize>,
    },
    /// A row range outside the tensor.
    #[error("rows {start}..{end} of tensor `{tensor}` do not exist: it has {rows}")]
    RowRange {
        /// The tensor's name.
        tensor: String,
        /// The first row of the range.
        start: usize,
        /// The end of the range: the row after its last one.
        end: usize,
        /// Number of rows in the tensor.
        rows: usize,
    },
}

/// The first names of a list, and the number of the others.
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

/// Number of names that a message lists before it counts. Chosen: one line of a terminal.
const NAMES_SHOWN: usize = 3;
