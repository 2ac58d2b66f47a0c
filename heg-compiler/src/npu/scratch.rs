//! The folder for the files that a run and its workers exchange.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::error::NpuError;

/// A fresh folder, removed when dropped. The folder of a killed run is removed by the next run: a folder belongs to the
/// process that holds the lock on its file.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
    _owner: File,
}

impl Scratch {
    /// Creates a folder within `parent`, which is created if absent.
    pub(super) fn new(parent: &Path) -> Result<Self, NpuError> {
        fs::create_dir_all(parent).map_err(NpuError::io("create", parent))?;
        // Workers are started in the folder, where a relative path would be wrong.
        let parent = parent
            .canonicalize()
            .map_err(NpuError::io("resolve", parent))?;
        // No clean-up may run between the creation of a folder and its lock.
        let gate = lock_file(&parent.join("lock"))?;
        gate.lock().map_err(NpuError::io("lock", &parent))?;
        remove_orphans(&parent)?;
        let mut number = std::process::id() as usize;
        let folder = loop {
            let folder = parent.join(format!("run-{number}"));
            match fs::create_dir(&folder) {
                Ok(()) => break folder,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(NpuError::io("create", folder)(error)),
            }
        };
        let owner = lock_file(&folder.join(OWNER))?;
        owner.lock().map_err(NpuError::io("lock", &folder))?;
        Ok(Self {
            folder,
            _owner: owner,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that cannot be removed is left to the next run.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn lock_file(path: &Path) -> Result<File, NpuError> {
    File::create(path).map_err(NpuError::io("create", path))
}

fn remove_orphans(parent: &Path) -> Result<(), NpuError> {
    let entries = fs::read_dir(parent).map_err(NpuError::io("list", parent))?;
    for folder in entries.flatten().map(|entry| entry.path()) {
        let owned = || File::open(folder.join(OWNER)).is_ok_and(|owner| owner.try_lock().is_err());
        if folder.is_dir() && !owned() {
            let _ = fs::remove_dir_all(&folder);
        }
    }
    Ok(())
}

const OWNER: &str = "owner";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_living_stay_and_those_of_the_dead_go() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path().join("npu");
        let alive = Scratch::new(&parent).unwrap();
        let orphan = parent.join("run-0");
        fs::create_dir(&orphan).unwrap();
        fs::write(orphan.join(OWNER), b"").unwrap();
        let other = Scratch::new(&parent).unwrap();
        assert_ne!(alive.path(), other.path());
        assert!(alive.path().is_dir() && other.path().is_dir() && !orphan.exists());
        let path = alive.path().to_owned();
        drop(alive);
        assert!(!path.exists());
    }
}
