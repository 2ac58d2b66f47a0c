//! The text side of a GGUF file: its vocabulary as a `tokenizer.json`, its chat template, the tokens with a meaning.
//!
//! GGUF keeps the tokens, and merges or scores, but neither normaliser nor pre-tokenizer nor decoder: a name stands for
//! them. What comes out here is the file that `tokenizers` reads, so that a model takes the same road from GGUF and from
//! a folder. The original tokenizer is what the model was trained with, so where llama.cpp only comes near it (it has
//! no normaliser and simpler patterns) the original's form is written.

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
    /// The text assets that a GGUF file's metadata describe. The same metadata give the same bytes.
    ///
    /// # Errors
    /// What is missing, contradicts itself, or names a tokenizer that is not known.
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
            source_hashes: std::collections::BTreeMap::new(),
        })
    }
}
