//! Byte-level BPE, `gpt2` in GGUF: one letter per byte, merges in the file.

use serde_json::{Value, json};

use super::mistake::VocabularyMistake;
use super::special::SpecialTokens;
use super::tokenizer_json::{Bpe, Steps, TokenizerJson};
use super::vocabulary::{CheckedTokens, MERGES};
use super::words::{UnicodeForm, WholeWords, Words};

/// The tokenizer of a checked vocabulary.
pub(super) fn tokenizer(
    tokens: &CheckedTokens<'_>,
    special: &SpecialTokens,
) -> Result<Vec<u8>, VocabularyMistake> {
    let words = match tokens.source.pre {
        // Both are from the first converters: text would then be split in a way that no model was trained with.
        None | Some("" | "default") => {
            return Err(VocabularyMistake::NoWords {
                found: tokens.source.pre.map(str::to_owned),
            });
        }
        Some(name) => Words::named(name).ok_or_else(|| VocabularyMistake::Words {
            found: name.to_owned(),
        })?,
    };
    let steps = Steps {
        normalizer: match words.form {
            UnicodeForm::AsWritten => Value::Null,
            UnicodeForm::Nfc => json!({"type": "NFC"}),
        },
        pre_tokenizer: words.pre_tokenizer(),
        decoder: json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        adds_bos: words.adds_bos,
    };
    let model = Bpe {
        r#type: "BPE",
        dropout: (),
        // A byte without a token is dropped, as in the original tokenizers; `unknown_token_id` has another meaning
        // there.
        unk_token: None,
        continuing_subword_prefix: (),
        end_of_word_suffix: (),
        fuse_unk: false,
        byte_fallback: false,
        ignore_merges: words.whole_words == WholeWords::Taken,
        vocab: &tokens.texts,
        merges: merges(tokens)?,
    };
    let added = TokenizerJson::added_tokens(tokens, special);
    TokenizerJson::write(tokens, special, steps, added, model)
}

/// The merges, each checked to join two tokens into a third.
fn merges<'a>(tokens: &'a CheckedTokens<'a>) -> Result<Vec<[&'a str; 2]>, VocabularyMistake> {
    let Some(merges) = &tokens.source.merges else {
        return Err(VocabularyMistake::Missing { key: MERGES });
    };
    let ids = tokens.by_text()?;
    let merges = merges.iter().enumerate();
    let merges = merges.map(|(index, merge)| {
        let sides = merge.split_once(' ');
        let sides = sides.filter(|(left, right)| {
            let whole = [*left, *right].concat();
            [left, right, whole.as_str()]
                .iter()
                .all(|text| ids.contains_key(text))
        });
        match sides {
            Some((left, right)) => Ok([left, right]),
            None => Err(VocabularyMistake::Merge {
                index,
                found: merge.chars().take(TEXT_SHOWN).collect(),
            }),
        }
    });
    merges.collect()
}

/// Letters of a merge shown in a message.
const TEXT_SHOWN: usize = 60;
