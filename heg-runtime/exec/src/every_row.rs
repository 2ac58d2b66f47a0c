//! Logits of any rows of a pass, for scoring: generation needs only those of last rows.

use std::ops::Range;

use heg_spec::Group;

use super::batch::Batch;
use super::executor::Executor;
use crate::error::ExecError;
use heg_sched::{Launch, Span};

impl Executor {
    /// Returns the logits of rows of the last pass, V values per row: `0..1` is the first token of the pass. At
    /// most [`ExecutorOptions::batch`](super::ExecutorOptions::batch) rows at a time.
    ///
    /// # Errors
    ///
    /// [`ExecError::Batch`] for more rows, or rows that the last pass does not have.
    pub fn row_logits(&mut self, rows: Range<usize>) -> Result<&mut [f32], ExecError> {
        let limit = self.options.batch;
        if rows.is_empty() || rows.len() > limit || rows.end > self.rows {
            return Err(ExecError::Batch {
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
