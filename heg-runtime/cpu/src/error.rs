//! The crate's error type.

use heg_spec::Bug;

/// An error of the CPU role.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// A program that does not fit its kernel: running it might access foreign memory.
    #[error("cannot run the program of kernel `{kernel}`")]
    Unchecked {
        /// The kernel.
        kernel: String,
        /// The violated rule.
        source: Box<heg_artifacts::Error>,
    },
    /// A program or option that this machine cannot run.
    #[error("{what}: expected {expected}, found {found}")]
    Program {
        /// The part that is wrong.
        what: String,
        /// Supported values.
        expected: &'static str,
        /// Value found.
        found: String,
    },
    /// A call whose rows or weights do not fit the program.
    #[error("{what} of a call: expected {expected}, found {found}")]
    Call {
        /// The part of the call.
        what: &'static str,
        /// Index of the part, for instance of a weight.
        index: usize,
        /// Required value.
        expected: usize,
        /// Value found.
        found: usize,
    },
    /// Memory for the scratch rows of a call cannot be allocated.
    #[error("no memory for {bytes} bytes of scratch rows")]
    Memory {
        /// Requested size.
        bytes: usize,
    },
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// A thread of the device panicked within a call, which is a bug; the device is unusable from then on.
    #[error("a thread of the CPU role panicked")]
    Lost,
    /// The partner of a pair may still write to the memory of a call: nothing of it can be used.
    #[error("the other device of the pair did not end")]
    Partner(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An invariant that a check elsewhere keeps was broken; rows that the call wrote are not to be used.
    #[error(transparent)]
    Bug(#[from] Bug),
}
