//! `keys.json`: the statement by which a publisher changes its keys.
//!
//! Keys that count now name those that count from now on, and the new ones sign too: TUF's rule for roots. So a machine
//! follows a publisher from key to key without a new policy, and leaves a thief of the old ones behind once it has seen
//! the change. A change is numbered, and one that is not above the last that was seen is passed over.

use std::collections::BTreeMap;

use heg_artifacts::SectionId;
use serde::{Deserialize, Serialize};

use crate::document::SignedDocument;
use crate::error::TrustError;
use crate::key::{PublisherKey, ReleaseSignature};
use crate::pattern::{NamePattern, is_name};
use crate::policy::Publisher;
use crate::release::Release;
use crate::seen::SeenReleases;

/// A change of keys.
///
/// Invariants: serials begin at 1; the threshold is at least 1 and at most the number of different keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyChange {
    /// Names that the keys sign. A policy follows the change if all of its names for the publisher are among them.
    pub names: Vec<NamePattern>,
    /// Number that grows with each change.
    pub serial: u64,
    /// Number of different keys that have to sign.
    pub threshold: usize,
    /// Keys that count from now on.
    pub keys: Vec<PublisherKey>,
    /// The number of the newest release that counts, for names whose numbers a thief has spent.
    pub numbers: BTreeMap<String, u64>,
}

/// A change of keys as it came: bytes of `keys.json`, and the contents of its `.minisig` files.
#[derive(Debug, Clone, Copy)]
pub struct SignedKeys<'a> {
    /// Bytes of the document.
    pub bytes: &'a [u8],
    /// Its signatures.
    pub signatures: &'a [Vec<u8>],
}

/// The keys of a publisher after the changes that a machine has seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TurnedKeys {
    /// The keys of the policy from which the changes led here: blake3 of them and their threshold.
    pub origin: SectionId,
    /// Serial of the last change.
    pub serial: u64,
    threshold: usize,
    keys: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    numbers: BTreeMap<String, NumberReset>,
}

/// The newest release of a name that counts, and the change of keys that says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NumberReset {
    serial: u64,
    number: u64,
}

impl KeyChange {
    /// Reads a change that came from somewhere. Says nothing about who wrote it.
    ///
    /// Errors: [`TrustError::TooLong`], [`TrustError::Version`], [`TrustError::Parse`], [`TrustError::Invalid`],
    /// [`TrustError::NotAKey`].
    pub fn parse(bytes: &[u8]) -> Result<Self, TrustError> {
        DOCUMENT.read::<RawChange>(bytes)?.check()
    }

    /// The text that is signed. Equal changes give equal bytes.
    ///
    /// Errors: [`TrustError::Invalid`] for a change that would not be read back.
    pub fn to_text(&self) -> Result<String, TrustError> {
        let raw = RawChange {
            heg: DOCUMENT.version.to_owned(),
            names: self.names.iter().map(ToString::to_string).collect(),
            serial: self.serial,
            threshold: self.threshold,
            keys: self.keys.iter().map(PublisherKey::to_line).collect(),
            numbers: self.numbers.clone(),
        };
        let text = serde_json::to_string_pretty(&raw);
        let text = text.map_err(|error| invalid("keys", &error.to_string(), "JSON"))?;
        raw.check()?;
        Ok(format!("{text}\n"))
    }
}

/// Checks what a publisher can know of a release with changes of its keys before machines get it: each change is signed by
/// enough of its new keys and of those of the change before it, and the release by enough of the newest keys. Who counted
/// before the first change, machines know by their policies.
///
/// Errors: those of [`KeyChange::parse`]; [`TrustError::KeysNotSigned`], [`TrustError::NotASignature`]; for the release
/// [`TrustError::TooFewKeys`] and those of [`Release::parse`].
pub fn check_changes(
    release: &[u8],
    release_signatures: &[Vec<u8>],
    changes: &[SignedKeys<'_>],
) -> Result<(), TrustError> {
    let mut before: Option<KeyChange> = None;
    for (change, signed) in in_order(changes)? {
        let signatures = ReleaseSignature::parse_all(signed.signatures)?;
        let counted = before.as_ref().map(|before| (KEYS_BEFORE, before));
        for (whose, own) in counted.into_iter().chain([(NEW_KEYS, &change)]) {
            let found = signers(&own.keys, signed.bytes, &signatures).len();
            check_signers(change.serial, whose, found, own.threshold)?;
        }
        before = Some(change);
    }
    let Some(newest) = before else {
        return Ok(());
    };
    let signatures = ReleaseSignature::parse_all(release_signatures)?;
    let found = signers(&newest.keys, release, &signatures).len();
    match found < newest.threshold {
        true => Err(TrustError::TooFewKeys {
            name: Release::parse(release)?.name,
            found,
            expected: newest.threshold,
        }),
        false => Ok(()),
    }
}

impl Publisher {
    /// The publisher after those of some changes that are new to it, in the order of their serials.
    ///
    /// Errors: those of [`KeyChange::parse`]; [`TrustError::OtherKeys`], [`TrustError::KeysNotSigned`],
    /// [`TrustError::NotASignature`].
    pub(crate) fn after(&self, changes: &[SignedKeys<'_>]) -> Result<Self, TrustError> {
        let mut publisher = self.clone();
        for (change, signed) in in_order(changes)? {
            if change.serial > publisher.serial() {
                publisher.turn(change, signed)?;
            }
        }
        Ok(publisher)
    }

    /// The publisher as a machine remembers it.
    ///
    /// Errors: [`TrustError::NotAKey`], [`TrustError::Invalid`] for a memory that this program did not write.
    pub(crate) fn remembered(mut self, memory: &[TurnedKeys]) -> Result<Self, TrustError> {
        let origin = self.origin();
        let Some(turned) = memory.iter().find(|turned| turned.origin == origin) else {
            return Ok(self);
        };
        self.keys = distinct(&turned.keys)?;
        self.threshold = check_threshold(turned.threshold, &self.keys)?;
        self.turned = Some(turned.clone());
        Ok(self)
    }

    fn serial(&self) -> u64 {
        self.turned.as_ref().map_or(0, |turned| turned.serial)
    }

    /// The keys of the policy, by which a machine remembers the changes that led on from them.
    fn origin(&self) -> SectionId {
        if let Some(turned) = &self.turned {
            return turned.origin;
        }
        let mut keys: Vec<&str> = self.keys.iter().map(PublisherKey::text).collect();
        keys.sort_unstable();
        SectionId::of(format!("{} of {}", self.threshold, keys.join(" ")).as_bytes())
    }

    fn turn(&mut self, change: KeyChange, signed: &SignedKeys<'_>) -> Result<(), TrustError> {
        let serial = change.serial;
        let has_all = |own: &NamePattern| change.names.iter().any(|named| named.covers(own));
        if let Some(other) = self.names.iter().find(|own| !has_all(own)) {
            return Err(TrustError::OtherKeys {
                serial,
                expected: other.to_string(),
            });
        }
        let signatures = ReleaseSignature::parse_all(signed.signatures)?;
        for (whose, keys, expected) in [
            (KEYS_BEFORE, &self.keys, self.threshold),
            (NEW_KEYS, &change.keys, change.threshold),
        ] {
            let found = signers(keys, signed.bytes, &signatures).len();
            check_signers(serial, whose, found, expected)?;
        }
        let origin = self.origin();
        let mut numbers = self
            .turned
            .take()
            .map_or_else(BTreeMap::new, |turned| turned.numbers);
        let resets = change.numbers.into_iter();
        numbers.extend(resets.map(|(name, number)| (name, NumberReset { serial, number })));
        self.turned = Some(TurnedKeys {
            origin,
            serial,
            threshold: change.threshold,
            keys: change.keys.iter().map(PublisherKey::to_line).collect(),
            numbers,
        });
        (self.keys, self.threshold) = (change.keys, change.threshold);
        Ok(())
    }
}

impl TurnedKeys {
    /// The past of a name as it counts after the changes: its numbers begin anew if one of them says so that the past
    /// does not know yet.
    pub(crate) fn past(&self, name: &str, seen: &SeenReleases) -> SeenReleases {
        let mut past = seen.clone();
        if let Some(reset) = self.numbers.get(name)
            && reset.serial > past.keys_serial
        {
            past.newest = reset.number;
            past.withdrawn.retain(|number| *number <= reset.number);
        }
        past.keys_serial = past.keys_serial.max(self.serial);
        past
    }
}

/// Changes as they are read, by their serials.
fn in_order<'c>(
    changes: &'c [SignedKeys<'c>],
) -> Result<Vec<(KeyChange, &'c SignedKeys<'c>)>, TrustError> {
    let read = changes.iter().take(CHANGES_MAX);
    let read = read.map(|signed| Ok((KeyChange::parse(signed.bytes)?, signed)));
    let mut read = read.collect::<Result<Vec<_>, TrustError>>()?;
    read.sort_by_key(|(change, _)| change.serial);
    Ok(read)
}

fn check_signers(
    serial: u64,
    whose: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), TrustError> {
    match found < expected {
        true => Err(TrustError::KeysNotSigned {
            serial,
            whose,
            found,
            expected,
        }),
        false => Ok(()),
    }
}

/// The keys that signed: each counts once, however often it signed.
pub(crate) fn signers<'k>(
    keys: &'k [PublisherKey],
    bytes: &[u8],
    signatures: &[ReleaseSignature],
) -> Vec<&'k PublisherKey> {
    let signed = |key: &&PublisherKey| {
        let mut signatures = signatures.iter();
        signatures.any(|signature| key.has_signed(bytes, signature))
    };
    keys.iter().filter(signed).collect()
}

/// Parses keys; of equal ones the first stays.
pub(crate) fn distinct(texts: &[String]) -> Result<Vec<PublisherKey>, TrustError> {
    let mut keys: Vec<PublisherKey> = Vec::new();
    for text in texts {
        let key: PublisherKey = text.parse()?;
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    Ok(keys)
}

fn check_threshold(threshold: usize, keys: &[PublisherKey]) -> Result<usize, TrustError> {
    match (1..=keys.len()).contains(&threshold) {
        true => Ok(threshold),
        false => {
            let expected = format!("`1` to the number of different keys, `{}`", keys.len());
            Err(invalid("threshold", &threshold.to_string(), &expected))
        }
    }
}

/// A change before its check. An unknown field is an error: what is signed is understood whole.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawChange {
    heg: String,
    names: Vec<String>,
    serial: u64,
    threshold: usize,
    keys: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    numbers: BTreeMap<String, u64>,
}

impl RawChange {
    fn check(self) -> Result<KeyChange, TrustError> {
        let names = self.names.iter().enumerate();
        let names = names.map(|(index, text)| {
            let parsed = NamePattern::parse(text, || format!("names[{index}]"));
            parsed.map_err(|_| invalid(&format!("names[{index}]"), text, "a name or all below one"))
        });
        let names: Vec<NamePattern> = names.collect::<Result<_, _>>()?;
        if names.is_empty() {
            return Err(invalid("names", "[]", "at least one"));
        }
        if self.serial == 0 {
            return Err(invalid("serial", "0", "at least `1`"));
        }
        if let Some(name) = self.numbers.keys().find(|name| !is_name(name)) {
            return Err(invalid(
                "numbers",
                name,
                "names like `registry.example/chat`",
            ));
        }
        let keys = distinct(&self.keys)?;
        Ok(KeyChange {
            names,
            serial: self.serial,
            threshold: check_threshold(self.threshold, &keys)?,
            keys,
            numbers: self.numbers,
        })
    }
}

fn invalid(field: &str, found: &str, expected: &str) -> TrustError {
    TrustError::invalid(DOCUMENT.name, field, found, expected)
}

/// Longest change that is read, in bytes. Chosen: a thousand keys.
pub const KEYS_BYTES_MAX: u64 = 256 << 10;

/// Most changes that are looked at. Chosen.
pub const CHANGES_MAX: usize = 16;

/// The keys whose signatures are missing, for people.
const KEYS_BEFORE: &str = "keys that counted before";
const NEW_KEYS: &str = "new keys";

const DOCUMENT: SignedDocument = SignedDocument {
    name: "change of keys",
    version: "keys/1",
    bytes_max: KEYS_BYTES_MAX,
};
