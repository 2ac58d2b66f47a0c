//! Writes the `tokenizer.json` itself, in one go and in the order of the ids.

use serde::Serialize;
use serde::ser::Serializer;
use serde_json::{Value, json};

use super::super::super::text_assets::TOKENIZER_BYTES_MAX;
use super::mistake::VocabularyMistake;
use super::special::{BOS, BOS_ID, EOS, EOS_ID, SpecialTokens};
use super::vocabulary::{CheckedTokens, TokenKind};

/// A file of the `tokenizers` library.
#[derive(Debug, Serialize)]
pub(super) struct TokenizerJson<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<AddedToken<'a>>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Bpe<'a>,
}

/// The steps that differ between the kinds of tokenizers.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) decoder: Value,
    pub(super) adds_bos: bool,
}

/// A token that is searched for in the text before anything else.
#[derive(Debug, Serialize)]
pub(super) struct AddedToken<'a> {
    pub(super) id: u32,
    pub(super) content: &'a str,
    single_word: bool,
    lstrip: bool,
    /// Whether white space after it belongs to it.
    pub(super) rstrip: bool,
    /// Whether it is searched for in normalised text.
    pub(super) normalized: bool,
    pub(super) special: bool,
}

/// The model: tokens, and merges in order.
#[derive(Debug, Serialize)]
pub(super) struct Bpe<'a> {
    pub(super) r#type: &'static str,
    pub(super) dropout: (),
    pub(super) unk_token: Option<&'a str>,
    pub(super) continuing_subword_prefix: (),
    pub(super) end_of_word_suffix: (),
    pub(super) fuse_unk: bool,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
    #[serde(serialize_with = "by_id")]
    pub(super) vocab: &'a [std::borrow::Cow<'a, str>],
    pub(super) merges: Vec<[&'a str; 2]>,
}

impl<'a> TokenizerJson<'a> {
    /// The tokens that are searched for in written text: the special ones, which are never shown, and the user-defined
    /// ones.
    pub(super) fn added_tokens(
        tokens: &'a CheckedTokens<'a>,
        special: &SpecialTokens,
    ) -> Vec<AddedToken<'a>> {
        let kinds = tokens.kinds.iter().zip(0..);
        let added = kinds.filter_map(|(&kind, id)| {
            let is_special = special.is_special(id, kind);
            (is_special || kind == TokenKind::UserDefined).then(|| AddedToken {
                id,
                content: tokens.text(id),
                single_word: false,
                lstrip: false,
                rstrip: false,
                normalized: false,
                special: is_special,
            })
        });
        added.collect()
    }

    /// Writes the bytes of the file, at most as many as are read from a folder.
    pub(super) fn write(
        tokens: &CheckedTokens<'_>,
        special: &SpecialTokens,
        steps: Steps,
        added_tokens: Vec<AddedToken<'a>>,
        model: Bpe<'a>,
    ) -> Result<Vec<u8>, VocabularyMistake> {
        let file = Self {
            version: "1.0",
            truncation: (),
            padding: (),
            added_tokens,
            normalizer: steps.normalizer,
            pre_tokenizer: steps.pre_tokenizer,
            post_processor: post_processor(tokens, special, steps.adds_bos)?,
            decoder: steps.decoder,
            model,
        };
        let mut bytes = BoundedBytes(Vec::new());
        match serde_json::to_writer(&mut bytes, &file) {
            Ok(()) => Ok(bytes.0),
            // Nothing else can fail: all keys are strings.
            Err(_) => Err(VocabularyMistake::TooLarge {
                what: "the tokenizer",
                found_bytes: bytes.0.len(),
                limit_bytes: TOKENIZER_BYTES_MAX,
            }),
        }
    }
}

/// Puts the begin and end tokens around plain text; a chat template writes its own.
fn post_processor(
    tokens: &CheckedTokens<'_>,
    special: &SpecialTokens,
    adds_bos: bool,
) -> Result<Value, VocabularyMistake> {
    let source = tokens.source;
    let added = |flag, given: Option<bool>, usual: bool, role, id| match given.unwrap_or(usual) {
        false => Ok(None),
        true => match (special.id(role), given) {
            (Some(id), _) => Ok(Some(id)),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(VocabularyMistake::Added { flag, id }),
        },
    };
    let bos = added(ADD_BOS, source.add_bos_token, adds_bos, BOS, BOS_ID)?;
    let eos = added(ADD_EOS, source.add_eos_token, false, EOS, EOS_ID)?;
    if bos.is_none() && eos.is_none() {
        return Ok(Value::Null);
    }
    let token =
        |id: u32, type_id: u8| json!({"SpecialToken": {"id": tokens.text(id), "type_id": type_id}});
    let around = |name: &str, type_id: u8| {
        let text = json!({"Sequence": {"id": name, "type_id": type_id}});
        let before = bos.map(|id| token(id, type_id));
        let after = eos.map(|id| token(id, type_id));
        before
            .into_iter()
            .chain([text])
            .chain(after)
            .collect::<Vec<Value>>()
    };
    let specials = bos.into_iter().chain(eos).map(|id| {
        let text = tokens.text(id);
        let entry = json!({"id": text, "ids": [id], "tokens": [text]});
        (text.to_owned(), entry)
    });
    let pair = [around("A", 0), around("B", 1)].concat();
    Ok(json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": specials.collect::<serde_json::Map<_, _>>(),
    }))
}

pub(super) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(super) const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// Serialises texts as keys and ids as values, in the order of the ids.
fn by_id<S: Serializer>(
    texts: &&[std::borrow::Cow<'_, str>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(texts.iter().zip(0_u32..))
}

/// A buffer whose writes fail beyond its bound.
struct BoundedBytes(Vec<u8>);

impl std::io::Write for BoundedBytes {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        if self.0.len().saturating_add(piece.len()) as u64 > TOKENIZER_BYTES_MAX {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
