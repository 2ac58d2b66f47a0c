//! Reads the vocabulary from the metadata.

use std::path::Path;

use super::super::super::error::IngestError;
use super::super::super::text_assets::TextAssets;
use super::super::metadata::Metadata;
use super::mistake::VocabularyMistake;
use super::special::{BOS_ID, EOM_ID, EOS_ID, EOT_ID, MASK_ID, PAD_ID, SEP_ID, UNK_ID};
use super::tokenizer_json::{ADD_BOS, ADD_EOS};
use super::vocabulary::{MERGES, MODEL, NamedIds, SCORES, TOKEN_TYPE, TOKENS};
use super::vocabulary::{TemplateOf, Vocabulary};

impl<'a> Vocabulary<'a> {
    /// Reads the vocabulary from a GGUF file's bytes, which may be a map. `path` is for messages.
    ///
    /// # Errors
    /// For a file that is not GGUF, and keys of a wrong type. [`TextAssets::from_vocabulary`] checks the keys against
    /// each other.
    pub fn read(path: &Path, file: &'a [u8]) -> Result<Self, IngestError> {
        Self::of(&Metadata::read(path, file)?)
    }

    pub(crate) fn of(metadata: &Metadata<'a>) -> Result<Self, IngestError> {
        let ids = NamedIds {
            bos: metadata.u64(BOS_ID)?,
            eos: metadata.u64(EOS_ID)?,
            eot: metadata.u64(EOT_ID)?,
            eom: metadata.u64(EOM_ID)?,
            unk: metadata.u64(UNK_ID)?,
            sep: metadata.u64(SEP_ID)?,
            pad: metadata.u64(PAD_ID)?,
            mask: metadata.u64(MASK_ID)?,
        };
        Ok(Self {
            architecture: metadata.text("general.architecture")?.unwrap_or_default(),
            model: metadata.text(MODEL)?.unwrap_or_default(),
            pre: metadata.text("tokenizer.ggml.pre")?,
            tokens: texts(metadata, TOKENS)?.unwrap_or_default(),
            scores: metadata.f32s(SCORES)?,
            token_types: metadata.i32s(TOKEN_TYPE)?,
            merges: texts(metadata, MERGES)?,
            ids,
            add_bos_token: metadata.boolean(ADD_BOS)?,
            add_eos_token: metadata.boolean(ADD_EOS)?,
            add_space_prefix: metadata.boolean("tokenizer.ggml.add_space_prefix")?,
            remove_extra_whitespaces: metadata
                .boolean("tokenizer.ggml.remove_extra_whitespaces")?,
            templates: templates(metadata)?,
        })
    }
}

impl TextAssets {
    /// The text assets of a GGUF file.
    pub(crate) fn of_gguf(metadata: &Metadata<'_>) -> Result<Self, IngestError> {
        let assets = Self::from_vocabulary(&Vocabulary::of(metadata)?);
        assets.map_err(|mistake| IngestError::Vocabulary {
            path: metadata.path().to_owned(),
            mistake,
        })
    }
}

/// Reads a list of texts.
fn texts<'a>(
    metadata: &Metadata<'a>,
    key: &'static str,
) -> Result<Option<Vec<&'a str>>, IngestError> {
    let Some(strings) = metadata.strings(key)? else {
        return Ok(None);
    };
    if strings.len() > ENTRIES_MAX {
        return Err(IngestError::Vocabulary {
            path: metadata.path().to_owned(),
            mistake: VocabularyMistake::Many {
                key,
                found: strings.len(),
                limit: ENTRIES_MAX,
            },
        });
    }
    let texts = strings.enumerate().map(|(index, bytes)| {
        std::str::from_utf8(bytes).map_err(|_| IngestError::Vocabulary {
            path: metadata.path().to_owned(),
            mistake: VocabularyMistake::NotUtf8 { key, index },
        })
    });
    texts.collect::<Result<_, _>>().map(Some)
}

/// The main chat template, and those with a name.
fn templates<'a>(metadata: &Metadata<'a>) -> Result<Vec<TemplateOf<'a>>, IngestError> {
    let keys = metadata.keys().filter_map(|key| {
        let rest = key.strip_prefix("tokenizer.chat_template")?;
        match rest {
            "" => Some((key, None)),
            rest => Some((key, Some(rest.strip_prefix('.')?))),
        }
    });
    let templates = keys.filter_map(|(key, name)| {
        let source = metadata.text(key).transpose()?;
        Some(source.map(|source| TemplateOf { name, source }))
    });
    templates.collect()
}

/// Largest number of tokens and of merges: sixteen times the largest vocabulary known to us. Chosen.
const ENTRIES_MAX: usize = 1 << 22;
