//! A fast reader of `tokenizer.json` files whose model is BPE.
//!
//! The library reads a file into a tree of JSON values first, looks at the model's `type` and converts the
//! tree; for a vocabulary of 128 thousand tokens that is most of the start-up time. All decoders we know
//! use BPE, so this module reads vocabulary and merges straight into the library's builder. A file with
//! another kind of model is not an error here: the caller falls back to the library's reader.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    Tokenizer,
};

/// Reads a BPE tokenizer. Truncation and padding in the file are left out.
///
/// Any failure only means that the library's reader must be tried.
pub(super) fn read(bytes: &[u8]) -> tokenizers::Result<(Tokenizer, Vec<DeclaredId>)> {
    let raw: RawFile = serde_json::from_slice(bytes)?;
    if raw.version.is_some_and(|version| version != "1.0") {
        return Err("the file's version is not 1.0".into());
    }
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
    Ok((tokenizer, declared))
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
struct RawFile {
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
    model: RawBpe,
}

#[derive(Deserialize)]
struct RawAdded {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

#[derive(Deserialize)]
enum Kind {
    #[serde(rename = "BPE")]
    Bpe,
}

#[derive(Deserialize)]
struct RawBpe {
    #[serde(rename = "type")]
    _kind: Kind,
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

impl RawBpe {
    fn build(self) -> tokenizers::Result<BPE> {
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
        builder.build()
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
            .map(|(tokenizer, _)| tokenizer.encode("abab", false).unwrap().get_ids().to_vec());
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
