//! Records of names: the bundle of each, the release that says so, and the bundles before it.

use std::fs;

use heg_artifacts::SectionId;
use heg_files::OwnFolder;
use heg_trust::{CHANGES_MAX, KEYS_BYTES_MAX, RELEASE_BYTES_MAX, SIGNATURE_BYTES_MAX};
use serde::{Deserialize, Serialize};

use crate::bad::{BadBundle, BadReason};
use crate::error::ShipError;
use crate::name::ModelName;
use crate::oci::Digest;
use crate::store::{DeviceStore, NAMES, RELEASES, file_names, sync_folder};

/// The record of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameRecord {
    /// Version of the record, `name/1`.
    heg: String,
    /// The name.
    name: String,
    /// Bundle that it stands for.
    pub now: Held,
    /// Bundles that it stood for, the latest first.
    pub before: Vec<Held>,
    /// Bundles that updates pass over, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bad: Vec<BadBundle>,
}

/// A bundle that a name stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// The bundle.
    pub bundle: SectionId,
    /// Length of the bundle, in bytes.
    pub bytes: u64,
    /// Kind of devices that it is for, e.g. `cpu`.
    pub slice: String,
    /// Whether a person chose that kind.
    #[serde(default)]
    pub slice_asked: bool,
    /// Digest under the tag of the registry; `None` for a bundle that came from a file.
    pub index: Option<Digest>,
    /// The statement of its publisher: blake3 of its bytes.
    pub release: Option<SectionId>,
    /// Number and version of that statement.
    pub number: Option<u64>,
    /// Version for people.
    pub version: Option<String>,
    /// Whether a person agreed to use it unsigned.
    pub agreed: bool,
    /// Whether a person went back to it from a newer one.
    #[serde(default)]
    pub went_back: bool,
}

/// A statement of a publisher with its signatures, as bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SignedRelease {
    /// Bytes of `release.json`.
    pub release: Vec<u8>,
    /// Contents of its `.minisig` files.
    pub signatures: Vec<Vec<u8>>,
    /// The publisher's changes of keys, for machines that have not seen them.
    pub changes: Vec<SignedChange>,
}

/// A publisher's change of keys with its signatures, as bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SignedChange {
    /// Bytes of `keys.json`.
    pub keys: Vec<u8>,
    /// Contents of its `.minisig` files.
    pub signatures: Vec<Vec<u8>>,
}

impl NameRecord {
    /// The name.
    ///
    /// Errors: [`ShipError::Name`] for a record that this program did not write.
    pub fn name(&self) -> Result<ModelName, ShipError> {
        self.name.parse()
    }
}

impl DeviceStore {
    /// The record of a name, if it is here.
    ///
    /// Errors: [`ShipError::File`], [`ShipError::Document`].
    pub fn name(&self, name: &ModelName) -> Result<Option<NameRecord>, ShipError> {
        let names = self.inner(NAMES)?;
        let file = format!("{}.json", name.escaped());
        let Some(text) = names.read(&file, RECORD_BYTES_MAX)? else {
            return Ok(None);
        };
        let place = names.path().join(&file);
        let wrong = |message: String| ShipError::document("the name", place.display(), message);
        let record: NameRecord =
            serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if record.heg != RECORD_VERSION {
            let message = format!(
                "`{}`, expected `{RECORD_VERSION}`: use a newer `heg`",
                record.heg
            );
            return Err(wrong(message));
        }
        if record.name != name.to_string() {
            let message = format!("it is for `{}`, expected `{name}`", record.name);
            return Err(wrong(message));
        }
        Ok(Some(record))
    }

    /// All names of the store, sorted.
    ///
    /// Errors: [`ShipError::Io`], and those of [`DeviceStore::name`].
    pub fn names(&self) -> Result<Vec<(ModelName, NameRecord)>, ShipError> {
        let mut found = Vec::new();
        for file in file_names(&self.path().join(NAMES))? {
            let Some(escaped) = file.strip_suffix(".json") else {
                continue;
            };
            let Ok(name) = unescaped(escaped).parse::<ModelName>() else {
                continue;
            };
            if let Some(record) = self.name(&name)? {
                found.push((name, record));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// The name that a person means: the whole name, or the only one of the store with this end.
    ///
    /// Errors: [`ShipError::NotHere`], [`ShipError::Ambiguous`], and those of [`DeviceStore::names`].
    pub fn meant(&self, short: &str) -> Result<(ModelName, NameRecord), ShipError> {
        if let Ok(name) = short.parse::<ModelName>()
            && let Some(record) = self.name(&name)?
        {
            return Ok((name, record));
        }
        let mut fitting = self.names()?;
        fitting.retain(|(name, _)| name.is_meant_by(short));
        if fitting.len() > 1 {
            let found: Vec<String> = fitting
                .iter()
                .map(|(name, _)| format!("`{name}`"))
                .collect();
            return Err(ShipError::Ambiguous {
                name: short.to_owned(),
                found: found.join(", "),
            });
        }
        fitting.pop().ok_or_else(|| ShipError::NotHere {
            name: short.to_owned(),
        })
    }

    /// Lets a name stand for a bundle of the store. What it stood for is kept, `keep` of them.
    pub(crate) fn point(&self, name: &ModelName, held: Held, keep: usize) -> Result<(), ShipError> {
        let mut record = NameRecord {
            heg: RECORD_VERSION.to_owned(),
            name: name.to_string(),
            now: held,
            before: Vec::new(),
            bad: Vec::new(),
        };
        if let Some(earlier) = self.name(name)? {
            record.before.push(earlier.now);
            record.before.extend(earlier.before);
            let now = record.now.bundle;
            record.before.retain(|earlier| earlier.bundle != now);
            record.before.truncate(keep);
            record.bad = earlier.bad;
            record.clear(now);
        }
        self.write_name(name, &record)
    }

    /// Lets a name stand for the bundle before the present one, which it then stood for before. The present one is marked,
    /// so that no update brings it back; going there again removes the mark.
    ///
    /// Errors: [`ShipError::NothingBefore`], and those of [`DeviceStore::name`].
    pub fn roll_back(&self, name: &ModelName) -> Result<Held, ShipError> {
        let mut record = self.name(name)?.ok_or_else(|| ShipError::NotHere {
            name: name.to_string(),
        })?;
        let here = |held: &Held| self.bundle_path(held.bundle).is_some();
        let Some(position) = record.before.iter().position(here) else {
            return Err(ShipError::NothingBefore {
                name: name.to_string(),
            });
        };
        let mut back = record.before.remove(position);
        back.went_back = back.number < record.now.number;
        let is_return = record.bad(back.bundle).is_some() || back.number > record.now.number;
        if !is_return {
            record.mark(BadBundle::of(&record.now, BadReason::RolledBack));
        }
        record.clear(back.bundle);
        let left = std::mem::replace(&mut record.now, back);
        record.before.insert(
            0,
            Held {
                went_back: false,
                ..left
            },
        );
        self.write_name(name, &record)?;
        Ok(record.now)
    }

    pub(crate) fn write_name(
        &self,
        name: &ModelName,
        record: &NameRecord,
    ) -> Result<(), ShipError> {
        // Text and numbers alone, so serialising cannot fail.
        let text = serde_json::to_vec_pretty(record).unwrap_or_default();
        let names = self.inner(NAMES)?;
        let path = names.path().join(format!("{}.json", name.escaped()));
        heg_files::write_own(&path, &[&text])?;
        sync_folder(names.path())
    }

    /// Forgets a name. Its bundle stays until the store is pruned.
    ///
    /// Errors: [`ShipError::Io`].
    pub fn forget(&self, name: &ModelName) -> Result<(), ShipError> {
        let path = self
            .inner(NAMES)?
            .path()
            .join(format!("{}.json", name.escaped()));
        fs::remove_file(&path).map_err(ShipError::io("remove", &path))
    }

    /// Keeps a statement and its signatures. Returns its name.
    pub(crate) fn put_release(&self, signed: &SignedRelease) -> Result<SectionId, ShipError> {
        let id = SectionId::of(&signed.release);
        let releases = self.inner(RELEASES)?;
        let path = |end: String| releases.path().join(format!("{id}.{end}"));
        let write_signatures = |begin: &str, signatures: &[Vec<u8>]| {
            signatures
                .iter()
                .zip(1..)
                .try_for_each(|(signature, number)| {
                    heg_files::write_own(&path(format!("{begin}{number}.minisig")), &[signature])
                })
        };
        for (change, number) in signed.changes.iter().zip(1..) {
            write_signatures(&format!("keys.{number}."), &change.signatures)?;
            heg_files::write_own(&path(format!("keys.{number}.json")), &[&change.keys])?;
        }
        write_signatures("", &signed.signatures)?;
        heg_files::write_own(&path("json".to_owned()), &[&signed.release])?;
        sync_folder(releases.path())?;
        Ok(id)
    }

    /// A statement that was kept, with its signatures; `None` if it is not here.
    ///
    /// Errors: [`ShipError::File`].
    pub fn release(&self, id: SectionId) -> Result<Option<SignedRelease>, ShipError> {
        let releases = self.inner(RELEASES)?;
        let Some(release) = releases.read(&format!("{id}.json"), RELEASE_BYTES_MAX)? else {
            return Ok(None);
        };
        let mut changes = Vec::new();
        for number in 1..=CHANGES_MAX {
            let begin = format!("{id}.keys.{number}.");
            let Some(keys) = releases.read(&format!("{begin}json"), KEYS_BYTES_MAX)? else {
                break;
            };
            let signatures = read_signatures(&releases, &begin)?;
            changes.push(SignedChange { keys, signatures });
        }
        Ok(Some(SignedRelease {
            release,
            signatures: read_signatures(&releases, &format!("{id}."))?,
            changes,
        }))
    }
}

/// The signatures of a document that was kept, by the beginning of their names.
fn read_signatures(folder: &OwnFolder, begin: &str) -> Result<Vec<Vec<u8>>, ShipError> {
    let mut signatures = Vec::new();
    for number in 1..=SIGNATURES_MAX {
        match folder.read(&format!("{begin}{number}.minisig"), SIGNATURE_BYTES_MAX)? {
            Some(signature) => signatures.push(signature),
            None => break,
        }
    }
    Ok(signatures)
}

/// The name behind the name of a file; nonsense for nonsense, which is then no name.
fn unescaped(escaped: &str) -> String {
    escaped.replace("%2F", "/").replace("%3A", ":")
}

/// Most signatures of a statement.
pub(crate) const SIGNATURES_MAX: usize = 16;

/// Longest record of a name, in bytes. Chosen: a thousand bundles before.
const RECORD_BYTES_MAX: u64 = 1 << 20;

const RECORD_VERSION: &str = "name/1";
