//! A form: the kernel at one place, ready to run.

use heg_artifacts::manifest::{Elements, ShapeClass};

use crate::backend::Runner;
use crate::ladder::Rung;

/// One form of the kernel at one place, ready to run.
pub(crate) struct Form {
    pub(crate) rung: Rung,
    pub(crate) shape: ShapeClass,
    /// Element types at its ports.
    pub(crate) elements: Elements,
    /// The back end that runs it.
    pub(crate) backend: BackendIndex,
    pub(crate) runner: Box<dyn Runner>,
}

/// The index of a back end among those of a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackendIndex(pub(crate) usize);

impl Form {
    /// Rows that it computes for `tokens` tokens: the chunk of a static form, else as many as its back end takes.
    pub(crate) fn rows(&self, tokens: usize) -> usize {
        let chunk = self.shape.chunk();
        chunk.map_or_else(|| self.runner.rows(tokens), |chunk| chunk as usize)
    }

    /// Rows of the KV cache that it reads when `context` are visible: the bucket of a static form, else `context`.
    pub(crate) fn context(&self, context: usize) -> usize {
        let bucket = self.shape.bucket();
        bucket.map_or(context, |bucket| bucket as usize)
    }
}
