//! Why a call cannot run.

/// An error of the CPU role.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program that is not one of its kernel: running it might leave its memory.
    #[error("the program of kernel `{kernel}`")]
    Unchecked {
        /// The kernel.
        kernel: String,
        /// What is wrong with it.
        source: Box<heg_artifacts::Error>,
    },
    /// A program that cannot run here.
    #[error("{what}: expected {expected}, found {found}")]
    Program {
        /// The part of it.
        what: String,
        /// What this device can run.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// A call whose rows or weights do not fit the program.
    #[error("{what} of a call: expected {expected}, found {found}")]
    Call {
        /// The part of the call.
        what: &'static str,
        /// Its number among those of its kind.
        index: usize,
        /// What the program needs.
        expected: usize,
        /// What was found.
        found: usize,
    },
    /// There is no memory for the scratch rows of a call.
    #[error("no memory for {bytes} bytes of scratch rows")]
    Memory {
        /// What was asked for.
        bytes: usize,
    },
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// A thread of the device ended within a call, which is a bug; the device cannot be used any more.
    #[error("a thread of the CPU role panicked")]
    Lost,
}
