//! Everything that can go wrong with bundles and stores, as data.
//!
//! Variants hold what was found and what was expected, never a finished sentence; the messages here are
//! lower case, end without a full stop and put backticks around values. Sources are chained, not
//! flattened. What a user should do about an error is for the binary to say: it knows the command.

use std::fmt;
use std::io;
use std::path::PathBuf;

use heg_files::FileError;

use crate::content_id::SectionId;

/// What this crate returns instead of panicking.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file begins with something else than the magic of a bundle.
    #[error("not a HEG bundle: the file begins with `{}`, expected `{}`", .found.escape_ascii(), .expected.escape_ascii())]
    NotABundle {
        /// First bytes of the file, at most as many as expected.
        found: Vec<u8>,
        /// The magic.
        expected: &'static [u8],
    },

    /// A newer compiler wrote this.
    #[error("{part} `{found}` is too new: this program reads up to `{supported}`")]
    TooNew {
        /// Which version number it is.
        part: BundlePart,
        /// The number in the file.
        found: u32,
        /// The newest that is understood.
        supported: u32,
    },

    /// The file is shorter than it says, or than any bundle is.
    #[error("the bundle is truncated: `{found}` bytes, expected `{expected}`")]
    Truncated {
        /// Length it should have, in bytes.
        expected: u64,
        /// Length of the file, in bytes.
        found: u64,
    },

    /// A mapped file was written to, or is shorter or longer than it was.
    #[error(
        "`{}` was written to in place: it had `{mapped}` bytes and has `{found}` now", path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its length when it was mapped, in bytes.
        mapped: u64,
        /// Its length now, in bytes.
        found: u64,
    },

    /// The file goes on behind its end.
    #[error("the bundle is too long: `{found}` bytes, expected `{expected}`")]
    TooLong {
        /// Length it should have, in bytes.
        expected: u64,
        /// Length of the file, in bytes.
        found: u64,
    },

    /// A number in the header is not one a writer would have put there.
    #[error("the header says {field} `{found}`, expected {expected}")]
    Header {
        /// Which number.
        field: &'static str,
        /// Its value.
        found: u64,
        /// Values that would do.
        expected: String,
    },

    /// Bytes do not have the hash they should have.
    #[error("{part} is corrupt: its blake3 is `{found}`, expected `{expected}`")]
    Corrupt {
        /// What the bytes are.
        part: BundlePart,
        /// Hash that is recorded.
        expected: SectionId,
        /// Hash of the bytes.
        found: SectionId,
    },

    /// Padding holds something.
    #[error(
        "the padding after {part} is corrupt: byte `{offset}` of the file is `{found:#04x}`, expected `0x00`"
    )]
    Padding {
        /// What the padding belongs to.
        part: BundlePart,
        /// Position in the file, in bytes.
        offset: u64,
        /// The byte.
        found: u8,
    },

    /// The manifest's text does not parse. Its hash is right, so its writer is to blame.
    #[error("the manifest does not parse at line `{line}`, column `{column}`: {message}")]
    Manifest {
        /// Line in the manifest, from 1.
        line: usize,
        /// Column in that line, from 1.
        column: usize,
        /// What the parser says.
        message: String,
    },

    /// A manifest contradicts itself.
    #[error("the manifest is invalid: `{field}` is {found}, expected {expected}")]
    InvalidManifest {
        /// Path of the field, e.g. `layers[3].qkv.weights[0]`.
        field: String,
        /// What it is.
        found: String,
        /// What would do.
        expected: String,
    },

    /// The text of a CPU program does not parse.
    #[error(
        "the program of kernel `{kernel}` does not parse at line `{line}`, column `{column}`: {message}"
    )]
    Program {
        /// The kernel that it is for.
        kernel: String,
        /// Line in the program, from 1.
        line: usize,
        /// Column in that line, from 1.
        column: usize,
        /// What the parser says.
        message: String,
    },

    /// A CPU program contradicts itself or its kernel.
    #[error(
        "the program of kernel `{kernel}` is invalid: `{field}` is {found}, expected {expected}"
    )]
    InvalidProgram {
        /// The kernel that it is for.
        kernel: String,
        /// Path of the field, e.g. `steps[3].parts[0].weight`.
        field: String,
        /// What it is.
        found: String,
        /// What would do.
        expected: String,
    },

    /// A CPU program has no RON text.
    #[error("a program cannot be written as RON")]
    EncodeProgram {
        /// Why.
        #[source]
        source: ron::Error,
    },

    /// A manifest has no RON text.
    #[error("the manifest cannot be written as RON")]
    EncodeManifest {
        /// Why.
        #[source]
        source: ron::Error,
    },

    /// A manifest and its sections come to more bytes than can be counted or held.
    #[error(
        "the bundle is too large: {what} has `{found}` bytes, at most `{supported}` are possible"
    )]
    TooLarge {
        /// The part that is too large.
        what: &'static str,
        /// Its length in bytes; `u64::MAX` if that cannot be counted.
        found: u64,
        /// The limit in bytes.
        supported: u64,
    },

    /// Asked for a section that is not there.
    #[error("there is no section `{id}` in the {place}")]
    NoSuchSection {
        /// Which section.
        id: SectionId,
        /// Where it was looked for: `bundle` or `store`.
        place: &'static str,
    },

    /// The store's object for a section has another length than the section.
    #[error("the store holds `{found}` bytes as {part}, expected `{expected}`")]
    ObjectLength {
        /// What the object is.
        part: BundlePart,
        /// Length that is recorded, in bytes.
        expected: u64,
        /// Length of the object, in bytes.
        found: u64,
    },

    /// The store's object for a section is not what was put there.
    #[error(
        "the store's object for {part} has changed: its blake3 is `{found}`, expected `{expected}`; it has to be made again"
    )]
    ObjectChanged {
        /// What the object is.
        part: BundlePart,
        /// Its name.
        expected: SectionId,
        /// Hash of what it holds.
        found: SectionId,
    },

    /// A text is not an identifier.
    #[error("`{found}` is not an identifier: expected 64 lower-case hexadecimal digits")]
    InvalidId {
        /// The text, shortened.
        found: String,
    },

    /// A file or folder is not such that it can be used.
    #[error(transparent)]
    File(FileError),

    /// The operating system refused something.
    #[error("cannot {action} `{}`", .path.display())]
    Io {
        /// What was to be done, as a verb: `open`, `write`.
        action: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io {
                action,
                path,
                source,
            } => Self::Io {
                action,
                path,
                source,
            },
            refused => Self::File(refused),
        }
    }
}

impl Error {
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

    /// A contradiction in a manifest.
    pub(crate) fn invalid(
        field: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::InvalidManifest {
            field: field.into(),
            found: found.into(),
            expected: expected.into(),
        }
    }
}

/// A piece of a bundle, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BundlePart {
    /// The fields at the start of the file.
    Header,
    /// The format version in the header.
    FormatVersion,
    /// The revision in the manifest.
    ManifestRevision,
    /// The manifest's text.
    Manifest,
    /// A section.
    Section {
        /// Its name.
        id: SectionId,
        /// Who uses it, for people: ``weight `model.norm.weight` values``.
        label: String,
    },
}

impl fmt::Display for BundlePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("the header"),
            Self::FormatVersion => f.write_str("format version"),
            Self::ManifestRevision => f.write_str("manifest revision"),
            Self::Manifest => f.write_str("the manifest"),
            Self::Section { id, label } => write!(f, "section `{}` ({label})", id.short()),
        }
    }
}
