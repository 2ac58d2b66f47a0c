//! What can go wrong between an IR and its NPU blob.

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
    /// A worker does not start, twice in a row.
    #[error("the NPU toolchain `{toolchain}` does not work: {message}")]
    Unusable {
        /// Provider and place.
        toolchain: String,
        /// What it said.
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
    /// The IR refers to literals that are not there.
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
        /// For which NPU.
        platform: NpuPlatform,
        /// OpenVINO's words.
        message: String,
    },
    /// The compiler did not come to an end, and was killed.
    #[error("`{job}` for NPU {platform} was given up after {} s", limit.as_secs())]
    TimedOut {
        /// The job.
        job: String,
        /// For which NPU.
        platform: NpuPlatform,
        /// How long it had.
        limit: Duration,
    },
    /// The worker died or spoke nonsense, twice, each time in a fresh process.
    #[error("the compiler crashed twice over `{job}` for NPU {platform}: {message}")]
    Crashed {
        /// The job.
        job: String,
        /// For which NPU.
        platform: NpuPlatform,
        /// How the process ended and the last it said.
        message: String,
    },
    /// A file of the exchange with workers could not be read or written.
    #[error("cannot {action} `{path}`", path = path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Which file.
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
