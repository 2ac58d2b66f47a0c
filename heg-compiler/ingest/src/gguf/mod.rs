//! Reads a GGUF file: metadata, tensors and their blocks, converted to the form of a Hugging Face folder.
//!
//! Everything here is foreign bytes, read in place from the mapped file. The result is the same as that of a
//! safetensors folder: a configuration with Hugging Face's keys and tensors under Hugging Face's names.

mod blocks;
mod config;
mod element_type;
mod entry;
mod family;
mod metadata;
mod mistake;
mod reader;
mod rope;
mod tensors;
mod text;
mod value;

#[cfg(test)]
mod blocks_tests;
#[cfg(test)]
mod config_tests;
#[cfg(test)]
mod metadata_tests;
#[cfg(test)]
mod refused_tests;
#[cfg(test)]
mod written;

use std::collections::BTreeMap;
use std::path::Path;

use heg_artifacts::Mapping;

pub use self::blocks::BlockFormat;
pub use self::element_type::RowFormat;
pub(super) use self::entry::GgufEntry;
pub(super) use self::metadata::MAGIC;
pub(crate) use self::metadata::Metadata;
pub use self::mistake::GgufMistake;
pub use self::text::{NamedIds, TemplateOf, Vocabulary, VocabularyMistake};

use self::family::Family;
use self::tensors::Tensors;
use super::config_json::ConfigJson;
use super::error::IngestError;
use super::text_assets::TextAssets;

/// Tensors by their Hugging Face names.
type Entries = BTreeMap<String, GgufEntry>;

/// Configuration, text assets and tensors of a mapped file. `path` is for messages.
pub(super) fn read(
    path: &Path,
    mapping: &Mapping,
) -> Result<(ConfigJson, TextAssets, Entries), IngestError> {
    let (metadata, tensors, family) = header(path, mapping)?;
    let config = configuration(&metadata, mapping, &tensors, family)?;
    let entries = entry::entries(&metadata, tensors, family)?;
    let text = TextAssets::of_gguf(&metadata)?;
    Ok((config, text, entries))
}

/// The configuration of a mapped file alone.
pub(super) fn config(path: &Path, mapping: &Mapping) -> Result<ConfigJson, IngestError> {
    let (metadata, tensors, family) = header(path, mapping)?;
    configuration(&metadata, mapping, &tensors, family)
}

fn header<'a>(
    path: &Path,
    mapping: &'a Mapping,
) -> Result<(Metadata<'a>, Tensors, &'static Family), IngestError> {
    let metadata = Metadata::read(path, mapping)?;
    config::check_whole(&metadata)?;
    let family = Family::of(&metadata)?;
    let tensors = Tensors::read(&metadata, mapping)?;
    Ok((metadata, tensors, family))
}

fn configuration<'a>(
    metadata: &Metadata<'a>,
    mapping: &'a Mapping,
    tensors: &Tensors,
    family: &'static Family,
) -> Result<ConfigJson, IngestError> {
    let keys = config::read(metadata, family, mapping, tensors)?;
    let header = mapping.get(..tensors.data_start).unwrap_or_default();
    ConfigJson::of_keys(metadata.path(), keys, blake3::hash(header))
}
