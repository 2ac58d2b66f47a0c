//! Why a file or folder cannot be used.

use std::io;
use std::path::PathBuf;

/// What this crate returns.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Somebody else owns it, and could change it while it is used.
    #[error(
        "`{}` belongs to user {found}, expected {expected}: use another place, or `chown` it",
        path.display()
    )]
    Owner {
        /// The file or folder.
        path: PathBuf,
        /// Number of the user who owns it.
        found: u32,
        /// Who may own it.
        expected: String,
    },

    /// Users besides its owner may write there.
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

    /// Something else has the name.
    #[error("`{}` is {found}, expected {expected}", path.display())]
    Kind {
        /// The file or folder.
        path: PathBuf,
        /// What it is.
        found: &'static str,
        /// What it has to be.
        expected: &'static str,
    },

    /// The file is longer than any of its kind.
    #[error("`{}` has more than {most_bytes} bytes, expected at most so many: remove it", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Length of the longest file that is read.
        most_bytes: u64,
    },

    /// Links that lead in a circle, or as good as.
    #[error("`{}` leads through more than {most} symbolic links", path.display())]
    Links {
        /// The path.
        path: PathBuf,
        /// Links that are followed.
        most: usize,
    },

    /// The operating system refused something.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was to be done, as a verb.
        action: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl FileError {
    /// Whether there is nothing at the path.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// For `map_err`: attaches what was tried, and on what.
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
