//! What can be wrong with the container of a GGUF file, each with its sentence.

use thiserror::Error;

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
}
