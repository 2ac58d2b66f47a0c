//! Reasons why a bundle did not arrive, leave or open, as data.

use std::io;
use std::path::PathBuf;

use heg_artifacts::SectionId;
use heg_files::FileError;
use heg_trust::TrustError;

/// The errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShipError {
    /// A text is not the name of a bundle.
    #[error("`{found}` is not a name: expected {expected}")]
    Name {
        /// The text, shortened.
        found: String,
        /// The valid texts.
        expected: &'static str,
    },

    /// The store has no bundle of that name.
    #[error(
        "`{name}` is not in the store: `heg pull {name}` fetches it, `heg list` shows what is here"
    )]
    NotHere {
        /// The requested name.
        name: String,
    },

    /// A short name fits several of the store.
    #[error("`{name}` may be any of {found}: give the whole name")]
    Ambiguous {
        /// The requested name.
        name: String,
        /// Names that it fits.
        found: String,
    },

    /// There is no earlier release of a name to go back to.
    #[error("there is no earlier bundle of `{name}` in the store to go back to")]
    NothingBefore {
        /// The name.
        name: String,
    },

    /// The policy of this machine refuses the bundle.
    #[error("`{name}` is refused")]
    Refused {
        /// The name.
        name: String,
        /// The reason.
        #[source]
        source: TrustError,
    },

    /// The policy or a statement cannot be read.
    #[error("cannot use `{}`", path.display())]
    TrustFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: TrustError,
    },

    /// A document of a registry, a folder or the store is not one that is written.
    #[error("{document} at `{place}` is invalid: {message}")]
    Document {
        /// Kind of the document.
        document: &'static str,
        /// Place where it was found.
        place: String,
        /// The reason: expected and found.
        message: String,
    },

    /// A place does not have what was asked for.
    #[error("there is no {what} at `{place}`")]
    Missing {
        /// Kind and name of the missing thing.
        what: String,
        /// The searched place.
        place: String,
    },

    /// No slice is for the wanted kind of device.
    #[error("`{name}` has no slice `{expected}`, only {found}: choose one with `--slice`")]
    NoSlice {
        /// The name.
        name: String,
        /// The wanted slice.
        expected: String,
        /// Slices that there are.
        found: String,
    },

    /// The head is that of another bundle than the statement names.
    #[error("`{place}` has bundle `{}` under the name of `{}`", .found.short(), .expected.short())]
    OtherBundle {
        /// The place.
        place: String,
        /// Bundle that was named.
        expected: SectionId,
        /// Bundle that is there.
        found: SectionId,
    },

    /// Bytes do not have their hash, at every try.
    #[error(
        "`{place}` has wrong bytes for {section} of part `{part}`, `{tries}` times: nothing of them was kept"
    )]
    WrongBytes {
        /// The place.
        place: String,
        /// Name of the part.
        part: String,
        /// Use of the section.
        section: String,
        /// Number of tries.
        tries: u32,
    },

    /// A transfer broke off and did not go on.
    #[error(
        "the transfer broke off: {percent}% of `{name}` is here, run the command again to go on"
    )]
    Interrupted {
        /// The name.
        name: String,
        /// Share of the bundle that is in the store or in partial files.
        percent: u64,
        /// The last error.
        #[source]
        source: Box<ShipError>,
    },

    /// A request was not answered.
    #[error("no answer from `{url}`")]
    NoAnswer {
        /// The request's address.
        url: String,
        /// Cause.
        #[source]
        source: Box<ureq::Error>,
    },

    /// A server answered with another status.
    #[error("`{url}` answered {status}, expected {expected}{detail}")]
    Status {
        /// The request's address.
        url: String,
        /// Status of the answer.
        status: u16,
        /// The useful statuses.
        expected: &'static str,
        /// What the server says of it, in brackets; may be empty.
        detail: String,
    },

    /// A registry wants to know who asks.
    #[error(
        "`{host}` does not let this user {action}: log in with `docker login {host}` or `podman login {host}`"
    )]
    Denied {
        /// Host and port of the registry.
        host: String,
        /// The attempted action.
        action: &'static str,
    },

    /// An address that is not taken.
    #[error("`{url}` is not an address to go on to: {reason}")]
    Address {
        /// The address, shortened.
        url: String,
        /// The reason.
        reason: &'static str,
    },

    /// There is too little room for what has to be fetched.
    #[error(
        "`{}` has room for `{free}` bytes, expected `{needed}`: `heg prune` may free some, `HEG_STORE` names another folder",
        path.display()
    )]
    NoRoom {
        /// The store's folder.
        path: PathBuf,
        /// Free bytes.
        free: u64,
        /// Bytes that will be written.
        needed: u64,
    },

    /// A check of the new bundle found something, so that the name did not move.
    #[error("`{name}` stands for what it stood for: {reason}")]
    Kept {
        /// The name.
        name: String,
        /// The reason.
        reason: String,
    },

    /// A bundle, a view or a part cannot be used.
    #[error("cannot use the bundle at `{place}`")]
    Bundle {
        /// The place.
        place: String,
        /// Cause.
        #[source]
        source: heg_artifacts::Error,
    },

    /// A file or folder cannot be used.
    #[error(transparent)]
    File(#[from] FileError),

    /// The operating system refused something.
    #[error("cannot {action} `{}`", .path.display())]
    Io {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

/// The side on which an error can be cured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShipErrorKind {
    /// A reference or a policy: the user's input.
    Input,
    /// The bundle is damaged, or not for this machine.
    Bundle,
    /// Network, disk or credentials.
    Environment,
    /// A check found something.
    Finding,
}

impl ShipError {
    /// The side on which the error can be cured.
    pub fn kind(&self) -> ShipErrorKind {
        match self {
            Self::Name { .. }
            | Self::NotHere { .. }
            | Self::Ambiguous { .. }
            | Self::NothingBefore { .. }
            | Self::Refused { .. }
            | Self::TrustFile { .. }
            | Self::Missing { .. } => ShipErrorKind::Input,
            Self::Document { .. }
            | Self::NoSlice { .. }
            | Self::OtherBundle { .. }
            | Self::WrongBytes { .. } => ShipErrorKind::Bundle,
            Self::Bundle { source, .. } => match source {
                heg_artifacts::Error::Io { .. } | heg_artifacts::Error::File(_) => {
                    ShipErrorKind::Environment
                }
                _ => ShipErrorKind::Bundle,
            },
            Self::Kept { .. } => ShipErrorKind::Finding,
            Self::Interrupted { .. }
            | Self::NoAnswer { .. }
            | Self::Status { .. }
            | Self::Denied { .. }
            | Self::Address { .. }
            | Self::NoRoom { .. }
            | Self::File(_)
            | Self::Io { .. } => ShipErrorKind::Environment,
        }
    }

    /// Whether the same request may succeed a moment later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::NoAnswer { .. } => true,
            Self::Status { status, .. } => *status >= 500 || *status == 408 || *status == 429,
            Self::Io { action, .. } => *action == RECEIVE,
            _ => false,
        }
    }

    /// Whether nobody could be reached at an address.
    pub(crate) fn is_unreachable(&self) -> bool {
        use ureq::{Error, Timeout};
        let Self::NoAnswer { source, .. } = self else {
            return false;
        };
        match &**source {
            Error::HostNotFound | Error::ConnectionFailed => true,
            Error::Timeout(timeout) => matches!(timeout, Timeout::Connect | Timeout::Resolve),
            Error::Io(error) => matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::TimedOut
            ),
            _ => false,
        }
    }

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

    /// For `map_err`: attaches the place of a bundle.
    pub(crate) fn bundle(place: impl ToString) -> impl FnOnce(heg_artifacts::Error) -> Self {
        let place = place.to_string();
        move |source| Self::Bundle { place, source }
    }

    /// Returns the error for a document that is not one that is written.
    pub(crate) fn document(
        document: &'static str,
        place: impl ToString,
        message: impl ToString,
    ) -> Self {
        Self::Document {
            document,
            place: place.to_string(),
            message: message
                .to_string()
                .chars()
                .take(MESSAGE_CHARS_MAX)
                .collect(),
        }
    }
}

/// The action of reading what a source sends.
pub(crate) const RECEIVE: &str = "receive";

/// Most characters of a parser's message that an error quotes.
const MESSAGE_CHARS_MAX: usize = 200;
