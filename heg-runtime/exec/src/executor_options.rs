//! Options of an executor, and how far kernels let them go.

use crate::ladder::Calls;
use heg_sched::Switching;

/// Options of an executor.
#[derive(Debug, Clone, Copy)]
pub struct ExecutorOptions {
    /// Largest number of tokens in a prefill chunk.
    pub chunk_tokens: usize,
    /// Largest number of sequences in a decode batch.
    pub batch: usize,
    /// Threads that prepare kernels.
    pub loader_threads: usize,
    /// The way of switching kernels that contain their weights between prompts and verification.
    pub switching: Switching,
}

impl Default for ExecutorOptions {
    /// 256 tokens is the chunk of the papers; 32 is the largest decode batch of Agent.xpu §4.5.
    fn default() -> Self {
        Self {
            chunk_tokens: 256,
            batch: 32,
            loader_threads: 2,
            switching: Switching::Resident,
        }
    }
}

impl ExecutorOptions {
    /// The options as far as kernels take such calls.
    pub(crate) fn within(self, most: Calls) -> Self {
        Self {
            chunk_tokens: self.chunk_tokens.clamp(1, most.tokens),
            batch: self.batch.clamp(1, most.tokens.min(most.rows)),
            ..self
        }
    }
}
