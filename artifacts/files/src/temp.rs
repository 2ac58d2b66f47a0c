//! Files that are either complete or absent.
//!
//! A file first gets a temporary name, `<prefix><pid>-<n>`, and its real name by a rename when it is complete. It is
//! locked while it is open. A [`TempFile`] that is dropped earlier removes itself; the leftovers of a killed process
//! are removed by [`remove_stale`], which recognises them because nobody holds their lock: unlike a process id, a lock
//! means the same in every container that sees the folder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::error::FileError;
use crate::platform::{for_this_user_alone, is_linked, protect};

/// A new file under a temporary name, removed on drop unless [`TempFile::rename`] succeeded.
#[derive(Debug)]
pub struct TempFile {
    file: File,
    path: PathBuf,
    kept: bool,
}

impl TempFile {
    /// Creates `<folder>/<prefix><pid>-<n>` with an unused n.
    ///
    /// # Errors
    ///
    /// [`FileError::Io`].
    pub fn create(folder: &Path, prefix: &str) -> Result<Self, FileError> {
        let pid = std::process::id();
        loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{prefix}{pid}-{n}"));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) if is_ours(&file) => {
                    return Ok(Self {
                        file,
                        path,
                        kept: false,
                    });
                }
                // A clean-up saw the file before it was locked, and removes it.
                Ok(_) => {}
                // A process with the same number, now dead or in another container, took this name.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => return Err(FileError::io("create", path)(source)),
            }
        }
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The temporary name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all parts, one after the other, and gives the file its real name.
    pub(crate) fn complete(mut self, parts: &[&[u8]], target: &Path) -> Result<(), FileError> {
        self.write(parts)?;
        self.rename(target)
    }

    /// Removes the permissions of all other users, whatever the umask.
    ///
    /// # Errors
    ///
    /// [`FileError::Io`].
    pub fn protect(&self) -> Result<(), FileError> {
        protect(&self.file).map_err(FileError::io("protect", &self.path))
    }

    /// Writes all parts, one after the other, to its end.
    ///
    /// # Errors
    ///
    /// [`FileError::Io`].
    pub fn write(&mut self, parts: &[&[u8]]) -> Result<(), FileError> {
        for part in parts {
            let written = self.file.write_all(part);
            written.map_err(FileError::io("write", &self.path))?;
        }
        Ok(())
    }

    /// Gives the file its real name, replacing a file of that name.
    ///
    /// # Errors
    ///
    /// [`FileError::Io`].
    pub fn rename(mut self, target: &Path) -> Result<(), FileError> {
        fs::rename(&self.path, target).map_err(FileError::io("create", target))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.kept {
            // A failure here cannot be handled: the next process to open the folder tries again.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates a file that only this user may read, to be written bit by bit, replacing a file of that name. A link is not
/// followed, and anything but a file is left as it is.
///
/// # Errors
///
/// [`FileError::Io`], [`FileError::Kind`].
pub fn create_own(path: &Path) -> Result<File, FileError> {
    match fs::symlink_metadata(path) {
        Ok(data) if data.is_file() => {
            fs::remove_file(path).map_err(FileError::io("remove", path))?
        }
        Ok(_) => {
            return Err(FileError::Kind {
                path: path.to_owned(),
                found: "a link, a folder, a pipe or a device",
                expected: "a regular file",
            });
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(source) => return Err(FileError::io("inspect", path)(source)),
    }
    let mut options = OpenOptions::new();
    // A process that has the old file open keeps reading the old file, not this one.
    options.write(true).create_new(true);
    for_this_user_alone(&mut options);
    options.open(path).map_err(FileError::io("create", path))
}

/// Writes a file, one part after the other. A reader sees the old content or all of the new.
///
/// # Errors
///
/// [`FileError::Io`]; the file is then unchanged.
pub fn write_whole(path: &Path, parts: &[&[u8]]) -> Result<(), FileError> {
    beside(path)?.complete(parts, path)
}

/// Writes a file that only this user may read, as [`write_whole`] does, and syncs it so that it survives a power cut.
///
/// # Errors
///
/// [`FileError::Io`]; the file is then unchanged.
pub fn write_own(path: &Path, parts: &[&[u8]]) -> Result<(), FileError> {
    let mut temp = beside(path)?;
    temp.protect()?;
    temp.write(parts)?;
    let synced = temp.file.sync_all();
    synced.map_err(FileError::io("sync", &temp.path))?;
    temp.rename(path)
}

/// Creates a temporary file beside `path`.
fn beside(path: &Path) -> Result<TempFile, FileError> {
    let folder = path.parent().unwrap_or(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    TempFile::create(folder, &format!("{name}.tmp-"))
}

/// Locks a new file. Returns false if it was removed before it was locked, or is being removed.
fn is_ours(file: &File) -> bool {
    match file.try_lock() {
        Ok(()) => is_linked(file),
        Err(TryLockError::WouldBlock) => false,
        // The file system has no locks: `remove_stale` then leaves any file that is younger than a day.
        Err(TryLockError::Error(_)) => true,
    }
}

/// Removes the temporary files `<prefix><pid>-<n>` in `folder` that will not be finished: those whose lock nobody holds
/// or, if the file system has no locks, those that were not written to for a day. A file that cannot be inspected or
/// removed is left, as another process may be working on it.
///
/// # Errors
///
/// [`FileError::Io`] if the folder cannot be listed.
pub fn remove_stale(folder: &Path, prefix: &str) -> Result<(), FileError> {
    let entries = fs::read_dir(folder).map_err(FileError::io("list", folder))?;
    for entry in entries {
        let entry = entry.map_err(FileError::io("list", folder))?;
        let name = entry.file_name();
        let is_temporary = name.to_str().is_some_and(|name| is_named(name, prefix));
        if is_temporary && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            remove_if_stale(&entry.path());
        }
    }
    Ok(())
}

fn remove_if_stale(path: &Path) {
    let Ok(file) = File::open(path) else {
        return;
    };
    let is_stale = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => is_old(&file),
    };
    if is_stale {
        // While the lock is held, a process that has just created the file cannot lock it, and takes another name.
        let _ = fs::remove_file(path);
    }
}

fn is_old(file: &File) -> bool {
    let modified = file.metadata().and_then(|data| data.modified());
    let age = modified.map(|modified| SystemTime::now().duration_since(modified));
    age.is_ok_and(|age| age.is_ok_and(|age| age > AGE_MAX))
}

/// Whether a name is `<prefix><pid>-<n>`.
fn is_named(name: &str, prefix: &str) -> bool {
    let numbers = name.strip_prefix(prefix);
    let numbers = numbers.and_then(|numbers| numbers.split_once('-'));
    numbers.is_some_and(|(pid, n)| pid.parse::<u32>().is_ok() && n.parse::<u64>().is_ok())
}

/// One counter for all folders: names only have to be different.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Longer than writing a file takes. Chosen, not measured.
const AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[cfg(unix)]
    #[test]
    fn a_file_of_ones_own_is_read_by_nobody_else_and_follows_no_link() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let mut reader = File::open(&path).unwrap();
        create_own(&path).unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let mut seen = String::new();
        std::io::Read::read_to_string(&mut reader, &mut seen).unwrap();
        assert_eq!(seen, "old", "who had it open sees nothing of the new one");
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        symlink(&target, &link).unwrap();
        for path in [link.as_path(), folder.path()] {
            let refused = create_own(path).unwrap_err().to_string();
            assert!(refused.contains("expected a regular file"), "{refused}");
        }
        assert!(!target.exists());
    }

    #[test]
    fn dropped_files_vanish_and_renamed_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let first = TempFile::create(folder.path(), "").unwrap();
        let second = TempFile::create(folder.path(), "").unwrap();
        assert_ne!(first.path(), second.path());
        drop(first);
        second.rename(&folder.path().join("kept")).unwrap();
        assert_eq!(names(folder.path()), ["kept"]);
    }

    /// A process in another container may have any number, even one that no process here has.
    #[test]
    fn a_file_that_is_being_written_stays_whatever_its_name_says() {
        let folder = tempfile::tempdir().unwrap();
        let alive = TempFile::create(folder.path(), "p").unwrap();
        let elsewhere = folder.path().join(format!("p{NOBODY}-0"));
        fs::rename(alive.path(), &elsewhere).unwrap();
        remove_stale(folder.path(), "p").unwrap();
        assert!(elsewhere.exists());
        drop(alive);
        remove_stale(folder.path(), "p").unwrap();
        assert!(!elsewhere.exists());
    }

    #[test]
    fn what_nobody_holds_is_removed_also_where_the_number_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let create = |name: String| fs::write(folder.path().join(name), b"x").unwrap();
        create(format!("p{NOBODY}-0"));
        create(format!("p{}-7", std::process::id()));
        create("p1-0".to_owned());
        let others = [
            format!("p{NOBODY}"),
            format!("p{NOBODY}-x"),
            format!("q{NOBODY}-0"),
        ];
        others.iter().cloned().for_each(create);
        remove_stale(folder.path(), "p").unwrap();
        assert_eq!(names(folder.path()), others);
    }

    #[test]
    fn an_own_file_is_written_as_a_whole_and_for_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"old").unwrap();
        write_own(&path, &[b"n", b"ew"]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["file"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert!(write_own(&folder.path().join("absent/file"), &[]).is_err());
    }

    /// Above the largest process id of Linux (2^22).
    const NOBODY: u32 = 4_194_305;
}
