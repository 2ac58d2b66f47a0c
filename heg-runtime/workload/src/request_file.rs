//! Request files: JSON Lines of prompts with their class, session and a reference answer.
//!
//! The fields read are `class` (`"reactive"` or `"proactive"`), `prompt`, `prompt_chars`, `reference`,
//! `reference_chars`, `session` and `turn`; all but `class` and one of the first two may be missing or null. Turns
//! of a session are consecutive. A request without a reference takes the length of the one before it that has one,
//! in the order of the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use thiserror::Error;

use heg_sched::Class;

/// Mean number of characters of a token. English prose and code in the vocabularies of Llama 3 and `cl100k_base`
/// are near this; counts of a real tokenizer differ by some 20% from request to request, and little on average.
const CHARS_PER_TOKEN: f64 = 4.2;

/// Number of tokens of an answer if a file has no reference at all. Chosen: about the mean of short answers.
const OUTPUT_TOKENS: u32 = 64;

/// The requests of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Name, e.g. that of the file without its extension.
    pub name: String,
    /// The requests, in the order of the file.
    pub requests: Vec<WorkloadRequest>,
}

/// A request without a time of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadRequest {
    /// Priority class.
    pub class: Class,
    /// The session to which the turn belongs.
    pub session: Option<String>,
    /// The prompt's text, if the file has it.
    pub prompt: Option<Arc<str>>,
    /// Number of tokens of the prompt.
    pub prompt_tokens: u32,
    /// Number of leading tokens shared with the previous turn and its answer.
    pub shared_tokens: u32,
    /// Number of tokens of the answer.
    pub output_tokens: u32,
}

/// The reason why a request file cannot be read.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// A line is not a request.
    #[error("{name}:{line}: {source}")]
    Line {
        /// The workload.
        name: String,
        /// Line, from 1.
        line: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A request has neither a prompt nor its length.
    #[error("{name}:{line}: expected `prompt` or `prompt_chars`")]
    NoPrompt {
        /// The workload.
        name: String,
        /// Line, from 1.
        line: usize,
    },
    /// A file or folder cannot be read.
    #[error("cannot read `{path}`")]
    Unreadable {
        /// Path of the file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A folder has no request files.
    #[error("`{path}` holds no request files, *.jsonl")]
    NoFiles {
        /// Path of the folder.
        path: PathBuf,
    },
}

#[derive(Deserialize)]
struct Line {
    class: Class,
    #[serde(default)]
    prompt: Option<String>,
    #[serde(default)]
    prompt_chars: Option<u64>,
    #[serde(default)]
    reference: Option<String>,
    #[serde(default)]
    reference_chars: Option<u64>,
    #[serde(default)]
    session: Option<String>,
}

impl Workload {
    /// Parses a request file, with token counts from the number of characters: one for each 4.2.
    ///
    /// Two turns of a session share the common prefix of their prompts or, without texts, the whole previous turn.
    pub fn parse(name: &str, text: &str) -> Result<Self, WorkloadError> {
        let tokens = |text: &str| tokens_of_chars(text.chars().count() as u64);
        Self::parse_with(name, text, tokens)
    }

    /// Parses a request file as [`Workload::parse`] does, with a tokenizer's token counts.
    pub fn parse_with(
        name: &str,
        text: &str,
        tokens: impl Fn(&str) -> u32,
    ) -> Result<Self, WorkloadError> {
        let mut requests: Vec<WorkloadRequest> = Vec::new();
        let mut before: Option<Line> = None;
        let mut output_tokens = OUTPUT_TOKENS;
        for (index, text) in text.lines().enumerate() {
            if text.trim().is_empty() {
                continue;
            }
            let (name, number) = (|| name.to_owned(), index + 1);
            let line: Line = serde_json::from_str(text).map_err(|source| WorkloadError::Line {
                name: name(),
                line: number,
                source,
            })?;
            let counted = line.prompt.as_deref().map(&tokens);
            let prompt_tokens = counted
                .or(line.prompt_chars.map(tokens_of_chars))
                .ok_or_else(|| WorkloadError::NoPrompt {
                    name: name(),
                    line: number,
                })?;
            let answer = line.reference.as_deref().map(&tokens);
            if let Some(found) = answer.or(line.reference_chars.map(tokens_of_chars)) {
                output_tokens = found.max(1);
            }
            let session = before
                .as_ref()
                .filter(|before| line.session.is_some() && before.session == line.session);
            let shared_tokens = session.zip(requests.last()).map_or(0, |(before, last)| {
                match (&before.prompt, &line.prompt) {
                    (Some(before), Some(now)) => tokens(common_prefix(before, now)),
                    _ => last.prompt_tokens,
                }
            });
            requests.push(WorkloadRequest {
                class: line.class,
                session: line.session.clone(),
                prompt: line.prompt.as_deref().map(Arc::from),
                prompt_tokens: prompt_tokens.max(1),
                shared_tokens: shared_tokens.min(prompt_tokens),
                output_tokens,
            });
            before = Some(line);
        }
        Ok(Self {
            name: name.to_owned(),
            requests,
        })
    }

    /// Reads the request files of a folder, `*.jsonl`, in the order of their names.
    pub fn read_folder(folder: &Path) -> Result<Vec<Self>, WorkloadError> {
        let unreadable = |path: &Path| {
            let path = path.to_owned();
            move |source| WorkloadError::Unreadable { path, source }
        };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable(folder))? {
            let path = entry.map_err(unreadable(folder))?.path();
            if path.extension().is_some_and(|ending| ending == "jsonl") {
                files.push(path);
            }
        }
        files.sort();
        if files.is_empty() {
            let path = folder.to_owned();
            return Err(WorkloadError::NoFiles { path });
        }
        let read = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).map_err(unreadable(path))?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            Self::parse(&name, &text)
        };
        files.iter().map(read).collect()
    }

    /// Returns the shipped sample: short requests of both classes, some of them in sessions.
    pub fn sample() -> Self {
        // A test parses it, so this does not fail.
        Self::parse("sample", include_str!("sample.jsonl")).unwrap_or(Self {
            name: "sample".to_owned(),
            requests: Vec::new(),
        })
    }
}

fn tokens_of_chars(chars: u64) -> u32 {
    // `as` saturates.
    (chars as f64 / CHARS_PER_TOKEN).ceil() as u32
}

fn common_prefix<'a>(one: &str, other: &'a str) -> &'a str {
    let both = one.char_indices().zip(other.char_indices());
    let different = both
        .skip_while(|((_, a), (_, b))| a == b)
        .map(|(_, (at, _))| at);
    let end = one.len().min(other.len());
    // If one text is a prefix of the other, the prefix ends at a character boundary of both.
    other
        .get(..different.into_iter().next().unwrap_or(end))
        .unwrap_or(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_whole() {
        let sample = Workload::sample();
        assert_eq!(sample.requests.len(), 40);
        let is = |class| move |r: &&WorkloadRequest| r.class == class;
        assert_eq!(
            sample.requests.iter().filter(is(Class::Reactive)).count(),
            20
        );
        assert!(sample.requests.iter().any(|r| r.shared_tokens > 0));
    }

    #[test]
    fn counts_come_from_text_or_from_its_length() {
        let text = concat!(
            r#"{"class":"reactive","prompt":"12345678","reference":"1234","session":"a","turn":0}"#,
            "\n\n",
            r#"{"class":"reactive","prompt":"123456789","reference":null,"session":"a","turn":1}"#,
            "\n",
            r#"{"class":"proactive","prompt_chars":420,"reference_chars":42}"#,
        );
        let workload = Workload::parse("x", text).unwrap();
        let counts = workload
            .requests
            .iter()
            .map(|r| (r.prompt_tokens, r.shared_tokens, r.output_tokens));
        assert_eq!(
            counts.collect::<Vec<_>>(),
            [(2, 0, 1), (3, 2, 1), (100, 0, 10)]
        );
        let exact = Workload::parse_with("x", text, |text| text.len() as u32).unwrap();
        assert_eq!(exact.requests[1].shared_tokens, 8);
    }

    #[test]
    fn what_is_no_request_is_named_by_its_line() {
        let error = |text| Workload::parse("file", text).unwrap_err().to_string();
        assert!(error("{\"class\":\"reactive\",\"prompt\":\"x\"}\n[").starts_with("file:2: "));
        assert!(error("{\"class\":\"lazy\",\"prompt\":\"x\"}").contains("unknown variant `lazy`"));
        let message = error("{\"class\":\"reactive\"}");
        assert_eq!(message, "file:1: expected `prompt` or `prompt_chars`");
    }
}
