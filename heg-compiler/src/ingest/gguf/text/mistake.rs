//! What can be wrong with the vocabulary of a GGUF file, each with its sentence.

use thiserror::Error;

use super::words;

/// A vocabulary that no tokenizer can be made of.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VocabularyMistake {
    /// A key that every vocabulary of its kind has.
    #[error(
        "no key `{key}`: the file has no whole tokenizer, take one that was converted with its tokenizer"
    )]
    Missing { key: &'static str },
    /// A kind of tokenizer that is not read.
    #[error("key `tokenizer.ggml.model`: found `{found}`, expected `gpt2` or `llama`")]
    Model { found: String },
    /// A file from before pre-tokenizers had names.
    #[error(
        "key `tokenizer.ggml.pre`: found {}, which says nothing of how this model splits text: convert the model again with a llama.cpp of May 2024 or later",
        found.as_ref().map_or_else(|| "nothing".to_owned(), |name| format!("`{name}`"))
    )]
    NoWords { found: Option<String> },
    /// A name that is not in our list.
    #[error(
        "key `tokenizer.ggml.pre`: found `{found}`, expected one of {}",
        words::names()
    )]
    Words { found: String },
    /// A text that is not UTF-8.
    #[error("key `{key}`, entry {index}: not UTF-8")]
    NotUtf8 { key: &'static str, index: usize },
    /// More tokens or merges than any vocabulary has.
    #[error("key `{key}` has {found} entries, at most {limit} are read")]
    Many {
        key: &'static str,
        found: usize,
        limit: usize,
    },
    /// Lists that should go together.
    #[error("key `{key}` has {found} entries, expected {tokens}, one for each token")]
    Count {
        key: &'static str,
        found: usize,
        tokens: usize,
    },
    /// One text, two tokens.
    #[error("token `{text}` occurs twice: with id {first} and with id {second}")]
    Twice {
        text: String,
        first: usize,
        second: usize,
    },
    /// A type of token that the format does not know.
    #[error("key `tokenizer.ggml.token_type`, token {id}: found {found}, expected 0 to 6")]
    Type { id: usize, found: i32 },
    /// A score that cannot be compared.
    #[error("key `tokenizer.ggml.scores`, token {id}: found {found}, expected a finite number")]
    Score { id: usize, found: String },
    /// An id outside the vocabulary.
    #[error("key `{key}`: found {found}, expected less than {tokens}, the number of tokens")]
    Id {
        key: &'static str,
        found: u64,
        tokens: usize,
    },
    /// A merge that is not two tokens, or does not make one.
    #[error(
        "key `tokenizer.ggml.merges`, entry {index}: found `{found}`, expected two tokens with a space between that make a third"
    )]
    Merge { index: usize, found: String },
    /// A token that is too long to be sought in a text.
    #[error("token {id} has {found} letters, at most {limit} are read")]
    Long {
        id: usize,
        found: usize,
        limit: usize,
    },
    /// Letters without a token would have nowhere to go.
    #[error(
        "the vocabulary has neither the 256 tokens `<0x00>` to `<0xFF>` nor `tokenizer.ggml.unknown_token_id`, so there is text that it cannot write"
    )]
    NoFallback,
    /// A token is to be added that has no id.
    #[error("key `{flag}` is true, and there is no `{id}`")]
    Added {
        flag: &'static str,
        id: &'static str,
    },
    /// A step that is not in the tokenizers we write.
    #[error("key `tokenizer.ggml.remove_extra_whitespaces`: found true, expected false")]
    ExtraWhitespace,
    /// Templates, and none that is the one to take.
    #[error(
        "chat templates {}, expected `tokenizer.chat_template` or one named `default`",
        names.join(", ")
    )]
    Templates { names: Vec<String> },
    /// A text beyond its bound.
    #[error("{what} has {found_bytes} bytes, at most {limit_bytes} are read")]
    TooLarge {
        what: &'static str,
        found_bytes: usize,
        limit_bytes: u64,
    },
}
