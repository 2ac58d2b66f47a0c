//! The text side of a bundle, as the worker loads it.

use std::collections::BTreeMap;

use heg_text::{ChatTemplate, Grammars, TextError, Tokenizer};
use serde::{Deserialize, Serialize};

/// The files of a bundle that the worker needs.
#[derive(Debug, Clone, Default)]
pub struct WorkerAssets {
    /// Contents of the `tokenizer.json`, if there is one.
    pub tokenizer: Option<Vec<u8>>,
    /// The chat template, if there is one.
    pub template: Option<String>,
    /// Texts of special tokens, by their names in templates.
    pub special_tokens: BTreeMap<String, String>,
    /// The tokens that end an answer.
    pub eos_ids: Vec<u32>,
}

/// All assets but the tokenizer, whose bytes follow unencoded.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SmallAssets {
    pub(crate) has_tokenizer: bool,
    pub(crate) template: Option<String>,
    pub(crate) special_tokens: BTreeMap<String, String>,
    pub(crate) eos_ids: Vec<u32>,
}

/// The worker's loaded assets. An asset that could not be loaded is an error of all work that needs it.
pub(crate) struct TextSide {
    pub(crate) tokenizer: Result<Tokenizer, TextError>,
    pub(crate) template: Result<ChatTemplate, TextError>,
    eos_ids: Vec<u32>,
}

impl TextSide {
    pub(crate) fn load(small: SmallAssets, tokenizer: &[u8]) -> Self {
        Self {
            tokenizer: match small.has_tokenizer {
                true => Tokenizer::from_json(tokenizer),
                false => Err(TextError::Tokenizer {
                    message: "the bundle has none".to_owned(),
                }),
            },
            template: match small.template {
                Some(source) => ChatTemplate::new(&source, small.special_tokens),
                None => Err(TextError::Template {
                    message: "the bundle has none".to_owned(),
                    line: None,
                }),
            },
            eos_ids: small.eos_ids,
        }
    }

    /// Builds the vocabulary for forms, which takes most of a second if the vocabulary is large.
    pub(crate) fn grammars(&self) -> Result<Grammars, TextError> {
        let tokenizer = self.tokenizer.as_ref().map_err(Clone::clone)?;
        Grammars::new(tokenizer, &self.eos_ids)
    }
}
