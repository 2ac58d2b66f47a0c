//! Reading a GGUF file: metadata, tensors and their blocks, brought into the form of a Hugging Face folder.
//!
//! Everything here is foreign bytes, read in place from the map of the file. What leaves this folder is what a
//! safetensors folder gives too: a configuration in Hugging Face's spelling and tensors under Hugging Face's names.

#[allow(dead_code, reason = "its users are being written")]
mod metadata;
mod mistake;
mod reader;
mod value;

#[cfg(test)]
mod metadata_tests;

#[allow(unused_imports, reason = "its users are being written")]
pub(crate) use self::metadata::Metadata;
pub use self::mistake::GgufMistake;
#[allow(unused_imports, reason = "its users are being written")]
pub(crate) use self::value::Strings;
