//! Files that are either complete or not there.
//!
//! Everything this crate writes gets a temporary name first, `<prefix><pid>-<n>`, and its real name by a
//! rename when it is complete. A [`TempFile`] that is dropped before removes itself; what a killed process
//! leaves behind is removed by [`remove_stale`] when the process is dead or the file older than a day. The
//! age is for systems that cannot tell, and for process ids of another container.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::error::Error;

/// A new file under a temporary name, removed on drop unless [`TempFile::rename`] succeeded.
#[derive(Debug)]
pub(crate) struct TempFile {
    file: File,
    path: PathBuf,
    kept: bool,
}

impl TempFile {
    /// Creates `<folder>/<prefix><pid>-<n>` with an n that nobody has.
    pub(crate) fn create(folder: &Path, prefix: &str) -> Result<Self, Error> {
        let pid = std::process::id();
        loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{prefix}{pid}-{n}"));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    return Ok(Self {
                        file,
                        path,
                        kept: false,
                    });
                }
                // A process with our id, now dead or in another container, had the same idea.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => return Err(Error::io("create", path)(source)),
            }
        }
    }

    /// The open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Its temporary name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The same file, with a handle that refuses to write: stands for a full disk.
    #[cfg(test)]
    pub(crate) fn opened_for_reading(mut self) -> Self {
        self.file = File::open(&self.path).expect("the file is there");
        self
    }

    /// Gives the file its real name, replacing what had it.
    pub(crate) fn rename(mut self, target: &Path) -> Result<(), Error> {
        fs::rename(&self.path, target).map_err(Error::io("create", target))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.kept {
            // Nothing can be done about a failure here: whoever opens the folder next tries again.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the temporary files `<prefix><pid>-<n>` in `folder` that nobody will finish. What cannot be
/// inspected or removed is left: it may be another process's turn at this moment.
///
/// Errors: [`Error::Io`] if the folder cannot be listed.
pub(crate) fn remove_stale(folder: &Path, prefix: &str) -> Result<(), Error> {
    let entries = fs::read_dir(folder).map_err(Error::io("list", folder))?;
    for entry in entries {
        let entry = entry.map_err(Error::io("list", folder))?;
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| owner(name, prefix)) else {
            continue;
        };
        let age = entry.metadata().and_then(|metadata| metadata.modified());
        let age = age
            .ok()
            .and_then(|modified| SystemTime::now().duration_since(modified).ok());
        if is_dead(pid) || age.is_some_and(|age| age > AGE_MAX) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// The process id in `<prefix><pid>-<n>`.
fn owner(name: &str, prefix: &str) -> Option<u32> {
    let (pid, n) = name.strip_prefix(prefix)?.split_once('-')?;
    n.parse::<u64>().ok()?;
    pid.parse().ok()
}

/// Whether no process has this id. `false` where that cannot be found out.
fn is_dead(pid: u32) -> bool {
    let processes = Path::new("/proc");
    pid != std::process::id()
        && processes.join("self").exists()
        && !processes.join(pid.to_string()).exists()
}

/// One counter for all folders: names only have to differ.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Longer than any compilation takes to write one file. Chosen, not measured.
const AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    /// Above the largest process id of Linux (2^22).
    const DEAD: u32 = 4_194_305;

    #[test]
    fn dropped_files_vanish_and_renamed_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let first = TempFile::create(folder.path(), "").unwrap();
        let second = TempFile::create(folder.path(), "").unwrap();
        assert_ne!(first.path(), second.path());
        drop(first);
        second.rename(&folder.path().join("kept")).unwrap();
        let names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["kept"]);
    }

    #[test]
    fn only_stale_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let create = |name: String| fs::write(folder.path().join(name), b"x").unwrap();
        create(format!("p{DEAD}-0"));
        create(format!("q{DEAD}-0"));
        create(format!("p{DEAD}"));
        create(format!("p{DEAD}-x"));
        create(format!("p{}-7", std::process::id()));
        create("p1-0".to_owned());
        let old = File::create(folder.path().join("p1-1")).unwrap();
        old.set_modified(SystemTime::now() - 2 * AGE_MAX).unwrap();
        remove_stale(folder.path(), "p").unwrap();
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let own = format!("p{}-7", std::process::id());
        let mut expected = vec![
            "p1-0".to_owned(),
            format!("p{DEAD}"),
            format!("p{DEAD}-x"),
            own,
            format!("q{DEAD}-0"),
        ];
        expected.sort();
        assert_eq!(names, expected);
    }
}
