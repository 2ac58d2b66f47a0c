//! The errors of bundles and stores, as data.
//!
//! Variants hold the found and the expected value, never a finished sentence; the messages here are lower case, end
//! without a full stop and put backticks around values. Sources are chained, not flattened. Advice to the user is added
//! by the binary: it knows the command.

use std::fmt;
use std::io;
use std::path::PathBuf;

use heg_files::FileError;

use crate::content_id::SectionId;

/// The errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file does not begin with the magic of a bundle.
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
        /// The version number in question.
        part: BundlePart,
        /// The number in the file.
        found: u32,
        /// The newest version that this build reads.
        supported: u32,
    },

    /// The file is shorter than its header says, or than any bundle.
    #[error("the bundle is truncated: `{found}` bytes, expected `{expected}`")]
    Truncated {
        /// Length it should have, in bytes.
        expected: u64,
        /// Length of the file, in bytes.
        found: u64,
    },

    /// A mapped file was written to or changed its length.
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

    /// The file continues after its end.
    #[error("the bundle is too long: `{found}` bytes, expected `{expected}`")]
    TooLong {
        /// Length it should have, in bytes.
        expected: u64,
        /// Length of the file, in bytes.
        found: u64,
    },

    /// A number in the header is not one that a writer produces.
    #[error("the header says {field} `{found}`, expected {expected}")]
    Header {
        /// Name of the header field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The valid values.
        expected: String,
    },

    /// Bytes do not have the recorded hash.
    #[error("{part} is corrupt: its blake3 is `{found}`, expected `{expected}`")]
    Corrupt {
        /// The part of the bundle with these bytes.
        part: BundlePart,
        /// The recorded hash.
        expected: SectionId,
        /// Hash of the bytes.
        found: SectionId,
    },

    /// Padding is not zero.
    #[error(
        "the padding after {part} is corrupt: byte `{offset}` of the file is `{found:#04x}`, expected `0x00`"
    )]
    Padding {
        /// The part before the padding.
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
        /// The parser's message.
        message: String,
    },

    /// A manifest contradicts itself.
    #[error("the manifest is invalid: `{field}` is {found}, expected {expected}")]
    InvalidManifest {
        /// Path of the field, e.g. `layers[3].qkv.weights[0]`.
        field: String,
        /// The field's value.
        found: String,
        /// The valid values.
        expected: String,
    },

    /// The text of a CPU program does not parse.
    #[error(
        "the program of kernel `{kernel}` does not parse at line `{line}`, column `{column}`: {message}"
    )]
    Program {
        /// Name of the program's kernel.
        kernel: String,
        /// Line in the program, from 1.
        line: usize,
        /// Column in that line, from 1.
        column: usize,
        /// The parser's message.
        message: String,
    },

    /// A CPU program contradicts itself or does not fit its kernel.
    #[error(
        "the program of kernel `{kernel}` is invalid: `{field}` is {found}, expected {expected}"
    )]
    InvalidProgram {
        /// Name of the program's kernel.
        kernel: String,
        /// Path of the field, e.g. `steps[3].parts[0].weight`.
        field: String,
        /// The field's value.
        found: String,
        /// The valid values.
        expected: String,
    },

    /// A CPU program cannot be written as RON.
    #[error("a program cannot be written as RON")]
    EncodeProgram {
        /// Cause.
        #[source]
        source: ron::Error,
    },

    /// A manifest cannot be written as RON.
    #[error("the manifest cannot be written as RON")]
    EncodeManifest {
        /// Cause.
        #[source]
        source: ron::Error,
    },

    /// A manifest and its sections take more bytes than can be counted or held.
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

    /// The requested section does not exist.
    #[error("there is no section `{id}` in the {place}")]
    NoSuchSection {
        /// The requested section.
        id: SectionId,
        /// The searched place: `bundle` or `store`.
        place: &'static str,
    },

    /// A list of block values does not have the length that its manifest implies.
    #[error("the list of blocks has `{found}` bytes, expected `{expected}` for this manifest")]
    BlockList {
        /// Length that the manifest implies, in bytes.
        expected: u64,
        /// Length of the list, in bytes.
        found: u64,
    },

    /// A view of parts is not one that a store writes.
    #[error("line `{line}` of the view is `{found}`, expected {expected}")]
    View {
        /// Line, from 1.
        line: usize,
        /// The line, shortened.
        found: String,
        /// The valid lines.
        expected: &'static str,
    },

    /// A part of a view does not have the part's length.
    #[error("the part `{}` has `{found}` bytes, expected `{expected}`: fetch its bundle again", path.display())]
    PartLength {
        /// The part's file.
        path: PathBuf,
        /// Length that the view says, in bytes.
        expected: u64,
        /// Length of the file, in bytes.
        found: u64,
    },

    /// The store's object for a section does not have the section's length.
    #[error("the store holds `{found}` bytes as {part}, expected `{expected}`")]
    ObjectLength {
        /// The object.
        part: BundlePart,
        /// The recorded length, in bytes.
        expected: u64,
        /// Length of the object, in bytes.
        found: u64,
    },

    /// The store's object for a section has changed since it was put there.
    #[error(
        "the store's object for {part} has changed: its blake3 is `{found}`, expected `{expected}`; it has to be made again"
    )]
    ObjectChanged {
        /// The object.
        part: BundlePart,
        /// Its name, the expected hash.
        expected: SectionId,
        /// Hash of its content.
        found: SectionId,
    },

    /// A text is not an identifier.
    #[error("`{found}` is not an identifier: expected 64 lower-case hexadecimal digits")]
    InvalidId {
        /// The text, shortened.
        found: String,
    },

    /// A file or folder cannot be used.
    #[error(transparent)]
    File(FileError),

    /// The place where machines share their sections refused something, or cannot be reached.
    #[error("cannot {action} `{name}` of `{place}`")]
    SharedPlace {
        /// The attempted action, as a verb: `fetch`, `send`.
        action: &'static str,
        /// The file there.
        name: String,
        /// The place.
        place: String,
        /// Cause.
        #[source]
        source: io::Error,
    },

    /// The operating system refused something.
    #[error("cannot {action} `{}`", .path.display())]
    Io {
        /// The attempted action, as a verb: `open`, `write`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Cause.
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
    /// For `map_err`: attaches the attempted action and the path.
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

    /// Returns the error for a contradiction in a manifest.
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
        /// The section's use, for people: ``weight `model.norm.weight` values``.
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
