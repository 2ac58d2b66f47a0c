//! The statement that a publisher signs: this name at this number is these bundles.

use std::collections::BTreeSet;
use std::str::FromStr;

use heg_artifacts::SectionId;
use heg_artifacts::plain::is_plain;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::document::SignedDocument;
use crate::error::TrustError;
use crate::pattern::is_name;

/// A release of a model.
///
/// Invariants: the name is one of a repository; numbers begin at 1 and withdrawn ones are below the release's own; there
/// is at least one slice, and each has a name and a bundle of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Name of the repository, e.g. `registry.acme.example/chat`.
    pub name: String,
    /// Number that grows with each release of the name.
    pub number: u64,
    /// Version for people.
    pub version: String,
    /// Moment of the statement.
    pub issued: Timestamp,
    /// Moment after which a newer release must exist, if the publisher promises one.
    pub expires: Option<Timestamp>,
    /// Numbers of earlier releases that must not be used any more.
    pub withdrawn: BTreeSet<u64>,
    /// The bundles.
    pub slices: Vec<ReleaseSlice>,
}

/// A bundle of a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseSlice {
    /// Kind of devices that it is for: `cpu`, `npu-4000`.
    pub slice: String,
    /// Needs of its blobs, e.g. `compiler=8.4;npu=4000;elf=1.2.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub npu: Option<String>,
    /// Name of the bundle: blake3 of its manifest.
    pub bundle: SectionId,
    /// Length of the bundle, in bytes.
    pub bytes: u64,
}

impl Release {
    /// Reads a release that came from somewhere. Says nothing about who wrote it.
    ///
    /// Errors: [`TrustError::TooLong`], [`TrustError::Version`], [`TrustError::Parse`], [`TrustError::Invalid`].
    pub fn parse(bytes: &[u8]) -> Result<Self, TrustError> {
        DOCUMENT.read::<RawRelease>(bytes)?.check()
    }

    /// The text that is signed. Equal releases give equal bytes.
    ///
    /// Errors: [`TrustError::Invalid`] for a release that would not be read back.
    pub fn to_text(&self) -> Result<String, TrustError> {
        let raw = RawRelease {
            heg: DOCUMENT.version.to_owned(),
            name: self.name.clone(),
            number: self.number,
            version: self.version.clone(),
            issued: self.issued.to_string(),
            expires: self.expires.map(|expires| expires.to_string()),
            withdrawn: self.withdrawn.iter().copied().collect(),
            slices: self.slices.clone(),
        };
        let text = serde_json::to_string_pretty(&raw);
        let text = text.map_err(|error| invalid("release", &error.to_string(), "JSON"))?;
        raw.check()?;
        Ok(format!("{text}\n"))
    }

    /// The slice that is this bundle.
    pub fn slice_of(&self, bundle: SectionId) -> Option<&ReleaseSlice> {
        self.slices.iter().find(|slice| slice.bundle == bundle)
    }
}

/// A release before its check. An unknown field is an error: what is signed is understood whole.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRelease {
    heg: String,
    name: String,
    number: u64,
    version: String,
    issued: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(default)]
    withdrawn: Vec<u64>,
    slices: Vec<ReleaseSlice>,
}

impl RawRelease {
    fn check(self) -> Result<Release, TrustError> {
        if !is_name(&self.name) {
            let expected = "a name like `registry.example/chat`";
            return Err(invalid("name", &self.name, expected));
        }
        if self.number == 0 {
            return Err(invalid("number", "0", "at least `1`"));
        }
        if self.version.is_empty()
            || self.version.len() > 128
            || !self.version.chars().all(is_plain)
        {
            return Err(invalid(
                "version",
                &self.version,
                "1 to 128 printable characters",
            ));
        }
        if let Some(later) = self.withdrawn.iter().find(|number| **number >= self.number) {
            let expected = format!("numbers below `{}`", self.number);
            return Err(invalid("withdrawn", &later.to_string(), &expected));
        }
        check_slices(&self.slices)?;
        let issued = timestamp("issued", &self.issued)?;
        let expires = self
            .expires
            .map(|text| timestamp("expires", &text))
            .transpose()?;
        if let Some(expires) = expires.filter(|expires| *expires <= issued) {
            let expected = format!("a moment after `{issued}`");
            return Err(invalid("expires", &expires.to_string(), &expected));
        }
        Ok(Release {
            name: self.name,
            number: self.number,
            version: self.version,
            issued,
            expires,
            withdrawn: self.withdrawn.into_iter().collect(),
            slices: self.slices,
        })
    }
}

fn check_slices(slices: &[ReleaseSlice]) -> Result<(), TrustError> {
    if slices.is_empty() {
        return Err(invalid("slices", "[]", "at least one"));
    }
    let mut names = BTreeSet::new();
    let mut bundles = BTreeSet::new();
    for (index, slice) in slices.iter().enumerate() {
        let allowed =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        let is_named = (1..=64).contains(&slice.slice.len()) && slice.slice.chars().all(allowed);
        if !is_named || !names.insert(&slice.slice) {
            let expected = "a name of its own of lower-case letters, digits, `-` and `.`";
            return Err(invalid(
                &format!("slices[{index}].slice"),
                &slice.slice,
                expected,
            ));
        }
        if !bundles.insert(slice.bundle) {
            let found = slice.bundle.to_string();
            return Err(invalid(
                &format!("slices[{index}].bundle"),
                &found,
                "each bundle once",
            ));
        }
        let npu = slice.npu.as_deref().unwrap_or_default();
        if npu.len() > 256 || !npu.chars().all(is_plain) {
            let expected = "at most 256 printable characters";
            return Err(invalid(&format!("slices[{index}].npu"), npu, expected));
        }
    }
    Ok(())
}

fn timestamp(field: &str, text: &str) -> Result<Timestamp, TrustError> {
    let expected = "a moment like `2026-11-23T10:00:00Z`";
    Timestamp::from_str(text).map_err(|_| invalid(field, text, expected))
}

fn invalid(field: &str, found: &str, expected: &str) -> TrustError {
    TrustError::invalid(DOCUMENT.name, field, found, expected)
}

/// Longest release that is read, in bytes: a thousand slices. Chosen.
pub const RELEASE_BYTES_MAX: u64 = 256 << 10;

const DOCUMENT: SignedDocument = SignedDocument {
    name: "release",
    version: "release/1",
    bytes_max: RELEASE_BYTES_MAX,
};
