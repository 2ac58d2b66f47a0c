//! Why kept state cannot be used, and why a prompt found nothing of it.

use std::io;

use heg_files::FileError;

use crate::page::PageError;

/// Reasons why a folder of kept state cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Other users could read or change it.
    #[error(transparent)]
    Folder(#[from] FileError),
    /// The operating system refused something.
    #[error("cannot use the folder of kept state")]
    Io(#[from] io::Error),
    /// Another process works on the folder for longer than anyone should.
    #[error("another process has the folder of kept state locked: try again when it has ended")]
    Busy,
}

/// The reason why a prefix that was to be read is computed instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Miss {
    /// The page was given up meanwhile, or removed.
    #[error("page {index} is gone")]
    Gone {
        /// Number of the page in its prompt.
        index: u64,
    },
    /// The page is no page, or cut short.
    #[error("page {index} is damaged")]
    Damaged {
        /// Number of the page in its prompt.
        index: u64,
        /// What is wrong.
        source: PageError,
    },
    /// The content of the page is not what was written.
    #[error("page {index} is damaged: its seal does not fit its content")]
    Seal {
        /// Number of the page in its prompt.
        index: u64,
    },
    /// The page says that it is another one.
    #[error("page {index} has another head than the one asked for")]
    Other {
        /// Number of the page in its prompt.
        index: u64,
    },
    /// The file cannot be read.
    #[error("page {index} cannot be read")]
    Unread {
        /// Number of the page in its prompt.
        index: u64,
        /// The cause.
        source: io::Error,
    },
    /// The bundle that the page is a part of says that its bytes are others.
    #[error("page {index} of a baked state is damaged")]
    Section {
        /// Number of the page in its prompt.
        index: u64,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There was no room for its content.
    #[error("page {index} does not fit the cache")]
    Room {
        /// Number of the page in its prompt.
        index: u64,
    },
}

impl Miss {
    /// Number of the page in its prompt.
    pub fn index(&self) -> u64 {
        match self {
            Self::Gone { index }
            | Self::Damaged { index, .. }
            | Self::Seal { index }
            | Self::Other { index }
            | Self::Unread { index, .. }
            | Self::Section { index, .. }
            | Self::Room { index } => *index,
        }
    }

    /// A word for the kind of miss, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Gone { .. } => "gone",
            Self::Damaged { .. }
            | Self::Seal { .. }
            | Self::Other { .. }
            | Self::Section { .. } => "damaged",
            Self::Unread { .. } | Self::Room { .. } => "unread",
        }
    }

    /// Whether the page's file is of no use to anyone.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. } | Self::Seal { .. } | Self::Other { .. }
        )
    }
}
