//! Errors of files and folders.

use std::io;
use std::path::PathBuf;

/// Reasons why a file or folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Another user owns it and could change it while it is in use.
    #[error(
        "`{}` belongs to user {found}, expected {expected}: use another place, or `chown` it",
        path.display()
    )]
    Owner {
        /// The file or folder.
        path: PathBuf,
        /// Number of the user who owns it.
        found: u32,
        /// Users who may own it.
        expected: String,
    },

    /// Users other than its owner may write there.
    #[error(
        "other users can write to `{}` (mode {mode:04o}), expected its owner only: run `chmod go-w` on it, or use \
         another place",
        path.display()
    )]
    Writable {
        /// The file or folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },

    /// It is a regular file, a folder, or something else, and not of the required kind.
    #[error("`{}` is {found}, expected {expected}", path.display())]
    Kind {
        /// The file or folder.
        path: PathBuf,
        /// Its kind.
        found: &'static str,
        /// The required kind.
        expected: &'static str,
    },

    /// The file is longer than the limit for its kind.
    #[error("`{}` has more than {most_bytes} bytes, expected at most so many: remove it", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Length of the longest file that is read, in bytes.
        most_bytes: u64,
    },

    /// Too many links, or links in a circle.
    #[error("`{}` leads through more than {most} symbolic links", path.display())]
    Links {
        /// The path.
        path: PathBuf,
        /// Number of links that are followed.
        most: usize,
    },

    /// The operating system refused something.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

impl FileError {
    /// Whether there is nothing at the path.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// For `map_err`: attaches the action and the path.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
