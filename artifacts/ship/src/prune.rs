//! Bundles and parts that no name needs any more, and their removal. Nothing else of a store is ever deleted.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use heg_artifacts::{PartId, SectionId};

use crate::error::ShipError;
use crate::store::{ASSEMBLED, DeviceStore, NOTES, PARTIAL, PARTS, RELEASES, VIEWS};

/// Files of a store that no name needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Garbage {
    /// Bundles without a name.
    pub bundles: Vec<SectionId>,
    /// Files, in the order in which they are removed.
    files: Vec<PathBuf>,
    /// Their room on the disk, in bytes.
    pub bytes: u64,
    /// Of it that of partial files, which a later pull would go on with.
    pub partial_bytes: u64,
}

impl Garbage {
    /// Number of files.
    pub fn files(&self) -> usize {
        self.files.len()
    }
}

impl DeviceStore {
    /// Room on the disk of all files of the store, in bytes.
    ///
    /// Errors: [`ShipError::Io`].
    pub fn room_bytes(&self) -> Result<u64, ShipError> {
        Ok(self.files_below("")?.values().sum())
    }

    /// Finds what no name needs: views without a name, parts without a view, statements without either, partial files.
    ///
    /// Errors: [`ShipError::Io`]; those of reading names and views, since then nothing may be taken for garbage.
    pub fn garbage(&self) -> Result<Garbage, ShipError> {
        let mut bundles = BTreeSet::new();
        let mut releases = BTreeSet::new();
        for (_, record) in self.names()? {
            for held in std::iter::once(&record.now).chain(&record.before) {
                bundles.insert(held.bundle);
                releases.extend(held.release.map(|id| id.to_string()));
            }
        }
        let mut parts: BTreeSet<PartId> = BTreeSet::new();
        for bundle in &bundles {
            if let Some(view) = self.view(*bundle)? {
                parts.extend(view.parts().iter().map(|part| part.id));
            }
        }
        let names: BTreeSet<String> = bundles.iter().map(ToString::to_string).collect();
        let part_names: BTreeSet<String> = parts.iter().map(ToString::to_string).collect();
        let mut garbage = Garbage {
            bundles: self
                .bundles()?
                .into_iter()
                .filter(|bundle| !bundles.contains(bundle))
                .collect(),
            ..Garbage::default()
        };
        // Views first: one without its parts would be a bundle that does not open.
        let folders: [(&str, &BTreeSet<String>); 5] = [
            (VIEWS, &names),
            (ASSEMBLED, &names),
            (PARTS, &part_names),
            (NOTES, &part_names),
            (RELEASES, &releases),
        ];
        for (folder, needed) in folders {
            for (path, bytes) in self.files_below(folder)? {
                if !needed.contains(&stem(&path)) {
                    garbage.files.push(path);
                    garbage.bytes = garbage.bytes.saturating_add(bytes);
                }
            }
        }
        for (path, bytes) in self.files_below(PARTIAL)? {
            garbage.files.push(path);
            garbage.bytes = garbage.bytes.saturating_add(bytes);
            garbage.partial_bytes = garbage.partial_bytes.saturating_add(bytes);
        }
        Ok(garbage)
    }

    /// Removes what no name needs. Processes that have it open go on with it. `waits` is called if another command
    /// changes the store.
    ///
    /// Errors: as [`DeviceStore::garbage`], and [`ShipError::Io`] for the first file that cannot be removed.
    pub fn prune(&self, waits: &dyn Fn()) -> Result<Garbage, ShipError> {
        let _lock = self.lock(waits)?;
        let garbage = self.garbage()?;
        for path in &garbage.files {
            fs::remove_file(path).map_err(ShipError::io("remove", path))?;
        }
        Ok(garbage)
    }
}

/// A file's name up to its first dot.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}
