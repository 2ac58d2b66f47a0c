//! The reasons why confined work has no result.

use heg_text::TextError;

/// The reason why a prompt has no tokens, or a form no grammar.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Confined {
    /// The input was refused, or exceeded a limit.
    #[error(transparent)]
    Refused(#[from] TextError),
    /// The sender's deadline has passed.
    #[error("the deadline passed")]
    Deadline,
    /// The sender is gone.
    #[error("the sender is gone")]
    Gone,
    /// The worker could not be started, or ended for a reason other than the input.
    #[error("the text worker is not there: {why}")]
    Lost {
        /// The system's reason.
        why: String,
    },
}

impl Confined {
    /// Returns the error of a failed system call.
    pub(crate) fn lost(error: impl std::fmt::Display) -> Self {
        Self::Lost {
            why: error.to_string(),
        }
    }
}
