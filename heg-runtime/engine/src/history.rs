//! Finished answers that are kept between runs, in a file: drafts of later answers are made from them.
//!
//! The file may be malformed. Its size is bounded, and it is refused if it is no history, or if its tokens are
//! another tokenizer's. It contains the answers, as token ids, so only its user may read it.

use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;

use heg_artifacts::Bundle;
use heg_draft::PROMPT_END;
use heg_files::{FileError, open_regular, write_own};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::error::EngineError;

/// The tokens that answers consist of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSet {
    /// The hash of the tokenizer, or of a bundle that has none.
    id: String,
    /// Number of tokens.
    vocab: u32,
}

impl TokenSet {
    /// Names a set of `vocab` tokens.
    pub fn new(id: impl Into<String>, vocab: u32) -> Self {
        let id = id.into();
        Self { id, vocab }
    }

    /// Returns the tokens of a bundle. Bundles with the same tokenizer have the same.
    pub fn of(bundle: &Bundle) -> Self {
        let manifest = bundle.manifest();
        let id = manifest.text.tokenizer.unwrap_or(bundle.manifest_id());
        Self::new(id.to_string(), manifest.model.vocab)
    }
}

/// A finished answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PastAnswer {
    /// The last tokens of its prompt.
    pub prompt_end: Vec<u32>,
    /// The tokens of the answer.
    pub answer: Vec<u32>,
}

impl PastAnswer {
    fn tokens(&self) -> usize {
        self.prompt_end.len() + self.answer.len()
    }
}

/// Finished answers, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastAnswers {
    token_set: TokenSet,
    answers: VecDeque<PastAnswer>,
    /// Number of tokens of all answers.
    tokens: usize,
}

/// The reason why a file of finished answers cannot be used.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is no history of answers.
    #[error(
        "it is no history of answers, which is JSON as `heg run --history` writes it: line {line}, column {column}"
    )]
    Format {
        /// The line of the unexpected text, from 1.
        line: usize,
        /// The column of the unexpected text.
        column: usize,
    },
    /// The file was written by another version.
    #[error("it has revision {found}, expected {}: use another file", REVISION)]
    Revision {
        /// The revision in the file.
        found: u32,
    },
    /// The tokens are another model's.
    #[error("its answers are in tokens of another tokenizer than the bundle's: use another file")]
    Tokenizer,
    /// A token does not exist.
    #[error("it has token {found}, and the vocabulary has {vocab} tokens: use another file")]
    Token {
        /// The token.
        found: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<Answers> {
    revision: u32,
    tokenizer: String,
    answers: Answers,
}

impl PastAnswers {
    /// Makes an empty list.
    pub fn new(token_set: TokenSet) -> Self {
        Self {
            token_set,
            answers: VecDeque::new(),
            tokens: 0,
        }
    }

    /// Adds an answer. The oldest ones are dropped if there are too many tokens; an answer that alone has too many is
    /// left out.
    pub fn add(&mut self, prompt: &[u32], answer: &[u32]) {
        let prompt_end = &prompt[prompt.len().saturating_sub(PROMPT_END)..];
        let new = PastAnswer {
            prompt_end: prompt_end.to_vec(),
            answer: answer.to_vec(),
        };
        if answer.is_empty() || new.tokens() > TOKENS_MAX {
            return;
        }
        self.tokens += new.tokens();
        self.answers.push_back(new);
        while self.tokens > TOKENS_MAX {
            let oldest = self.answers.pop_front();
            self.tokens -= oldest.map_or(0, |oldest| oldest.tokens());
        }
    }

    /// Returns all answers, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &PastAnswer> {
        self.answers.iter()
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// All of [`HistoryError`] except [`HistoryError::File`].
    pub fn parse(text: &[u8], token_set: TokenSet) -> Result<Self, HistoryError> {
        let file: File<Vec<PastAnswer>> =
            serde_json::from_slice(text).map_err(|error| HistoryError::Format {
                line: error.line(),
                column: error.column(),
            })?;
        if file.revision != REVISION {
            let found = file.revision;
            return Err(HistoryError::Revision { found });
        }
        if file.tokenizer != token_set.id {
            return Err(HistoryError::Tokenizer);
        }
        let vocab = token_set.vocab;
        let answers = file.answers.iter();
        let mut tokens = answers.flat_map(|past| past.prompt_end.iter().chain(&past.answer));
        if let Some(&found) = tokens.find(|token| **token >= vocab) {
            return Err(HistoryError::Token { found, vocab });
        }
        let mut all = Self::new(token_set);
        for past in &file.answers {
            all.add(&past.prompt_end, &past.answer);
        }
        Ok(all)
    }

    /// Returns the text of a file that [`parse`](Self::parse) reads.
    pub fn to_text(&self) -> String {
        let file = File {
            revision: REVISION,
            tokenizer: self.token_set.id.clone(),
            answers: &self.answers,
        };
        // The file has only numbers and names, which JSON can always represent.
        serde_json::to_string(&file).unwrap_or_default()
    }

    /// Reads a file; returns an empty list if it does not exist.
    ///
    /// # Errors
    ///
    /// [`EngineError::History`].
    pub fn read(path: &Path, token_set: TokenSet) -> Result<Self, EngineError> {
        let read = || match read_bounded(path)? {
            Some(text) => Self::parse(&text, token_set),
            None => Ok(Self::new(token_set)),
        };
        read().map_err(unusable(path))
    }

    /// Writes a file that only this user may read, atomically: a reader sees the old content, or all of the new.
    ///
    /// # Errors
    ///
    /// [`EngineError::History`].
    pub fn write(&self, path: &Path) -> Result<(), EngineError> {
        let written = write_own(path, &[self.to_text().as_bytes()]);
        written.map_err(|error| unusable(path)(error.into()))
    }
}

fn unusable(path: &Path) -> impl Fn(HistoryError) -> EngineError {
    move |source| EngineError::History {
        path: path.to_owned(),
        source,
    }
}

/// Returns the content of a file, if it exists.
fn read_bounded(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let file = match open_regular(path) {
        Err(error) if error.is_not_found() => return Ok(None),
        opened => opened?,
    };
    let mut text = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text);
    let path = || path.to_owned();
    read.map_err(|source| FileError::Io {
        action: "read",
        path: path(),
        source,
    })?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(FileError::TooLong {
            path: path(),
            most_bytes: FILE_BYTES_MAX,
        }),
        false => Ok(Some(text)),
    }
}

const REVISION: u32 = 1;

/// Most tokens of a file. Chosen: a thousand answers, read in some 20 ms while kernels are prepared.
const TOKENS_MAX: usize = 1 << 16;

/// Most bytes of a file. Chosen: [`TOKENS_MAX`] answers of a token each, with the ends of their prompts.
const FILE_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn token_set() -> TokenSet {
        TokenSet::new("tokenizer", 100)
    }

    fn two() -> PastAnswers {
        let mut answers = PastAnswers::new(token_set());
        answers.add(&[1, 2, 3, 4, 5, 6], &[7, 8]);
        answers.add(&[9], &[10]);
        answers
    }

    #[test]
    fn a_file_gives_back_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.json");
        let read = || PastAnswers::read(&path, token_set());
        assert_eq!(read().unwrap(), PastAnswers::new(token_set()));
        two().write(&path).unwrap();
        assert_eq!(read().unwrap(), two());
        let mut more = read().unwrap();
        more.add(&[], &[11]);
        more.write(&path).unwrap();
        assert_eq!(read().unwrap().iter().count(), 3);
        // No file with another name is left over from writing.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let other = PastAnswers::read(&path, TokenSet::new("other", 100)).unwrap_err();
        assert_eq!(
            other.chain(),
            format!(
                "cannot use the history `{}`: its answers are in tokens of another tokenizer than the bundle's: use \
                 another file",
                path.display()
            )
        );
    }

    #[test]
    fn the_file_is_plain() {
        assert_eq!(
            two().to_text(),
            r#"{"revision":1,"tokenizer":"tokenizer","answers":[{"prompt_end":[3,4,5,6],"answer":[7,8]},{"prompt_end":[9],"answer":[10]}]}"#
        );
    }

    #[test]
    fn the_oldest_answers_make_room() {
        let mut answers = two();
        answers.add(&[], &vec![5; TOKENS_MAX + 1]);
        answers.add(&[], &[]);
        assert_eq!(answers, two());
        answers.add(&[], &vec![5; TOKENS_MAX - 2]);
        let kept: Vec<usize> = answers.iter().map(|past| past.answer.len()).collect();
        assert_eq!(kept, [1, TOKENS_MAX - 2]);
        assert!((answers.to_text().len() as u64) < FILE_BYTES_MAX);
    }

    #[test]
    fn what_is_no_history_is_refused() {
        let text = two().to_text();
        let refused = |text: &str| {
            let error = PastAnswers::parse(text.as_bytes(), token_set());
            error
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default()
        };
        for (text, expected) in [
            (
                String::new(),
                "it is no history of answers, which is JSON as `heg run --history` writes it: line 1, column 0",
            ),
            (
                text[..text.len() - 1].to_owned(),
                "it is no history of answers",
            ),
            ("[".repeat(10_000), "it is no history of answers"),
            (
                text.replace("answer\"", "more\""),
                "it is no history of answers",
            ),
            (
                text.replace("[7,8]", "[7,-8]"),
                "it is no history of answers",
            ),
            (
                text.replace("[7,8]", "[7,4294967296]"),
                "it is no history of answers",
            ),
            (
                text.replace("[7,8]", "[7,100]"),
                "it has token 100, and the vocabulary has 100",
            ),
            (text.replace(":1,", ":2,"), "it has revision 2, expected 1"),
        ] {
            let refused = refused(&text);
            assert!(refused.contains(expected), "{refused}");
        }
    }

    /// Reading a pipe never ends.
    #[cfg(unix)]
    #[test]
    fn only_files_are_read() {
        let error = PastAnswers::read(Path::new("/dev/zero"), token_set()).unwrap_err();
        assert!(error.chain().contains("expected a regular file"), "{error}");
    }
}
