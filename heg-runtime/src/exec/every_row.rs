//! Logits of any rows of a pass, for scoring: generation needs those of last rows only.

use std::ops::Range;

use heg_spec::Group;

use super::{Batch, Executor};
use crate::error::RuntimeError;
use heg_sched::{Launch, Span};

impl Executor {
    /// Logits of rows of the last pass, a row of V each: `0..1` is the first token that the pass was given. At most
    /// [`ExecutorOptions::batch`](super::ExecutorOptions::batch) rows at a time.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Batch`] for more rows, or rows that no pass of this executor has.
    pub fn row_logits(&mut self, rows: Range<usize>) -> Result<&mut [f32], RuntimeError> {
        let limit = self.options.batch;
        if rows.is_empty() || rows.len() > limit || rows.end > self.rows {
            return Err(RuntimeError::Batch {
                asked: rows.len(),
                rows: limit,
            });
        }
        self.wait_ready()?;
        let count = rows.len();
        let single = |row| Span {
            row,
            tokens: 1,
            position: 0,
        };
        let spans: Vec<Span> = rows.map(single).collect();
        let activations = self.pass_rows();
        let batch = Batch {
            rows: &activations,
            caches: &[],
            spans: &spans,
            trees: &[],
        };
        let head = Launch {
            layer: None,
            group: Group::Head,
        };
        self.launch(head, &batch)?;
        self.logits(count)
    }
}
