//! Reading a Hugging Face folder or a GGUF file: weights, configuration, text assets.
//!
//! Everything here is foreign bytes. Bounds are checked before memory is taken, arithmetic on what a
//! file says is checked, and the answer to a bad file is an [`IngestError`] that names it. What the
//! numbers *mean* is not decided here: the architecture file binds `config.json` to dimensions and
//! names to weights, and `quant/` turns tensors into sections.

mod bounded;
mod config_json;
mod config_keys;
mod config_kinds;
mod error;
mod gguf;
mod header;
mod packing;
mod safetensors;
mod source;
mod tensor;
mod text_assets;

#[cfg(test)]
mod checkpoint_tests;
#[cfg(test)]
mod header_tests;
#[cfg(test)]
mod packing_tests;

pub use self::config_json::ConfigJson;
pub use self::error::IngestError;
pub use self::gguf::{
    BlockFormat, GgufMistake, NamedIds, RowFormat, TemplateOf, Vocabulary, VocabularyMistake,
};
pub use self::header::{HEADER_BYTES_MAX, TensorEntry, check_header};
pub use self::packing::Packing;
pub use self::safetensors::Checkpoint;
pub use self::source::ModelSource;
pub use self::tensor::{SourceDtype, SourceTensor};
pub use self::text_assets::TextAssets;
