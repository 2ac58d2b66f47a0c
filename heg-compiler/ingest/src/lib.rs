//! Reads a Hugging Face folder or a GGUF file: weights, configuration, text assets.
//!
//! Everything here is foreign bytes. Bounds are checked before memory is allocated, arithmetic on numbers from a file
//! is checked, and a bad file gives an [`IngestError`] that names it. The *meaning* of the numbers is decided
//! elsewhere: the architecture file binds `config.json` to dimensions and names to weights, and `heg-quant` turns
//! tensors into sections.

mod bounded;
mod config_json;
mod config_keys;
mod config_kinds;
mod error;
mod gguf;
mod header;
mod packing;
mod pooling;
mod safetensors;
mod scoring;
mod source;
mod tensor;
mod text_assets;

#[cfg(test)]
mod checkpoint_tests;
#[cfg(test)]
mod header_tests;

pub use self::config_json::ConfigJson;
pub use self::error::IngestError;
pub use self::gguf::{
    BlockFormat, GgufMistake, NamedIds, RowFormat, TemplateOf, Vocabulary, VocabularyMistake,
};
pub use self::header::{HEADER_BYTES_MAX, TensorEntry, check_header};
pub use self::packing::{Packing, RowOrder, Shift};
pub use self::pooling::PooledVectors;
pub use self::safetensors::Checkpoint;
pub use self::scoring::score_form;
pub use self::source::ModelSource;
pub use self::tensor::{SourceDtype, SourceTensor};
pub use self::text_assets::TextAssets;
