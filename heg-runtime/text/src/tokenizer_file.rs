//! A fast reader of `tokenizer.json` files whose model is BPE or WordPiece.
//!
//! The library reads a file into a tree of JSON values first, looks at the model's `type` and converts the
//! tree; for a vocabulary of 128 thousand tokens that is most of the start-up time. All decoders we know
//! use BPE and all encoders WordPiece, so this module reads their vocabulary straight into the library's builders. A file
//! with another kind of model is not an error here: the caller falls back to the library's reader.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use tokenizers::models::bpe::{BpeBuilder, Vocab};
use tokenizers::models::wordpiece::WordPieceBuilder;
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, Tokenizer,
};

/// A tokenizer, and what its file says beside it.
pub(super) struct TokenizerFile {
    pub(super) tokenizer: Tokenizer,
    pub(super) declared: Vec<DeclaredId>,
    pub(super) longest: LongestToken,
}

/// Sizes of the longest tokens of a vocabulary, in the notation of its file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LongestToken {
    pub(super) chars: usize,
    pub(super) bytes: usize,
}

impl LongestToken {
    /// The sizes of the longest among these tokens.
    pub(super) fn of<'t>(tokens: impl Iterator<Item = &'t String>) -> Self {
        tokens.fold(Self::default(), |longest, token| Self {
            chars: longest.chars.max(token.chars().count()),
            bytes: longest.bytes.max(token.len()),
        })
    }

    /// The sizes of the longest of two sets of tokens.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            chars: self.chars.max(other.chars),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

/// Reads a BPE or WordPiece tokenizer. Truncation and padding in the file are left out.
///
/// Any failure only means that the library's reader must be tried.
pub(super) fn read(bytes: &[u8]) -> tokenizers::Result<TokenizerFile> {
    // A model of another type fails at its first field, before any of its tokens.
    read_as::<RawBpe>(bytes).or_else(|_| read_as::<RawWordPiece>(bytes))
}

fn read_as<M: RawModel>(bytes: &[u8]) -> tokenizers::Result<TokenizerFile> {
    let raw: RawFile<M> = serde_json::from_slice(bytes)?;
    if raw.version.is_some_and(|version| version != "1.0") {
        return Err("the file's version is not 1.0".into());
    }
    let longest = LongestToken::of(raw.model.vocab().keys());
    let mut tokenizer = Tokenizer::new(raw.model.build()?);
    tokenizer.with_normalizer(part::<NormalizerWrapper>(raw.normalizer)?);
    tokenizer.with_pre_tokenizer(part::<PreTokenizerWrapper>(raw.pre_tokenizer)?);
    tokenizer.with_post_processor(part::<PostProcessorWrapper>(raw.post_processor)?);
    tokenizer.with_decoder(part::<DecoderWrapper>(raw.decoder)?);
    let (tokens, declared): (Vec<AddedToken>, Vec<DeclaredId>) = raw
        .added_tokens
        .into_iter()
        .map(|RawAdded { id, token }| (token.clone(), (token.content, id)))
        .unzip();
    tokenizer.add_tokens(&tokens);
    Ok(TokenizerFile {
        tokenizer,
        declared,
        longest,
    })
}

/// The text of an added token, and the id that its file declares.
pub(super) type DeclaredId = (String, u32);

/// Returns the declared ids of the added tokens in a `tokenizer.json` of any model.
pub(super) fn declared_ids(bytes: &[u8]) -> serde_json::Result<Vec<DeclaredId>> {
    #[derive(Deserialize)]
    struct Added {
        id: u32,
        content: String,
    }
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        added_tokens: Vec<Added>,
    }
    let file: File = serde_json::from_slice(bytes)?;
    Ok(file
        .added_tokens
        .into_iter()
        .map(|added| (added.content, added.id))
        .collect())
}

#[derive(Deserialize)]
struct RawFile<M> {
    version: Option<String>,
    #[serde(default)]
    added_tokens: Vec<RawAdded>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: M,
}

#[derive(Deserialize)]
struct RawAdded {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

/// The model of a file.
trait RawModel: DeserializeOwned {
    /// The texts of all tokens, and their ids.
    fn vocab(&self) -> &Vocab;

    /// The library's model.
    fn build(self) -> tokenizers::Result<ModelWrapper>;
}

#[derive(Deserialize)]
enum BpeType {
    #[serde(rename = "BPE")]
    Bpe,
}

#[derive(Deserialize)]
struct RawBpe {
    #[serde(rename = "type")]
    _type: BpeType,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: RawVocab,
    merges: Vec<RawMerge>,
}

impl RawModel for RawBpe {
    fn vocab(&self) -> &Vocab {
        &self.vocab.0
    }

    fn build(self) -> tokenizers::Result<ModelWrapper> {
        let merges = self
            .merges
            .into_iter()
            .map(|RawMerge(left, right)| (left, right))
            .collect();
        let mut builder = BpeBuilder::new()
            .vocab_and_merges(self.vocab.0, merges)
            .fuse_unk(self.fuse_unk)
            .byte_fallback(self.byte_fallback)
            .ignore_merges(self.ignore_merges);
        if let Some(dropout) = self.dropout {
            builder = builder.dropout(dropout);
        }
        if let Some(token) = self.unk_token {
            builder = builder.unk_token(token);
        }
        if let Some(prefix) = self.continuing_subword_prefix {
            builder = builder.continuing_subword_prefix(prefix);
        }
        if let Some(suffix) = self.end_of_word_suffix {
            builder = builder.end_of_word_suffix(suffix);
        }
        Ok(builder.build()?.into())
    }
}

#[derive(Deserialize)]
enum WordPieceType {
    WordPiece,
}

#[derive(Deserialize)]
struct RawWordPiece {
    #[serde(rename = "type")]
    _type: WordPieceType,
    unk_token: String,
    continuing_subword_prefix: String,
    max_input_chars_per_word: usize,
    vocab: RawVocab,
}

impl RawModel for RawWordPiece {
    fn vocab(&self) -> &Vocab {
        &self.vocab.0
    }

    fn build(self) -> tokenizers::Result<ModelWrapper> {
        let builder = WordPieceBuilder::new()
            .vocab(self.vocab.0)
            .unk_token(self.unk_token)
            .continuing_subword_prefix(self.continuing_subword_prefix)
            .max_input_chars_per_word(self.max_input_chars_per_word);
        Ok(builder.build()?.into())
    }
}

/// Reads a part of the pipeline; an absent part and `null` are the same.
fn part<T: DeserializeOwned>(value: Value) -> serde_json::Result<Option<T>> {
    if value.is_null() {
        Ok(None)
    } else {
        serde_json::from_value(value).map(Some)
    }
}

struct RawVocab(Vocab);

impl<'de> Deserialize<'de> for RawVocab {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawVocab;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of token texts and ids")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawVocab, A::Error> {
                let mut vocab = Vocab::with_capacity(VOCAB_TOKENS_USUAL);
                while let Some((token, id)) = map.next_entry()? {
                    vocab.insert(token, id);
                }
                Ok(RawVocab(vocab))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// One merge, written as `["a", "b"]` or, in older files, as `"a b"`.
struct RawMerge(String, String);

impl<'de> Deserialize<'de> for RawMerge {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = RawMerge;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge of two tokens")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawMerge, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => {
                        Ok(RawMerge(left.into(), right.into()))
                    }
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawMerge, A::Error> {
                let missing = |found| de::Error::invalid_length(found, &"two tokens");
                let left = seq.next_element()?.ok_or_else(|| missing(0))?;
                let right = seq.next_element()?.ok_or_else(|| missing(1))?;
                Ok(RawMerge(left, right))
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

/// Initial capacity of the vocabulary map. Chosen, not measured: it saves the first ten doublings.
const VOCAB_TOKENS_USUAL: usize = 32 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        r#"{"version":"1.0","model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":"#;

    fn check(merges: &str, expect: Option<&[u32]>) {
        let ids = read(format!("{HEAD}{merges}}}}}").as_bytes())
            .ok()
            .map(|file| {
                file.tokenizer
                    .encode("abab", false)
                    .unwrap()
                    .get_ids()
                    .to_vec()
            });
        assert_eq!(ids.as_deref(), expect, "{merges}");
    }

    #[test]
    fn merges_of_both_ages_are_read() {
        check(r#"["a b"]"#, Some(&[2, 2]));
        check(r#"[["a","b"]]"#, Some(&[2, 2]));
        check(r#"[]"#, Some(&[0, 1, 0, 1]));
        check(r#"["a b b"]"#, None);
        check(r#"[["a"]]"#, None);
        check(r#"[["a","z"]]"#, None);
        check(r#"[7]"#, None);
    }
}
