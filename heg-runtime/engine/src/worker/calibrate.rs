//! Finds the tokens that are likely after rows of prompts, while the lane is idle.

use super::Worker;
use crate::calibration::Slice;
use crate::error::EngineError;
use heg_draft::Likely;
use heg_exec::Batch;
use heg_sched::{Class, Launch, Span, WorkStage};
use heg_text::log_probabilities;

/// Rows that the head takes at a time: on CPUs this is hardly slower than one, and a request waits for no longer.
const HEAD_ROWS: usize = 8;

impl Worker {
    /// Returns the tokens that the model finds likely after each row of a slice; of fewer rows if a request wants the
    /// lane, and of none if a graph has to be loaded first.
    pub(super) fn calibrate(&mut self, slice: &Slice) -> Result<Vec<Likely>, EngineError> {
        self.executor.begin(Class::Proactive, &[]);
        self.stopwatch.start();
        let mut likely = Vec::new();
        let last = self.executor.layers().saturating_sub(1);
        let span = Span {
            row: 0,
            tokens: slice.segment.tokens as usize,
            position: slice.segment.position as usize,
        };
        let first = slice.prompt.row_of(slice.segment.position);
        let rows = &slice.room;
        rows.take(&slice.prompt.rows, last as usize, (first, span.tokens))?;
        let order = self.executor.order(WorkStage::Prefill);
        for kernel in order.behind_cache() {
            let launch = Launch {
                layer: Some(last),
                group: kernel.into(),
            };
            if self.signals.is_wanted() || !self.executor.is_at_hand(launch) {
                return Ok(likely);
            }
            let batch = Batch {
                rows,
                caches: &[&slice.cache],
                spans: &[span],
                trees: &[],
            };
            self.launch(launch, &batch)?;
        }
        let single = |at| Span {
            row: at,
            tokens: 1,
            position: span.position + at,
        };
        let spans: Vec<Span> = (0..span.tokens).map(single).collect();
        for spans in spans.chunks(self.executor.head_rows().clamp(1, HEAD_ROWS)) {
            if self.signals.is_wanted() {
                break;
            }
            likely.extend(self.run_head(rows, spans)?.map(likely_of));
        }
        Ok(likely)
    }
}

/// Returns the likeliest tokens of a row of logits.
fn likely_of(logits: &[f32]) -> Likely {
    let best = log_probabilities(logits, 0, Likely::COUNT).top;
    let best = best.iter();
    Likely::new(best.map(|one| (one.token, one.log_probability.exp())))
}
