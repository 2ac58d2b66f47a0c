//! The file of `--history`: answers of earlier runs to draft from, to which this run's answer is added.

use std::path::Path;

use heg_runtime::history::{PastAnswers, TokenSet};
use heg_runtime::{Loaded, RuntimeError};

/// A file of answers, with its contents.
pub(super) struct HistoryFile<'a> {
    path: &'a Path,
    answers: PastAnswers,
}

impl<'a> HistoryFile<'a> {
    /// Reads a file, which need not exist yet.
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
        Ok(self.answers.write(self.path)?)
    }
}
