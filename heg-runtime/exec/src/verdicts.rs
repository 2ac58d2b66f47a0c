//! Remembers which kernels passed their test on this machine's devices, so that later starts need not repeat it.
//!
//! One small file per bundle and set of devices, in the cache folder. It does not apply to another driver, another
//! OpenVINO or other properties: those have files of their own. The file may be malformed; one that cannot be read
//! counts as missing, and the kernels are tested again.

use std::collections::BTreeMap;

use heg_artifacts::SectionId;
use heg_files::OwnFolder;
use heg_spec::Group;
use serde::{Deserialize, Serialize};

use crate::Place;
use crate::error::ExecError;
use crate::ladder::Rung;
use crate::verdict_file;

/// The verdicts on the kernels that were tested.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdicts {
    entries: BTreeMap<(Place, Rung), Verdict>,
}

/// The verdict on one kernel on one rung.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// Largest difference from the known answer, as a share of the largest expected value; infinite if an
    /// output is not finite.
    pub worst: f32,
    /// Root mean square of the differences, as a share of that of the expected values; infinite if an output is not
    /// finite.
    pub rms: f32,
    /// Largest value of `worst` that passes; `rms` may be at most half of it.
    pub tolerance: f32,
}

impl Verdict {
    /// Whether the answer was right, by the rule of [`heg_artifacts::AnswerMatch::passes`].
    pub fn is_right(&self) -> bool {
        self.worst <= self.tolerance && self.rms <= self.tolerance / 2.0
    }
}

/// The file: a list, since keys of JSON objects are strings.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    revision: u32,
    verdicts: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    layer: Option<u32>,
    group: Group,
    rung: Rung,
    /// `None` if it is infinite, which JSON cannot represent.
    worst: Option<f32>,
    rms: Option<f32>,
    tolerance: f32,
}

impl Verdicts {
    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// The mistake in the text; callers treat it like a missing file.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        let file: File = serde_json::from_slice(text)?;
        if file.revision != REVISION {
            return Err(serde::de::Error::custom("another revision"));
        }
        let finite = |entry: &Entry| entry.tolerance.is_finite();
        if !file.verdicts.iter().all(finite) {
            return Err(serde::de::Error::custom("a tolerance without bound"));
        }
        let entries = file.verdicts.into_iter().map(|entry| {
            let place = Place {
                layer: entry.layer,
                group: entry.group,
            };
            let verdict = Verdict {
                worst: entry.worst.unwrap_or(f32::INFINITY),
                rms: entry.rms.unwrap_or(f32::INFINITY),
                tolerance: entry.tolerance,
            };
            ((place, entry.rung), verdict)
        });
        Ok(Self {
            entries: entries.collect(),
        })
    }

    /// The text of a file that [`parse`](Self::parse) reads.
    pub fn to_text(&self) -> String {
        let entry = |((place, rung), verdict): (&(Place, Rung), &Verdict)| Entry {
            layer: place.layer,
            group: place.group,
            rung: *rung,
            worst: Some(verdict.worst).filter(|worst| worst.is_finite()),
            rms: Some(verdict.rms).filter(|rms| rms.is_finite()),
            tolerance: verdict.tolerance,
        };
        let file = File {
            revision: REVISION,
            verdicts: self.entries.iter().map(entry).collect(),
        };
        // The file has only numbers and names, which JSON can always represent.
        serde_json::to_string(&file).unwrap_or_default()
    }

    /// The verdict on a kernel on a rung, if there is one.
    pub fn get(&self, place: Place, rung: Rung) -> Option<Verdict> {
        self.entries.get(&(place, rung)).copied()
    }

    /// Adds the verdict on a kernel on a rung.
    pub fn insert(&mut self, place: Place, rung: Rung, verdict: Verdict) {
        self.entries.insert((place, rung), verdict);
    }

    /// Returns all verdicts.
    pub fn iter(&self) -> impl Iterator<Item = (Place, Rung, Verdict)> {
        let entries = self.entries.iter();
        entries.map(|((place, rung), verdict)| (*place, *rung, *verdict))
    }

    /// Forgets kernels that answered wrongly, and returns their number.
    pub fn clear_quarantine(&mut self) -> usize {
        let before = self.entries.len();
        self.entries.retain(|_, verdict| verdict.is_right());
        before - self.entries.len()
    }

    /// Reads the verdicts in the cache folder under `name`; there are none if the file is missing or unreadable.
    pub fn recall(cache: &OwnFolder, name: &str) -> Self {
        let text = verdict_file::read(cache, name, FILE_BYTES_MAX);
        let parsed = text.and_then(|text| Self::parse(&text).ok());
        parsed.unwrap_or_default()
    }

    /// Remembers these verdicts in the cache folder under `name`.
    ///
    /// # Errors
    ///
    /// [`ExecError::Cache`] if the folder is not the user's own, or cannot be written.
    pub fn remember(&self, cache: &OwnFolder, name: &str) -> Result<(), ExecError> {
        verdict_file::write(cache, name, &self.to_text())
    }
}

/// Returns the name of the file for a bundle on devices that `devices` describes.
pub(crate) fn file_name(bundle: SectionId, devices: &str) -> String {
    let devices = SectionId::of(devices.as_bytes());
    format!("{bundle}-{}.json", devices.short())
}

/// 2: errors of devices are no verdicts; files of revision 1 may have them as wrong answers.
const REVISION: u32 = 2;

/// Most bytes of a file. Chosen: some thousand verdicts are 500 kB.
const FILE_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use heg_spec::DeviceClass;

    use super::*;
    use crate::ladder::RungSource;
    use crate::verdict_file::FOLDER;

    fn place(layer: u32) -> Place {
        Place {
            layer: Some(layer),
            group: Group::Ffn,
        }
    }

    fn rung(source: RungSource) -> Rung {
        Rung {
            role: DeviceClass::Npu,
            variant: 3,
            source,
        }
    }

    fn verdicts() -> Verdicts {
        let mut verdicts = Verdicts::default();
        let verdict = |worst| Verdict {
            worst,
            rms: worst / 2.0,
            tolerance: 0.05,
        };
        verdicts.insert(place(0), rung(RungSource::Ir), verdict(0.01));
        verdicts.insert(place(1), rung(RungSource::Blob(2)), verdict(0.4));
        verdicts.insert(place(2), rung(RungSource::Ir), verdict(f32::INFINITY));
        verdicts
    }

    #[test]
    fn a_file_gives_back_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        assert_eq!(Verdicts::recall(&cache, "x"), Verdicts::default());
        verdicts().remember(&cache, "x").unwrap();
        assert_eq!(Verdicts::recall(&cache, "x"), verdicts());
        assert_eq!(Verdicts::recall(&cache, "y"), Verdicts::default());
    }

    #[test]
    fn the_file_is_plain() {
        insta::assert_snapshot!(verdicts().to_text());
    }

    #[test]
    fn quarantine_is_forgotten_and_what_is_right_stays() {
        let mut verdicts = verdicts();
        assert_eq!(verdicts.clear_quarantine(), 2);
        assert_eq!(verdicts.iter().count(), 1);
        assert!(
            verdicts
                .get(place(0), rung(RungSource::Ir))
                .is_some_and(|verdict| verdict.is_right())
        );
    }

    #[test]
    fn a_file_that_is_not_ours_is_not_believed() {
        let text = verdicts().to_text();
        for wrong in [
            text.replace("\"revision\":2", "\"revision\":1"),
            text.replace("\"worst\"", "\"best\""),
            text.replace("\"tolerance\":0.05", "\"tolerance\":1e39"),
            text[..text.len() - 1].to_owned(),
            String::new(),
            "[".repeat(10_000),
        ] {
            assert!(Verdicts::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_others_may_write_to_is_not_used() {
        use std::fs;
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        verdicts().remember(&cache, "x").unwrap();
        let inner = folder.path().join(FOLDER);
        let mode = |mode| fs::set_permissions(&inner, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(
            fs::metadata(&inner).unwrap().permissions().mode() & 0o777,
            0o700
        );
        mode(0o777);
        assert_eq!(Verdicts::recall(&cache, "x"), Verdicts::default());
        let error = verdicts().remember(&cache, "x").unwrap_err();
        assert!(
            error.to_string().starts_with("cannot use the cache folder"),
            "{error}"
        );
    }
}
