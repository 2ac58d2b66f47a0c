//! Errors in the container of a GGUF file, each with its message.

use thiserror::Error;

use super::element_type::RowFormat;

/// A violation of the GGUF format. [`IngestError::Gguf`](super::super::IngestError) adds the file and the byte.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GgufMistake {
    /// A file of another format.
    #[error("this is no GGUF file: it does not begin with `GGUF`")]
    Magic,
    /// An unsupported version.
    #[error("GGUF version {found}, expected 2 or 3")]
    Version {
        /// The version that the header states.
        found: u32,
    },
    /// A big-endian file.
    #[error(
        "the file is big-endian, expected little-endian: convert it with `gguf_convert_endian.py` of llama.cpp"
    )]
    BigEndian,
    /// The file ends within `what`.
    #[error("the file ends within {what}: {needed_bytes} bytes are needed, {left_bytes} are left")]
    Ends {
        /// The part of the file that is cut off, for the message.
        what: &'static str,
        /// Bytes that this part needs.
        needed_bytes: u64,
        /// Bytes from there to the end of the file.
        left_bytes: u64,
    },
    /// A count that does not fit a file of this length.
    #[error("{found} {what} cannot be: the rest of the file has room for {room}")]
    Count {
        /// The counted things, for the message.
        what: &'static str,
        /// The count that the file states.
        found: u64,
        /// The largest count that the rest of the file has room for.
        room: u64,
    },
    /// A count or length beyond its bound.
    #[error("{found} {what}, at most {limit} are read")]
    TooMany {
        /// The counted things, for the message.
        what: &'static str,
        /// The count that the file states.
        found: u64,
        /// The largest count that is read.
        limit: u64,
    },
    /// A name that is not UTF-8, or has control characters.
    #[error("{what} is not printable UTF-8")]
    Name {
        /// The kind of name, for the message.
        what: &'static str,
    },
    /// A key that occurs twice.
    #[error("key `{key}` occurs twice")]
    KeyTwice {
        /// The key's name.
        key: String,
    },
    /// A value of a type that the format does not define.
    #[error("key `{key}` has a value of type {found}, expected a type of 0 to 12")]
    ValueType {
        /// The key's name.
        key: String,
        /// The number of the type.
        found: u32,
    },
    /// An array of arrays.
    #[error("key `{key}` is an array of arrays, which is not read")]
    Nested {
        /// The key's name.
        key: String,
    },
    /// A bool that is neither 0 nor 1.
    #[error("key `{key}` has the truth value {found}, expected 0 or 1")]
    Truth {
        /// The key's name.
        key: String,
        /// The byte in place of the bool.
        found: u8,
    },
    /// A tensor that occurs twice.
    #[error("tensor `{tensor}` occurs twice")]
    TensorTwice {
        /// The tensor's name.
        tensor: String,
    },
    /// No dimensions, or more than ggml supports.
    #[error("tensor `{tensor}` has {found} dimensions, expected 1 to 4")]
    Dimensions {
        /// The tensor's name.
        tensor: String,
        /// Number of its dimensions.
        found: u32,
    },
    /// An unsupported type.
    #[error("tensor `{tensor}` is of type {found}, expected {expected}")]
    TensorType {
        /// The tensor's name.
        tensor: String,
        /// The type of its elements, by name or number.
        found: String,
        /// The types that are supported.
        expected: &'static str,
    },
    /// A shape that the type cannot have.
    #[error("tensor `{tensor}` has shape {shape:?} of {format}, {reason}")]
    Shape {
        /// The tensor's name.
        tensor: String,
        /// The tensor's shape, the outermost dimension first.
        shape: Vec<u64>,
        /// The format of its rows.
        format: RowFormat,
        /// The reason why this format cannot have the shape.
        reason: &'static str,
    },
    /// A tensor that does not begin at a valid offset.
    #[error("tensor `{tensor}` begins at {found} of the data, expected a multiple of {alignment}")]
    Offset {
        /// The tensor's name.
        tensor: String,
        /// The tensor's start, in bytes from the start of the data.
        found: u64,
        /// The file's alignment, in bytes.
        alignment: u64,
    },
    /// A tensor that extends beyond the end of the file.
    #[error(
        "the file is truncated: tensor `{tensor}` ends at byte {end}, the file at {file_bytes}"
    )]
    TensorEnds {
        /// The tensor's name.
        tensor: String,
        /// The tensor's end, in bytes from the start of the file.
        end: u128,
        /// The file's length, in bytes.
        file_bytes: u64,
    },
    /// An unsupported architecture.
    #[error("architecture `{found}` is not compiled, expected one of {expected}")]
    Architecture {
        /// The architecture's name in the file.
        found: String,
        /// Names of the supported architectures, with commas between them.
        expected: String,
    },
    /// A tensor that the architecture does not have: leaving it out would give another model.
    #[error("tensor `{tensor}` is none of architecture `{architecture}`")]
    TensorUnknown {
        /// The tensor's name.
        tensor: String,
        /// The architecture's name.
        architecture: &'static str,
    },
    /// One file of a split model.
    #[error("the file is one of {count}: join them with `llama-gguf-split --merge`")]
    Split {
        /// Number of files that the model is split into.
        count: u64,
    },
    /// A file that is not a model: an adapter, a projector, a vocabulary.
    #[error("the file holds `{found}`, expected a model")]
    NoModel {
        /// The kind of content that the file states, shortened if it is long.
        found: String,
    },
    /// Rows that do not make whole heads of pairs.
    #[error("tensor `{tensor}` has {rows} rows, expected pairs in each of {heads} heads")]
    Heads {
        /// The tensor's name.
        tensor: String,
        /// Number of its rows.
        rows: u64,
        /// Number of heads that the rows are divided among.
        heads: u64,
    },
}
