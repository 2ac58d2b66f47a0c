//! Converts text to token ids and back, with Hugging Face `tokenizers`.
//!
//! Reads the bytes of a `tokenizer.json`, which the caller takes from a section of a bundle or from a file. BPE and
//! WordPiece files take the fast path of `tokenizer_file`, others the library's. Truncation and padding that a file may carry are switched
//! off: this runtime never drops prompt tokens silently. `stream` handles tokens that arrive one by one. The library
//! panics on some malformed files; such a panic is caught here and becomes an error.

use std::panic::{AssertUnwindSafe, catch_unwind};

use aho_corasick::AhoCorasick;
use tokenizers::{DecoderWrapper, Model};

use super::byte_level::push_token_bytes;
use super::tokenizer_file::{self, LongestToken, TokenizerFile};
use super::{Result, TextError};

/// A loaded tokenizer. It can be shared between threads.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    form: Form,
    token_count: usize,
    token_bytes_max: usize,
    special_texts: AhoCorasick,
}

/// Whether [`Tokenizer::encode`] adds the tokens of the file's post-processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// They are added (such as `<|begin_of_text|>` in front): for bare text.
    Add,
    /// They are not added: for text of a chat template, which wrote them itself.
    AsWritten,
}

/// The notation of the vocabulary, as far as `stream` must know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One letter a byte; each token stands for its bytes, whatever its neighbours.
    ByteLevel,
    /// `▁` for a space, and `<0x0A>` for a byte that no other token has; the text's first space may be dropped.
    SentencePiece,
    /// Anything else: the text of a token may depend on its neighbours.
    Other,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// `Tokenizer` if the file cannot be read; `TokenId` if an added token does not get the id that the file
    /// declares (the library counts upwards instead when a file leaves a gap, which would shift the ids).
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        let file = guarded(|| tokenizer_file::read(bytes)).or_else(|_| read_with_library(bytes))?;
        let TokenizerFile {
            tokenizer: inner,
            declared,
            longest,
        } = file;
        for (token, declared) in declared {
            let found = inner.token_to_id(&token);
            if found != Some(declared) {
                return Err(TextError::TokenId {
                    token,
                    declared,
                    found,
                });
            }
        }
        let form = form_of(inner.get_decoder());
        let added = inner.get_added_vocabulary().get_vocab();
        let longest = longest.or(LongestToken::of(added.keys()));
        let token_bytes_max = token_bytes_max(&inner, longest, form);
        let special_texts = special_texts(&inner)?;
        Ok(Self {
            token_count: token_count(&inner),
            inner,
            form,
            token_bytes_max,
            special_texts,
        })
    }

    /// Encodes a text to token ids. Special tokens written out in the text become their ids.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>> {
        check_blanks(text)?;
        let encoding = guarded(|| self.inner.encode_fast(text, special == Special::Add))?;
        self.checked_ids(&encoding)
    }

    /// Encodes a pair of texts as the file's post-processor joins them. Returns the tokens, and the position at which those
    /// of the second type begin.
    ///
    /// # Errors
    /// `Tokenizer`, also if a token of the first type stands behind one of the second.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<u32>, usize)> {
        check_blanks(first)?;
        check_blanks(second)?;
        let encoding = guarded(|| self.inner.encode_fast((first, second), true))?;
        let types = encoding.get_type_ids();
        let second_at = types.iter().position(|kind| *kind == 1);
        let second_at = second_at.unwrap_or(types.len());
        if types[..second_at].iter().any(|kind| *kind != 0)
            || types[second_at..].iter().any(|kind| *kind != 1)
        {
            return Err(TextError::Tokenizer {
                message: "the post-processor gives the tokens of a pair other types than 0 for its first text and 1 for \
                          its second"
                    .to_owned(),
            });
        }
        Ok((self.checked_ids(&encoding)?, second_at))
    }

    fn checked_ids(&self, encoding: &tokenizers::Encoding) -> Result<Vec<u32>> {
        let ids = encoding.get_ids();
        // The library takes ids that a post-processor adds from the file as they are.
        let mut added = ids.iter().zip(encoding.get_special_tokens_mask());
        let unknown = |(id, mask): &(&u32, &u32)| **mask == 1 && self.token_text(**id).is_none();
        match added.find(unknown) {
            None => Ok(ids.to_vec()),
            Some((id, _)) => Err(TextError::Tokenizer {
                message: format!(
                    "the post-processor adds token {id}, which the vocabulary does not have"
                ),
            }),
        }
    }

    /// Finds the places at which special tokens begin in a text, in bytes; several may begin at one place. Those of a
    /// single character cannot be told from text, and are left out.
    pub(super) fn special_at(&self, text: &str) -> impl Iterator<Item = usize> {
        let found = self.special_texts.find_overlapping_iter(text);
        found.map(|found| found.start())
    }

    /// Decodes token ids to text, without special tokens. Ids outside the vocabulary are ignored, as in `transformers`:
    /// padded heads can produce them.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        guarded(|| self.inner.decode(tokens, true))
    }

    /// Returns a token in the notation of the vocabulary (`Ġhi`, `<|eot_id|>`); `None` if it is outside the vocabulary.
    pub fn token_text(&self, token: u32) -> Option<String> {
        let added = self.inner.get_added_vocabulary().simple_id_to_token(token);
        added.or_else(|| self.inner.id_to_token(token))
    }

    /// Returns the bytes that a token stands for in the middle of a text; special tokens as they are in the vocabulary.
    /// `None` outside the vocabulary.
    pub fn token_bytes(&self, token: u32) -> Option<Vec<u8>> {
        let text = self.token_text(token)?;
        if self.visible_text(token).is_none() {
            return Some(text.into_bytes());
        }
        if self.form == Form::Other {
            return self.decode(&[token]).ok().map(String::into_bytes);
        }
        let mut bytes = Vec::new();
        self.push_inner_bytes(token, &mut bytes);
        Some(bytes)
    }

    /// Returns the id of a token in the notation of the vocabulary.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// Returns whether [`decode`](Self::decode) leaves this token out.
    pub fn is_special(&self, token: u32) -> bool {
        let added = self.inner.get_added_vocabulary();
        added
            .get_added_tokens_decoder()
            .get(&token)
            .is_some_and(|token| token.special)
    }

    /// Returns the number of tokens, added ones included. A model's head may be wider.
    pub fn token_count(&self) -> usize {
        self.token_count
    }

    /// Returns the maximum number of bytes of text that one token stands for: a text of more than `n` times as many has
    /// more than `n` tokens.
    ///
    /// Chosen for vocabularies that have no longest token (see `WORD_BYTES_MAX`).
    pub fn token_bytes_max(&self) -> usize {
        self.token_bytes_max
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Appends the bytes of a visible token of a byte-level vocabulary.
    pub(super) fn push_bytes(&self, token: u32, out: &mut Vec<u8>) {
        if let Some(text) = self.visible_text(token) {
            push_token_bytes(&text, out);
        }
    }

    /// Appends the bytes that a visible token stands for in the middle of a text; nothing if they depend on its
    /// neighbours.
    pub(super) fn push_inner_bytes(&self, token: u32, out: &mut Vec<u8>) {
        match self.form {
            Form::ByteLevel => self.push_bytes(token, out),
            Form::SentencePiece => {
                let text = self.visible_text(token).unwrap_or_default();
                match fallback_byte(&text) {
                    Some(byte) => out.push(byte),
                    None => out.extend(text.replace('▁', " ").bytes()),
                }
            }
            Form::Other => {}
        }
    }

    /// Returns a token in the notation of the vocabulary, if `decode` shows it.
    pub(super) fn visible_text(&self, token: u32) -> Option<String> {
        let added = self.inner.get_added_vocabulary();
        self.token_text(token)
            .filter(|text| !added.is_special_token(text))
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens = self.token_count();
        f.debug_struct("Tokenizer")
            .field("tokens", &tokens)
            .field("form", &self.form)
            .finish()
    }
}

fn read_with_library(bytes: &[u8]) -> Result<TokenizerFile> {
    // The library asserts in places that the JSON is well-formed; reading the ids checks that first.
    let declared = tokenizer_file::declared_ids(bytes).map_err(|error| failure(&error))?;
    guarded(|| {
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes)?;
        tokenizer.with_truncation(None)?;
        tokenizer.with_padding(None);
        let longest = LongestToken::of(tokenizer.get_vocab(false).keys());
        Ok(TokenizerFile {
            tokenizer,
            declared,
            longest,
        })
    })
}

/// Number of tokens with those that were added. The library's own count copies all texts first.
fn token_count(inner: &tokenizers::Tokenizer) -> usize {
    let model = inner.get_model();
    let added = inner.get_added_vocabulary().get_vocab().keys();
    let others = added.filter(|token| model.token_to_id(token).is_none());
    model.get_vocab_size() + others.count()
}

fn special_texts(inner: &tokenizers::Tokenizer) -> Result<AhoCorasick> {
    let added = inner.get_added_vocabulary().get_added_tokens_decoder();
    let special = added.values().filter(|token| token.special);
    let texts = special.map(|token| token.content.as_str());
    let texts = texts.filter(|text| text.chars().nth(1).is_some());
    AhoCorasick::new(texts).map_err(|error| failure(&error))
}

fn form_of(decoder: Option<&DecoderWrapper>) -> Form {
    match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => Form::ByteLevel,
        Some(DecoderWrapper::Sequence(sequence)) => match sequence.get_decoders() {
            [only] => form_of(Some(only)),
            several if several.iter().any(is_byte_fallback) => Form::SentencePiece,
            _ => Form::Other,
        },
        _ => Form::Other,
    }
}

/// Returns the size of the longest token, in bytes.
///
/// The vocabulary's notation may be longer than the token (`Ġ` and `▁` for a space), and is shorter only through a
/// normaliser: no Unicode form has fewer than a third of the bytes of another.
fn token_bytes_max(inner: &tokenizers::Tokenizer, longest: LongestToken, form: Form) -> usize {
    let longest = match form {
        Form::ByteLevel => longest.chars,
        Form::SentencePiece => longest.bytes,
        Form::Other => return WORD_BYTES_MAX,
    };
    match inner.get_normalizer() {
        Some(_) => longest.max(1) * NORMALISED_BYTES_MAX,
        None => longest.max(1),
    }
}

/// Size of the longest token if any word may be one, known or not, in bytes. Chosen: no language has such words.
const WORD_BYTES_MAX: usize = 256;

/// Maximum number of bytes of text that a normaliser turns into one.
const NORMALISED_BYTES_MAX: usize = 3;

fn is_byte_fallback(decoder: &DecoderWrapper) -> bool {
    matches!(decoder, DecoderWrapper::ByteFallback(_))
}

/// Returns the byte that a token stands for, in vocabularies with byte fallback: `<0x0A>`.
pub(super) fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let digits = Some(digits).filter(|digits| digits.len() == 2);
    u8::from_str_radix(digits?, 16).ok()
}

/// Checks that no run of blanks is so long that the library's patterns silently give up on it. They keep at most a
/// million backtracking places, up to two for each blank, and only blanks are matched place by place.
fn check_blanks(text: &str) -> Result<()> {
    if text.len() <= BLANKS_MAX {
        return Ok(());
    }
    let runs = text.split(|c: char| !c.is_whitespace());
    // Counts characters only in runs that may have too many.
    let long = runs.filter(|run| run.len() > BLANKS_MAX);
    match long.map(|run| run.chars().count()).max() {
        Some(found) if found > BLANKS_MAX => Err(TextError::Blanks {
            found,
            most: BLANKS_MAX,
        }),
        _ => Ok(()),
    }
}

/// Maximum number of blanks in a row. Measured: with a million, `fancy-regex` gives up on the patterns of GPT-4 and
/// Llama 3.
const BLANKS_MAX: usize = 400_000;

/// Runs a call into the library and turns its errors, panics included, into ours.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(outcome) => outcome.map_err(|error| failure(error.as_ref())),
        Err(_) => Err(TextError::Tokenizer {
            message: "the library stopped at this input".into(),
        }),
    }
}

fn failure(error: &(dyn std::error::Error + 'static)) -> TextError {
    TextError::Tokenizer {
        message: error.to_string(),
    }
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
pub(super) mod tests;
