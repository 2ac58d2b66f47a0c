//! The crate's error type.

/// An error of the software NPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SoftNpuError {
    /// A setting that means nothing.
    #[error("environment variable `{name}` is `{found}`, expected {expected}")]
    Setting {
        /// The variable.
        name: String,
        /// Its value, or the part that means nothing.
        found: String,
        /// Values that mean something.
        expected: String,
    },
    /// Bytes that are no blob.
    #[error("{part} of the blob: expected {expected}, found {found}")]
    Blob {
        /// The part that is wrong.
        part: &'static str,
        /// Values that a blob has there.
        expected: String,
        /// Value found.
        found: String,
    },
    /// A blob that no bundle has.
    #[error(
        "a blob of `{name}` with {bytes} bytes is in none of the {bundles} bundles of `SOFT_NPU_BUNDLES`"
    )]
    Unknown {
        /// The network's name in the blob.
        name: String,
        /// Length of the blob.
        bytes: usize,
        /// Number of bundles that were searched.
        bundles: usize,
    },
    /// A kernel that has no program for the CPU.
    #[error("kernel `{kernel}` has no CPU program to compute it with")]
    NoProgram {
        /// The kernel.
        kernel: String,
    },
    /// A port that differs between the blob and the bundle's kernel.
    #[error("port {port} of `{kernel}`: the kernel has {expected}, the blob has {found}")]
    Port {
        /// The kernel.
        kernel: String,
        /// Index of the port.
        port: usize,
        /// The port as the bundle describes it.
        expected: String,
        /// The port as the blob describes it.
        found: String,
    },
    /// A bundle that cannot be read.
    #[error("cannot read the bundle `{path}`")]
    Bundle {
        /// Path of the bundle.
        path: String,
        /// The reason.
        source: heg_artifacts::Error,
    },
    /// A program that fails.
    #[error("cannot compute kernel `{kernel}`")]
    Compute {
        /// The kernel.
        kernel: String,
        /// The reason.
        source: heg_cpu::CpuError,
    },
}
