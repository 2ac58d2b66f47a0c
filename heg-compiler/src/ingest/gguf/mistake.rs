//! What can be wrong with the container of a GGUF file, each with its sentence.

use thiserror::Error;

use super::element_type::RowFormat;

/// A GGUF file that is not what the format asks for. [`IngestError::Gguf`](super::super::IngestError) adds the file
/// and the byte.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GgufMistake {
    /// Another format altogether.
    #[error("this is no GGUF file: it does not begin with `GGUF`")]
    Magic,
    /// A version that is not read.
    #[error("GGUF version {found}, expected 2 or 3")]
    Version { found: u32 },
    /// A file for machines of the other byte order.
    #[error(
        "the file is big-endian, expected little-endian: convert it with `gguf_convert_endian.py` of llama.cpp"
    )]
    BigEndian,
    /// The file ends within `what`.
    #[error("the file ends within {what}: {needed_bytes} bytes are needed, {left_bytes} are left")]
    Ends {
        what: &'static str,
        needed_bytes: u64,
        left_bytes: u64,
    },
    /// A count that no file of this length can hold.
    #[error("{found} {what} cannot be: the rest of the file has room for {room}")]
    Count {
        what: &'static str,
        found: u64,
        room: u64,
    },
    /// A count or length beyond what is read.
    #[error("{found} {what}, at most {limit} are read")]
    TooMany {
        what: &'static str,
        found: u64,
        limit: u64,
    },
    /// A name that is not UTF-8, or has control characters.
    #[error("{what} is not printable UTF-8")]
    Name { what: &'static str },
    /// One key, two values.
    #[error("key `{key}` occurs twice")]
    KeyTwice { key: String },
    /// A value of a type that the format does not know.
    #[error("key `{key}` has a value of type {found}, expected a type of 0 to 12")]
    ValueType { key: String, found: u32 },
    /// An array of arrays.
    #[error("key `{key}` is an array of arrays, which is not read")]
    Nested { key: String },
    /// A truth value that is neither.
    #[error("key `{key}` has the truth value {found}, expected 0 or 1")]
    Truth { key: String, found: u8 },
    /// One name, two tensors.
    #[error("tensor `{tensor}` occurs twice")]
    TensorTwice { tensor: String },
    /// No dimensions, or more than ggml has.
    #[error("tensor `{tensor}` has {found} dimensions, expected 1 to 4")]
    Dimensions { tensor: String, found: u32 },
    /// A type that is not decoded.
    #[error("tensor `{tensor}` is of type {found}, expected {expected}")]
    TensorType {
        tensor: String,
        found: String,
        expected: &'static str,
    },
    /// A shape that the type cannot have.
    #[error("tensor `{tensor}` has shape {shape:?} of {format}, {reason}")]
    Shape {
        tensor: String,
        shape: Vec<u64>,
        format: RowFormat,
        reason: &'static str,
    },
    /// A tensor that does not begin where tensors do.
    #[error("tensor `{tensor}` begins at {found} of the data, expected a multiple of {alignment}")]
    Offset {
        tensor: String,
        found: u64,
        alignment: u64,
    },
    /// A tensor that goes on behind the file.
    #[error(
        "the file is truncated: tensor `{tensor}` ends at byte {end}, the file at {file_bytes}"
    )]
    TensorEnds {
        tensor: String,
        end: u128,
        file_bytes: u64,
    },
    /// An architecture without a table of names.
    #[error("architecture `{found}` is not compiled, expected one of {expected}")]
    Architecture { found: String, expected: String },
    /// A tensor that the architecture does not have: leaving it out would give another model.
    #[error("tensor `{tensor}` is none of architecture `{architecture}`")]
    TensorUnknown {
        tensor: String,
        architecture: &'static str,
    },
    /// One of several files.
    #[error("the file is one of {count}: join them with `llama-gguf-split --merge`")]
    Split { count: u64 },
    /// An adapter, a projector, a vocabulary.
    #[error("the file holds `{found}`, expected a model")]
    NoModel { found: String },
    /// Rows that are not whole heads of pairs.
    #[error("tensor `{tensor}` has {rows} rows, expected pairs in each of {heads} heads")]
    Heads {
        tensor: String,
        rows: u64,
        heads: u64,
    },
}
