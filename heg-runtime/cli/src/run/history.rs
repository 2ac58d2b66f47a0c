//! The file of `--history`: answers of earlier runs to draft from, and this run's added to them.

use std::path::Path;

use heg_runtime::history::{PastAnswers, TokenSet};
use heg_runtime::{Loaded, RuntimeError};

/// A file of answers, and what it holds.
pub(super) struct HistoryFile<'a> {
    path: &'a Path,
    answers: PastAnswers,
}

impl<'a> HistoryFile<'a> {
    /// Reads a file; it need not be there yet.
    pub(super) fn read(path: &'a Path, loaded: &Loaded) -> Result<Self, RuntimeError> {
        let answers = PastAnswers::read(path, TokenSet::of(loaded.bundle()))?;
        Ok(Self { path, answers })
    }

    pub(super) fn answers(&self) -> &PastAnswers {
        &self.answers
    }

    /// Writes the file with one more answer.
    pub(super) fn add(mut self, prompt: &[u32], answer: &[u32]) -> Result<(), RuntimeError> {
        self.answers.add(prompt, answer);
        self.answers.write(self.path)
    }
}
