//! Errors in the vocabulary of a GGUF file, each with its message.

use thiserror::Error;

use super::words;

/// Reasons why a vocabulary makes no tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VocabularyMistake {
    /// A missing key that every vocabulary of its kind has.
    #[error(
        "no key `{key}`: the file has no whole tokenizer, take one that was converted with its tokenizer"
    )]
    Missing {
        /// Name of the missing key.
        key: &'static str,
    },
    /// An unsupported kind of tokenizer.
    #[error("key `tokenizer.ggml.model`: found `{found}`, expected `gpt2` or `llama`")]
    Model {
        /// The kind of tokenizer that the file states.
        found: String,
    },
    /// A file from before pre-tokenizers had names.
    #[error(
        "key `tokenizer.ggml.pre`: found {}, which says nothing of how this model splits text: convert the model again with a llama.cpp of May 2024 or later",
        found.as_ref().map_or_else(|| "nothing".to_owned(), |name| format!("`{name}`"))
    )]
    NoWords {
        /// The name that stands for none, if the key exists.
        found: Option<String>,
    },
    /// An unknown pre-tokenizer.
    #[error(
        "key `tokenizer.ggml.pre`: found `{found}`, expected one of {}",
        words::names()
    )]
    Words {
        /// The pre-tokenizer's name in the file.
        found: String,
    },
    /// A text that is not UTF-8.
    #[error("key `{key}`, entry {index}: not UTF-8")]
    NotUtf8 {
        /// Name of the key with the list of texts.
        key: &'static str,
        /// The text's index in the list.
        index: usize,
    },
    /// More tokens or merges than any vocabulary has.
    #[error("key `{key}` has {found} entries, at most {limit} are read")]
    Many {
        /// The key's name.
        key: &'static str,
        /// Number of its entries.
        found: usize,
        /// The largest number that is read.
        limit: usize,
    },
    /// Lists of different lengths that belong together.
    #[error("key `{key}` has {found} entries, expected {tokens}, one for each token")]
    Count {
        /// The key's name.
        key: &'static str,
        /// Number of its entries.
        found: usize,
        /// Number of tokens in the vocabulary.
        tokens: usize,
    },
    /// One text for two tokens.
    #[error("token `{text}` occurs twice: with id {first} and with id {second}")]
    Twice {
        /// The token's text, shortened if it is long.
        text: String,
        /// The id of its first occurrence.
        first: usize,
        /// The id of its second occurrence.
        second: usize,
    },
    /// A type of token that the format does not define.
    #[error("key `tokenizer.ggml.token_type`, token {id}: found {found}, expected 0 to 6")]
    Type {
        /// The token's id.
        id: usize,
        /// The number of the type.
        found: i32,
    },
    /// A score that cannot be compared (NaN).
    #[error("key `tokenizer.ggml.scores`, token {id}: found {found}, expected a finite number")]
    Score {
        /// The token's id.
        id: usize,
        /// The score, as text.
        found: String,
    },
    /// An id outside the vocabulary.
    #[error("key `{key}`: found {found}, expected less than {tokens}, the number of tokens")]
    Id {
        /// The key's name.
        key: &'static str,
        /// The id that is outside.
        found: u64,
        /// Number of tokens in the vocabulary.
        tokens: usize,
    },
    /// A merge that does not consist of two tokens, or does not make one.
    #[error(
        "key `tokenizer.ggml.merges`, entry {index}: found `{found}`, expected two tokens with a space between that make a third"
    )]
    Merge {
        /// The merge's index in the list.
        index: usize,
        /// The merge's text, shortened if it is long.
        found: String,
    },
    /// A token that is too long to be searched for in a text.
    #[error("token {id} has {found} letters, at most {limit} are read")]
    Long {
        /// The token's id.
        id: usize,
        /// Number of letters in its text.
        found: usize,
        /// The largest number of letters that is read.
        limit: usize,
    },
    /// Letters without a token could not be encoded.
    #[error(
        "the vocabulary has neither the 256 tokens `<0x00>` to `<0xFF>` nor `tokenizer.ggml.unknown_token_id`, so there is text that it cannot write"
    )]
    NoFallback,
    /// A token to be added that has no id.
    #[error("key `{flag}` is true, and there is no `{id}`")]
    Added {
        /// Name of the key that has the token added.
        flag: &'static str,
        /// Name of the missing key with its id.
        id: &'static str,
    },
    /// A normalisation step that our tokenizers do not support.
    #[error("key `tokenizer.ggml.remove_extra_whitespaces`: found true, expected false")]
    ExtraWhitespace,
    /// Chat templates without a default.
    #[error(
        "chat templates {}, expected `tokenizer.chat_template` or one named `default`",
        names.join(", ")
    )]
    Templates {
        /// Names of the templates in the file.
        names: Vec<String>,
    },
    /// A text beyond its bound.
    #[error("{what} has {found_bytes} bytes, at most {limit_bytes} are read")]
    TooLarge {
        /// The kind of text, for the message.
        what: &'static str,
        /// The text's length, in bytes.
        found_bytes: usize,
        /// The largest length that is read, in bytes.
        limit_bytes: u64,
    },
}
