//! The word of publishers on this machine: its policy, what it has seen, and the decision about a name.
//!
//! The decision itself is [`heg_trust::judge`]; here are the files around it. What was seen of a name is only ever added
//! to, so that a release older than one that was here is found out at each later start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use heg_artifacts::SectionId;
use heg_trust::{
    CHANGES_MAX, Claim, FileRule, KEYS_BYTES_MAX, Moment, Purpose, SIGNATURE_BYTES_MAX,
    SeenReleases, SignedKeys, TrustError, TrustPolicy, TurnedKeys, Warning, Word, judge,
};
use serde::{Deserialize, Serialize};

use crate::error::ShipError;
use crate::name::ModelName;
use crate::names::{Held, SignedChange, SignedRelease};
use crate::store::DeviceStore;

/// The policy of this machine and its clock.
#[derive(Debug, Clone)]
pub struct MachineTrust {
    /// The policy.
    pub policy: TrustPolicy,
    /// The machine's knowledge of the time.
    pub moment: Moment,
}

/// The decision about a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Person who gave the word.
    pub word: Word,
    /// Whether a person agreed to use it unsigned.
    pub agreed: bool,
}

impl Accepted {
    /// Remarks for people.
    pub fn warnings(&self) -> &[Warning] {
        match &self.word {
            Word::Signed { warnings, .. } => warnings,
            Word::Unsigned => &[],
        }
    }
}

impl MachineTrust {
    /// Reads the first policy that exists of these files; without one, that of a machine without a file.
    ///
    /// Errors: [`ShipError::Io`], [`ShipError::TrustFile`].
    pub fn read(files: &[PathBuf], moment: Moment) -> Result<Self, ShipError> {
        for path in files {
            let text = match std::fs::read_to_string(path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                read => read.map_err(ShipError::io("read", path))?,
            };
            let refused = |source| ShipError::TrustFile {
                path: path.clone(),
                source,
            };
            let policy = TrustPolicy::parse(&text).map_err(refused)?;
            return Ok(Self { policy, moment });
        }
        let policy = TrustPolicy::default();
        Ok(Self { policy, moment })
    }

    /// Decides whether a bundle may have a name. `agrees` is asked where the policy leaves it to a person.
    ///
    /// Errors: [`ShipError::Refused`].
    pub fn decide(
        &self,
        name: &ModelName,
        bundle: SectionId,
        signed: Option<&SignedRelease>,
        seen: &SeenReleases,
        purpose: Purpose,
        agrees: &dyn Fn(&TrustError) -> bool,
    ) -> Result<Accepted, ShipError> {
        let signatures = signed.map_or(&[][..], |signed| &signed.signatures);
        let signatures: Vec<&[u8]> = signatures.iter().map(Vec::as_slice).collect();
        let changes = signed.map_or(&[][..], |signed| &signed.changes);
        let changes: Vec<SignedKeys<'_>> = changes.iter().map(SignedChange::borrowed).collect();
        let signed_name = name.signed_name();
        let claim = Claim {
            name: &signed_name,
            bundle,
            release: signed.map(|signed| signed.release.as_slice()),
            signatures: &signatures,
            changes: &changes,
        };
        match judge(&self.policy, &claim, seen, purpose, self.moment) {
            Ok(word) => Ok(Accepted {
                word,
                agreed: false,
            }),
            Err(error @ TrustError::AskUnsigned { .. }) if agrees(&error) => Ok(Accepted {
                word: Word::Unsigned,
                agreed: true,
            }),
            Err(source) => Err(ShipError::Refused {
                name: name.to_string(),
                source,
            }),
        }
    }

    /// Decides whether a bundle that a source offers may have a name, by what the store remembers of it.
    ///
    /// Errors: [`ShipError::Refused`], and those of the store's files.
    pub(crate) fn of_offer(
        &self,
        store: Option<&DeviceStore>,
        name: &ModelName,
        bundle: SectionId,
        signed: Option<&SignedRelease>,
        agrees: &dyn Fn(&TrustError) -> bool,
    ) -> Result<Accepted, ShipError> {
        let state = store.map(DeviceStore::seen).transpose()?;
        let state = state.unwrap_or_default();
        let seen = state.of(&name.signed_name());
        let purpose = Purpose::Update;
        self.remembering(&state)?
            .decide(name, bundle, signed, &seen, purpose, agrees)
    }

    /// Decides whether the bundle that a name of the store stands for may run.
    ///
    /// Errors: [`ShipError::Refused`], and those of the store's files.
    pub fn at_open(
        &self,
        store: &DeviceStore,
        name: &ModelName,
        held: &Held,
    ) -> Result<Accepted, ShipError> {
        let signed = held
            .release
            .map(|id| store.release(id))
            .transpose()?
            .flatten();
        let state = store.seen()?;
        let mut seen = state.of(&name.signed_name());
        if held.is_chosen(&seen) {
            // A person went back on purpose, which is not what an attacker does.
            seen.newest = seen.newest.min(held.number.unwrap_or(0));
        }
        let agreed = |_: &TrustError| held.agreed;
        let (signed, purpose) = (signed.as_ref(), Purpose::Run);
        self.remembering(&state)?
            .decide(name, held.bundle, signed, &seen, purpose, &agreed)
    }

    /// The same, with the keys that a store has seen publishers change to.
    fn remembering(&self, state: &TrustState) -> Result<Self, ShipError> {
        let refused = |source| ShipError::TrustFile {
            path: PathBuf::from(STATE),
            source,
        };
        Ok(Self {
            policy: self.policy.remembering(&state.keys).map_err(refused)?,
            moment: self.moment,
        })
    }

    /// Decides whether a bundle that is given by path may run: with `files: Signed`, if a statement lies beside it.
    ///
    /// Errors: [`ShipError::Refused`], [`ShipError::Bundle`], [`ShipError::TrustFile`].
    pub fn of_file(&self, path: &Path) -> Result<(), ShipError> {
        if self.policy.files == FileRule::Any {
            return Ok(());
        }
        let bundle =
            heg_artifacts::Bundle::open(path).map_err(ShipError::bundle(path.display()))?;
        let signed = SignedRelease::beside(path)?;
        let unsigned = || ShipError::Refused {
            name: path.display().to_string(),
            source: TrustError::Unsigned {
                name: path.display().to_string(),
            },
        };
        let signed = signed.ok_or_else(unsigned)?;
        let refused = |source| ShipError::TrustFile {
            path: SignedRelease::path_beside(path),
            source,
        };
        let release = heg_trust::Release::parse(&signed.release).map_err(refused)?;
        let name: ModelName = release.name.parse()?;
        let seen = SeenReleases::default();
        let word = self.decide(
            &name,
            bundle.manifest_id(),
            Some(&signed),
            &seen,
            Purpose::Run,
            &|_| false,
        )?;
        match word.word {
            Word::Signed { .. } => Ok(()),
            Word::Unsigned => Err(unsigned()),
        }
    }
}

impl Held {
    /// Whether this is a release that a person went back to: older than one that was here, and not withdrawn.
    fn is_chosen(&self, seen: &SeenReleases) -> bool {
        self.number
            .is_some_and(|number| !seen.withdrawn.contains(&number))
            && self.went_back
    }
}

impl SignedRelease {
    /// The statement beside a bundle's file: `FILE.release.json`.
    pub fn path_beside(bundle: &Path) -> PathBuf {
        let mut path = bundle.as_os_str().to_owned();
        path.push(".release.json");
        path.into()
    }

    /// Reads the statement beside a bundle's file, and its signatures; `None` if there is no statement.
    ///
    /// Errors: [`ShipError::Io`], [`ShipError::Document`].
    pub fn beside(bundle: &Path) -> Result<Option<Self>, ShipError> {
        let path = Self::path_beside(bundle);
        match path.is_file() {
            true => Self::read(&path).map(Some),
            false => Ok(None),
        }
    }

    /// Reads a statement and the signatures beside it: `release.json.minisig`, or `release.json.1.minisig` and so on. The
    /// publisher's changes of keys are beside it too: `keys.json`, and earlier ones as `keys.1.json` and so on.
    ///
    /// Errors: [`ShipError::Io`], [`ShipError::Document`] for a file that is too long.
    pub fn read(path: &Path) -> Result<Self, ShipError> {
        let numbered = (1..CHANGES_MAX).map(|number| keys_beside(path, &format!(".{number}")));
        let candidates = numbered.chain([keys_beside(path, "")]);
        let mut changes = Vec::new();
        for path in candidates.filter(|path| path.is_file()) {
            changes.push(SignedChange {
                keys: read_bounded(&path, KEYS_BYTES_MAX)?,
                signatures: signatures_beside(&path)?,
            });
        }
        Ok(Self {
            release: read_bounded(path, heg_trust::RELEASE_BYTES_MAX)?,
            signatures: signatures_beside(path)?,
            changes,
        })
    }

    /// Writes the statement and its signatures as [`SignedRelease::read`] takes them.
    ///
    /// Errors: [`ShipError::File`].
    pub fn write(&self, path: &Path) -> Result<(), ShipError> {
        for (change, number) in self.changes.iter().zip(1..) {
            let path = keys_beside(path, &format!(".{number}"));
            write_signatures(&path, &change.signatures)?;
            heg_files::write_whole(&path, &[&change.keys])?;
        }
        write_signatures(path, &self.signatures)?;
        Ok(heg_files::write_whole(path, &[&self.release])?)
    }
}

impl SignedChange {
    pub(crate) fn borrowed(&self) -> SignedKeys<'_> {
        SignedKeys {
            bytes: &self.keys,
            signatures: &self.signatures,
        }
    }
}

/// The file of a change of keys beside a statement: `keys.json` for `release.json`, `FILE.keys.json` for a bundle's.
fn keys_beside(statement: &Path, number: &str) -> PathBuf {
    let name = statement.file_name().unwrap_or_default().to_string_lossy();
    let before = name.strip_suffix("release.json").unwrap_or_default();
    statement.with_file_name(format!("{before}keys{number}.json"))
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(end);
    path.into()
}

fn signatures_beside(path: &Path) -> Result<Vec<Vec<u8>>, ShipError> {
    let numbers = 1..=crate::names::SIGNATURES_MAX;
    let numbered = numbers.map(|number| with_end(path, &format!(".{number}.minisig")));
    let candidates = std::iter::once(with_end(path, ".minisig")).chain(numbered);
    candidates
        .filter(|path| path.is_file())
        .map(|path| read_bounded(&path, SIGNATURE_BYTES_MAX))
        .collect()
}

fn write_signatures(path: &Path, signatures: &[Vec<u8>]) -> Result<(), ShipError> {
    for (signature, number) in signatures.iter().zip(1..) {
        let path = with_end(path, &format!(".{number}.minisig"));
        heg_files::write_whole(&path, &[signature])?;
    }
    Ok(())
}

fn read_bounded(path: &Path, most_bytes: u64) -> Result<Vec<u8>, ShipError> {
    use std::io::Read;
    let file = heg_files::open_regular(path)?;
    let mut bytes = Vec::new();
    let read = file
        .take(most_bytes.saturating_add(1))
        .read_to_end(&mut bytes);
    read.map_err(ShipError::io("read", path))?;
    if bytes.len() as u64 > most_bytes {
        let message = format!("more than `{most_bytes}` bytes");
        return Err(ShipError::document(
            "the statement",
            path.display(),
            message,
        ));
    }
    Ok(bytes)
}

/// The memory of a store about names.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustState {
    /// Version of the document, `trust.state/1`; empty for a store that has seen nothing.
    #[serde(default)]
    heg: String,
    #[serde(default)]
    names: BTreeMap<String, SeenReleases>,
    /// Keys that publishers changed to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<TurnedKeys>,
}

impl TrustState {
    /// Reads a memory that was written.
    ///
    /// Errors: [`ShipError::Document`]; a memory that cannot be read is not one of nothing.
    pub fn parse(bytes: &[u8], place: &str) -> Result<Self, ShipError> {
        let wrong = |message: String| ShipError::document("the memory of releases", place, message);
        let state: Self =
            serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        match state.heg == STATE_VERSION {
            true => Ok(state),
            false => Err(wrong(format!(
                "`{}`, expected `{STATE_VERSION}`",
                state.heg
            ))),
        }
    }

    /// The past of a name.
    pub fn of(&self, signed_name: &str) -> SeenReleases {
        self.names.get(signed_name).cloned().unwrap_or_default()
    }

    fn note(&mut self, signed_name: &str, word: &Word) {
        let seen = self.names.entry(signed_name.to_owned());
        seen.or_default().note(word);
        if let Word::Signed {
            turned: Some(turned),
            ..
        } = word
        {
            self.keys.retain(|known| known.origin != turned.origin);
            self.keys.push(TurnedKeys::clone(turned));
        }
    }
}

impl DeviceStore {
    /// The memory of this store about names.
    ///
    /// Errors: [`ShipError::File`], [`ShipError::Document`].
    pub fn seen(&self) -> Result<TrustState, ShipError> {
        let path = self.path().join(STATE);
        match self.own().read(STATE, STATE_BYTES_MAX)? {
            Some(text) => TrustState::parse(&text, &path.display().to_string()),
            None => Ok(TrustState::default()),
        }
    }

    /// Adds an accepted release to the memory.
    pub(crate) fn note_release(&self, name: &ModelName, word: &Word) -> Result<(), ShipError> {
        let mut state = self.seen()?;
        state.heg = STATE_VERSION.to_owned();
        state.note(&name.signed_name(), word);
        // Text and numbers alone, so serialising cannot fail.
        let text = serde_json::to_vec_pretty(&state).unwrap_or_default();
        Ok(heg_files::write_own(&self.path().join(STATE), &[&text])?)
    }
}

const STATE: &str = "trust.state";
const STATE_VERSION: &str = "trust.state/1";

/// Longest memory, in bytes. Chosen: ten thousand names.
const STATE_BYTES_MAX: u64 = 4 << 20;
