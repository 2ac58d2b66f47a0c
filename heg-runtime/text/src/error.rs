//! The errors of the text half.
//!
//! Variants hold data, not sentences; both sides of a mismatch are fields. All of them are `Input`
//! errors in the sense of the four exits, except `Tokenizer` and `TokenId`, which mean that the files in
//! the bundle do not fit together.

/// An error on the way from a conversation to its tokens, or back.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The tokenizer file cannot be read, or the tokenizer refused a text.
    #[error("tokenizer: {message}")]
    Tokenizer {
        /// The library's message.
        message: String,
    },
    /// The text has more blanks in a row than the tokenizer's patterns can match: the library would split words at the
    /// first blank, and take the rest as one word.
    #[error("a run of {found} blanks, expected at most {most}: leave most of them out")]
    Blanks {
        /// Length of the run, in characters.
        found: usize,
        /// Length of the longest run that is tokenized.
        most: usize,
    },
    /// An added token stands at another id than its file declares.
    #[error("added token `{token}`: file says id {declared}, the vocabulary gives {}", Found(*.found))]
    TokenId {
        /// Text of the token.
        token: String,
        /// Id in `added_tokens`.
        declared: u32,
        /// Id that the loaded tokenizer uses, if the token has one.
        found: Option<u32>,
    },
    /// The chat template does not parse, or failed while it ran.
    #[error("chat template{}: {message}", Line(*.line))]
    Template {
        /// The template engine's message.
        message: String,
        /// Line in the template, counted from 1, if known.
        line: Option<usize>,
    },
    /// The chat template wrote more than there is room for.
    #[error("the conversation takes more than {bytes_max} bytes as a prompt")]
    TooLong {
        /// Maximum length in bytes.
        bytes_max: usize,
    },
    /// The chat template called `raise_exception`: it does not accept this conversation.
    #[error("chat template refuses the conversation: {message}")]
    Refused {
        /// The template author's message.
        message: String,
    },
    /// A message of a conversation is not an object with a role.
    #[error("message: expected {expected}, found {found}")]
    Message {
        /// The required part of a message.
        expected: &'static str,
        /// Description of the value found.
        found: String,
    },
    /// A sampling parameter is outside its range.
    #[error("sampling parameter `{name}`: expected {expected}, found {found}")]
    Sampling {
        /// Name as in [`SamplingParams`](super::SamplingParams).
        name: &'static str,
        /// The allowed range.
        expected: &'static str,
        /// The given value.
        found: f64,
    },
    /// The format cannot be enforced: a schema contradicts itself, uses an unsupported keyword, or is too large.
    #[error("{form}: {message}")]
    Form {
        /// The form's name for users, such as "JSON schema".
        form: &'static str,
        /// The reason.
        message: String,
    },
    /// The work on an input exceeded a limit.
    #[error("{what}: {why}")]
    Overrun {
        /// The work that failed, as the beginning of a sentence.
        what: &'static str,
        /// The limit that was reached.
        why: String,
    },
    /// A restriction failed in the middle of an answer.
    #[error("the answer cannot be held to its form: {message}")]
    Restriction {
        /// The reason.
        message: String,
    },
}

impl TextError {
    /// Returns whether the template works, but refuses this conversation.
    pub fn is_of_conversation(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Template { .. })
    }
}

/// The result of this module's functions.
pub type Result<T, E = TextError> = std::result::Result<T, E>;

/// Shortens a text that a client may have written, for a message.
pub(super) fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(QUOTED_CHARS_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Maximum length of a quoted text, in characters. Chosen: enough to recognise it.
const QUOTED_CHARS_MAX: usize = 300;

struct Found(Option<u32>);

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(id) => write!(f, "id {id}"),
            None => f.write_str("none"),
        }
    }
}

struct Line(Option<usize>);

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(line) => write!(f, ", line {line}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_both_sides() {
        let error = TextError::TokenId {
            token: "<|x|>".into(),
            declared: 7,
            found: None,
        };
        assert_eq!(
            error.to_string(),
            "added token `<|x|>`: file says id 7, the vocabulary gives none"
        );
        let error = TextError::Template {
            message: "unknown filter".into(),
            line: Some(3),
        };
        assert_eq!(error.to_string(), "chat template, line 3: unknown filter");
        let error = TextError::Template {
            message: "unknown filter".into(),
            line: None,
        };
        assert_eq!(error.to_string(), "chat template: unknown filter");
    }
}
