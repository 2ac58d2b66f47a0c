//! `trust.ron`: whose word counts for which names on this machine.

use serde::Deserialize;

use crate::error::TrustError;
use crate::key::PublisherKey;
use crate::keys::{TurnedKeys, distinct};
use crate::pattern::NamePattern;

/// The policy of a machine. The default is that of a machine without a file: no publishers, and a person is asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrustPolicy {
    /// Treatment of unsigned names that no publisher claims.
    pub unsigned: UnsignedRule,
    /// Treatment of bundles that are given by path.
    pub files: FileRule,
    /// Publishers; the first whose names match decides.
    pub publishers: Vec<Publisher>,
}

/// A publisher, and what counts as its word.
///
/// Invariant: the threshold is at least 1 and at most the number of different keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publisher {
    /// Names that it signs.
    pub names: Vec<NamePattern>,
    /// Names under which copies are found; the star stands for the same rest as in `names`.
    pub copies: Vec<NamePattern>,
    /// Number of different keys that have to sign.
    pub threshold: usize,
    /// Keys that count.
    pub keys: Vec<PublisherKey>,
    /// Treatment of its names without signature.
    pub unsigned: UnsignedRule,
    /// Treatment of releases older than one that was here.
    pub older: OlderRule,
    /// Age in days from which a release counts as stale, if there is one.
    pub stale_days: Option<u32>,
    /// Its changes of keys, where a machine follows some.
    pub(crate) turned: Option<TurnedKeys>,
}

/// Treatment of names without signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum UnsignedRule {
    /// A person decides, where there is one.
    #[default]
    Ask,
    /// They are refused.
    Refuse,
    /// They are used.
    Allow,
}

/// Treatment of bundles that are given by path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum FileRule {
    /// They need no release.
    #[default]
    Any,
    /// They need one that is accepted.
    Signed,
}

/// Treatment of releases older than one that was here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum OlderRule {
    /// They are refused.
    #[default]
    Refuse,
    /// They are used, with a warning.
    Warn,
}

impl TrustPolicy {
    /// Reads a policy.
    ///
    /// Errors: [`TrustError::TooLong`], [`TrustError::Parse`], [`TrustError::Version`], [`TrustError::Invalid`],
    /// [`TrustError::NotAKey`].
    pub fn parse(text: &str) -> Result<Self, TrustError> {
        TrustError::check_length(DOCUMENT, text.as_bytes(), POLICY_BYTES_MAX)?;
        let options = ron::Options::default().with_recursion_limit(16);
        let raw: RawPolicy = options.from_str(text).map_err(|error| TrustError::Parse {
            document: DOCUMENT,
            line: error.span.start.line,
            column: error.span.start.col,
            message: error.code.to_string(),
        })?;
        if raw.revision != REVISION {
            return Err(TrustError::Version {
                document: DOCUMENT,
                found: format!("revision {}", raw.revision),
                expected: format!("revision {REVISION}"),
            });
        }
        let publishers = raw.publishers.into_iter().enumerate();
        let publishers = publishers.map(|(index, publisher)| publisher.check(index));
        Ok(Self {
            unsigned: raw.unsigned,
            files: raw.files,
            publishers: publishers.collect::<Result<_, _>>()?,
        })
    }

    /// The policy of a machine that has seen some changes of keys. Keys of the policy that were changed since begin anew.
    ///
    /// Errors: [`TrustError::NotAKey`], [`TrustError::Invalid`] for a memory that this program did not write.
    pub fn remembering(&self, memory: &[TurnedKeys]) -> Result<Self, TrustError> {
        let publishers = self.publishers.iter();
        let publishers = publishers.map(|publisher| publisher.clone().remembered(memory));
        Ok(Self {
            publishers: publishers.collect::<Result<_, _>>()?,
            ..self.clone()
        })
    }

    /// The publisher who decides about a name, and the names that its releases may have.
    pub(crate) fn publisher(&self, name: &str) -> Option<(&Publisher, Vec<String>)> {
        self.publishers.iter().find_map(|publisher| {
            let names = publisher.names_of(name);
            (!names.is_empty()).then_some((publisher, names))
        })
    }
}

impl Publisher {
    /// The names that a release may have when `name` was asked for; none if this publisher has no say.
    fn names_of(&self, name: &str) -> Vec<String> {
        if self
            .names
            .iter()
            .any(|pattern| pattern.rest(name).is_some())
        {
            return vec![name.to_owned()];
        }
        let rests = self.copies.iter().filter_map(|pattern| pattern.rest(name));
        let originals = rests.flat_map(|rest| {
            let named = self
                .names
                .iter()
                .map(move |pattern| pattern.with_rest(rest));
            named.filter(|original| self.names.iter().any(|own| own.rest(original).is_some()))
        });
        originals.collect()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "TrustPolicy")]
struct RawPolicy {
    revision: u32,
    #[serde(default)]
    unsigned: UnsignedRule,
    #[serde(default)]
    files: FileRule,
    #[serde(default)]
    publishers: Vec<RawPublisher>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "Publisher")]
struct RawPublisher {
    names: Vec<String>,
    #[serde(default)]
    copies: Vec<String>,
    threshold: usize,
    keys: Vec<String>,
    // A publisher with keys is one that signs.
    #[serde(default = "refuse")]
    unsigned: UnsignedRule,
    #[serde(default)]
    older: OlderRule,
    #[serde(default)]
    stale_days: Option<u32>,
}

fn refuse() -> UnsignedRule {
    UnsignedRule::Refuse
}

impl RawPublisher {
    fn check(self, index: usize) -> Result<Publisher, TrustError> {
        let patterns = |field: &str, texts: &[String]| -> Result<Vec<NamePattern>, TrustError> {
            let texts = texts.iter().enumerate();
            let parsed = texts.map(|(number, text)| {
                NamePattern::parse(text, || format!("publishers[{index}].{field}[{number}]"))
            });
            parsed.collect()
        };
        let names = patterns("names", &self.names)?;
        if names.is_empty() {
            let field = format!("publishers[{index}].names");
            return Err(TrustError::invalid(
                DOCUMENT,
                field,
                "[]",
                "at least one name",
            ));
        }
        let keys = distinct(&self.keys)?;
        if !(1..=keys.len()).contains(&self.threshold) {
            let field = format!("publishers[{index}].threshold");
            let expected = format!("`1` to the number of different keys, `{}`", keys.len());
            return Err(TrustError::invalid(
                DOCUMENT,
                field,
                self.threshold.to_string(),
                expected,
            ));
        }
        Ok(Publisher {
            copies: patterns("copies", &self.copies)?,
            names,
            threshold: self.threshold,
            keys,
            unsigned: self.unsigned,
            older: self.older,
            stale_days: self.stale_days,
            turned: None,
        })
    }
}

/// Longest policy that is read, in bytes. Chosen.
const POLICY_BYTES_MAX: u64 = 1 << 20;

const REVISION: u32 = 1;
const DOCUMENT: &str = "trust policy";
