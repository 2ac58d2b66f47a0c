//! A model that is fed the tokens of a passage, whatever it would have chosen.

use std::ops::Range;

use super::Passage;
use crate::error::RuntimeError;
use heg_exec::ExecError;
use heg_exec::{Executor, Sequence};
use heg_sched::Logits;

/// The method by which the rows of a passage are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// All tokens in chunks, as in the prefill of a prompt.
    Prefill,
    /// The tokens before the scored ones as a prompt, and then one token a step, as an answer is decoded.
    Decode,
}

/// A model's run over one passage. [`ready`](Self::ready) says how many rows of logits can be had,
/// [`logits`](Self::logits) returns them.
pub struct Teacher<'a> {
    executor: &'a mut Executor,
    passage: &'a Passage,
    rows: RowKind,
    sequence: Sequence,
    /// Position of the token that the next row predicts.
    next: usize,
    /// Rows of the last pass that predict scored tokens and were not returned yet.
    left: Range<usize>,
}

impl<'a> Teacher<'a> {
    /// Begins a passage.
    ///
    /// # Errors
    ///
    /// [`ExecError::Reserve`] if there is no address range for its KV cache.
    pub fn new(
        executor: &'a mut Executor,
        passage: &'a Passage,
        rows: RowKind,
    ) -> Result<Self, RuntimeError> {
        Ok(Self {
            sequence: executor.sequence()?,
            executor,
            passage,
            rows,
            next: passage.from(),
            left: 0..0,
        })
    }

    /// Returns the number of rows that [`logits`](Self::logits) can return now; runs the model further if none is
    /// left. `None` at the end of the passage.
    ///
    /// # Errors
    ///
    /// Errors of running the model.
    pub fn ready(&mut self) -> Result<Option<usize>, RuntimeError> {
        while self.left.is_empty() {
            // The last token predicts nothing that is scored.
            let read = self.passage.tokens().len() - 1;
            let fed = self.sequence.tokens();
            if fed >= read {
                return Ok(None);
            }
            let prompt = self.passage.from();
            let end = match self.rows {
                RowKind::Decode if fed < prompt => prompt,
                RowKind::Decode => fed + 1,
                RowKind::Prefill => read,
            };
            let end = end.min(fed + self.executor.options().chunk_tokens);
            let tokens = &self.passage.tokens()[fed..end];
            self.executor
                .prefill(&mut self.sequence, tokens, Logits::None)?;
            // The token at position p predicts the one at p + 1.
            let first = prompt.saturating_sub(fed + 1).min(end - fed);
            self.left = first..end - fed;
        }
        Ok(Some(self.left.len().min(self.executor.options().batch)))
    }

    /// Returns the tokens that the next `count` rows predict.
    pub fn targets(&self, count: usize) -> &'a [u32] {
        let end = (self.next + count).min(self.passage.tokens().len());
        &self.passage.tokens()[self.next..end]
    }

    /// Logits of the next `count` rows, a row of V each; `count` is at most what [`ready`](Self::ready) said.
    ///
    /// # Errors
    ///
    /// [`ExecError::Batch`] for more rows; errors of running the head.
    pub fn logits(&mut self, count: usize) -> Result<&[f32], RuntimeError> {
        if count > self.left.len() {
            return Err(ExecError::Batch {
                asked: count,
                rows: self.left.len(),
            }
            .into());
        }
        let rows = self.left.start..self.left.start + count;
        self.left.start = rows.end;
        self.next += count;
        Ok(self.executor.row_logits(rows)?)
    }
}
