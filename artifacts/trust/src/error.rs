//! Reasons why a release, a key or a policy is refused, as data.

use heg_artifacts::SectionId;
use jiff::Timestamp;

/// The errors of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// A document is longer than any that is written.
    #[error("the {document} has `{found}` bytes, expected at most `{most}`")]
    TooLong {
        /// Kind of the document.
        document: &'static str,
        /// Its length in bytes.
        found: u64,
        /// The limit in bytes.
        most: u64,
    },

    /// A document does not parse.
    #[error("the {document} does not parse at line `{line}`, column `{column}`: {message}")]
    Parse {
        /// Kind of the document.
        document: &'static str,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The parser's message.
        message: String,
    },

    /// A document is of a version that this program does not know.
    #[error("the {document} is `{found}`, expected `{expected}`: use a newer `heg`")]
    Version {
        /// Kind of the document.
        document: &'static str,
        /// Its version.
        found: String,
        /// The known version.
        expected: String,
    },

    /// A field has a value that no writer gives it.
    #[error("the {document} is invalid: `{field}` is `{found}`, expected {expected}")]
    Invalid {
        /// Kind of the document.
        document: &'static str,
        /// Path of the field.
        field: String,
        /// The field's value.
        found: String,
        /// The valid values.
        expected: String,
    },

    /// A text is not a key of minisign.
    #[error(
        "`{found}` is not a public key of minisign: expected the second line of a `.pub` file, 56 characters"
    )]
    NotAKey {
        /// The text, shortened.
        found: String,
    },

    /// A signature does not have the form of minisign's.
    #[error(
        "signature `{number}` is not one of minisign: expected the four lines of a `.minisig` file"
    )]
    NotASignature {
        /// Number of the signature, from 1.
        number: usize,
    },

    /// There is no signature, and the policy wants one.
    #[error("`{name}` is not signed, expected the word of its publisher")]
    Unsigned {
        /// The requested name.
        name: String,
    },

    /// There is no signature, and a person has to decide.
    #[error(
        "`{name}` is not signed, and no policy says whether that is enough: ask its publisher for a key, or agree on a terminal"
    )]
    AskUnsigned {
        /// The requested name.
        name: String,
    },

    /// The name was signed before and now is not, or by nobody who counts.
    #[error(
        "`{name}` was signed on this machine before, and now is not: expected the same keys, or a new policy"
    )]
    NoLongerSigned {
        /// The requested name.
        name: String,
    },

    /// Fewer keys signed than the policy wants.
    #[error("`{name}` has the signatures of `{found}` accepted keys, expected `{expected}`")]
    TooFewKeys {
        /// The requested name.
        name: String,
        /// Number of accepted keys that signed.
        found: usize,
        /// The threshold.
        expected: usize,
    },

    /// A change of keys is not signed by those who may make it.
    #[error(
        "the change of keys `{serial}` has the signatures of `{found}` {whose}, expected `{expected}`"
    )]
    KeysNotSigned {
        /// Serial of the change.
        serial: u64,
        /// The keys in question: those before the change, or those after it.
        whose: &'static str,
        /// Number of them that signed.
        found: usize,
        /// Their threshold.
        expected: usize,
    },

    /// A change of keys is for other names.
    #[error("the change of keys `{serial}` does not name `{expected}`, which the policy does")]
    OtherKeys {
        /// Serial of the change.
        serial: u64,
        /// Names of the policy that it lacks.
        expected: String,
    },

    /// The release is for another name.
    #[error("the release is for `{found}`, expected `{expected}`")]
    OtherName {
        /// The release's name.
        found: String,
        /// The requested name.
        expected: String,
    },

    /// The release does not name the bundle.
    #[error("release `{number}` does not name bundle `{found}`, expected one of its slices")]
    OtherBundle {
        /// Number of the release.
        number: u64,
        /// The bundle.
        found: SectionId,
    },

    /// An older release than one that this machine has had.
    #[error("release `{found}` is older than `{newest}`, which this machine has had")]
    Older {
        /// Number of the release.
        found: u64,
        /// The largest number seen.
        newest: u64,
    },

    /// A later release withdrew this one.
    #[error("release `{number}` was withdrawn by its publisher: update to a newer one")]
    Withdrawn {
        /// Number of the release.
        number: u64,
    },

    /// The release is past its date.
    #[error(
        "release `{number}` expired on {expired}: its publisher has to sign a newer one, or a mirror is behind"
    )]
    Expired {
        /// Number of the release.
        number: u64,
        /// Its last moment.
        expired: Timestamp,
    },

    /// The release is older than the policy allows.
    #[error(
        "release `{number}` is `{found_days}` days old, expected at most `{most_days}`: a mirror may be behind"
    )]
    Stale {
        /// Number of the release.
        number: u64,
        /// Its age in days.
        found_days: u64,
        /// The limit in days.
        most_days: u32,
    },
}

impl TrustError {
    /// Refuses a document that is longer than any that is written, before anything of it is read.
    pub(crate) fn check_length(
        document: &'static str,
        bytes: &[u8],
        most: u64,
    ) -> Result<(), Self> {
        let found = bytes.len() as u64;
        match found <= most {
            true => Ok(()),
            false => Err(Self::TooLong {
                document,
                found,
                most,
            }),
        }
    }

    pub(crate) fn invalid(
        document: &'static str,
        field: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            document,
            field: field.into(),
            found: found.into().chars().take(FOUND_CHARS_MAX).collect(),
            expected: expected.into(),
        }
    }
}

/// Most characters of a wrong value that an error quotes.
const FOUND_CHARS_MAX: usize = 80;
