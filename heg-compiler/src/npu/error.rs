//! Errors on the way from an IR to its NPU blob.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use heg_spec::NpuPlatform;
use thiserror::Error;

use super::toolchain::Absent;

/// Reasons why an NPU blob cannot be made. Variants that name a job concern that job only.
#[derive(Debug, Clone, Error)]
pub enum NpuError {
    /// No toolchain was found.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// A worker failed to start, twice in a row.
    #[error("the NPU toolchain `{toolchain}` does not work: {message}")]
    Unusable {
        /// Provider and location.
        toolchain: String,
        /// The worker's message.
        message: String,
    },
    /// The IR has constant weights.
    #[error("IR of `{job}` refers to weights as `@{reference}`, expected weights as inputs")]
    ConstantWeights {
        /// The job.
        job: String,
        /// The text after the `@`.
        reference: String,
    },
    /// The IR refers to literals that do not exist.
    #[error(
        "IR of `{job}` refers to `{size}` bytes at `@{reference}`, expected a part of {pool_bytes} bytes"
    )]
    Literal {
        /// The job.
        job: String,
        /// The text after the `@`.
        reference: String,
        /// The constant's `size`, empty if it has none.
        size: String,
        /// Length of the pool.
        pool_bytes: usize,
    },
    /// OpenVINO refuses the IR, or its compiler does.
    #[error("`{job}` does not compile for NPU {platform}: {message}")]
    Refused {
        /// The job.
        job: String,
        /// The target NPU.
        platform: NpuPlatform,
        /// OpenVINO's words.
        message: String,
    },
    /// The compiler did not finish in time, and was killed.
    #[error("`{job}` for NPU {platform} was given up after {} s", limit.as_secs())]
    TimedOut {
        /// The job.
        job: String,
        /// The target NPU.
        platform: NpuPlatform,
        /// The time limit.
        limit: Duration,
    },
    /// The worker died or gave an invalid answer, twice, each time in a fresh process.
    #[error("the compiler crashed twice over `{job}` for NPU {platform}: {message}")]
    Crashed {
        /// The job.
        job: String,
        /// The target NPU.
        platform: NpuPlatform,
        /// The end of the process, and its last output.
        message: String,
    },
    /// A file exchanged with workers could not be read or written.
    #[error("cannot {action} `{path}`", path = path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        source: Arc<std::io::Error>,
    },
}

impl NpuError {
    /// Wraps an I/O error, for `map_err`.
    pub(super) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source: Arc::new(source),
        }
    }
}
