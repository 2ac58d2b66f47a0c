//! The text assets of a GGUF file: its vocabulary as a `tokenizer.json`, its chat template, the special tokens.
//!
//! GGUF keeps the tokens, and merges or scores, but neither normaliser nor pre-tokenizer nor decoder: a name stands for
//! them. The result here is the file that `tokenizers` reads, so that a model from GGUF is handled like one from a
//! folder. The model was trained with the original tokenizer, so where llama.cpp only approximates it (it has no
//! normaliser and simpler patterns) the original's form is written.

mod byte_level;
mod keys;
mod mistake;
mod sentence_piece;
mod special;
mod template;
mod tokenizer_json;
mod vocabulary;
mod words;

#[cfg(test)]
mod tests;

pub use self::mistake::VocabularyMistake;
pub use self::vocabulary::{NamedIds, TemplateOf, Vocabulary};

use self::special::SpecialTokens;
use super::super::text_assets::TextAssets;

impl TextAssets {
    /// Makes the text assets that a GGUF file's metadata describe. The same metadata give the same bytes.
    ///
    /// # Errors
    /// For metadata that are incomplete, contradict themselves, or name an unknown tokenizer.
    pub fn from_vocabulary(vocabulary: &Vocabulary<'_>) -> Result<Self, VocabularyMistake> {
        let tokens = vocabulary.checked()?;
        let special = SpecialTokens::of(&tokens)?;
        let tokenizer = match vocabulary.model {
            "gpt2" => byte_level::tokenizer(&tokens, &special)?,
            "llama" => sentence_piece::tokenizer(&tokens, &special)?,
            other => {
                return Err(VocabularyMistake::Model {
                    found: other.to_owned(),
                });
            }
        };
        Ok(Self {
            tokenizer: Some(tokenizer),
            chat_template: template::chosen(&vocabulary.templates)?,
            special_tokens: special.texts(&tokens),
            eos_ids: special.ends,
            pooled: None,
            source_hashes: std::collections::BTreeMap::new(),
        })
    }
}
