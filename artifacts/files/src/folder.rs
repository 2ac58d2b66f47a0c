//! A folder whose content can be trusted, because no other user can change it.

use std::fs::{DirBuilder, File};
use std::path::{Path, PathBuf};

use crate::error::FileError;
use crate::owners::Owners;
use crate::platform;
use crate::read::{open_own, read_own};
use crate::temp::TempFile;

/// A folder that, like every folder on the way to it, only this user and root can change.
#[derive(Debug, Clone)]
pub struct OwnFolder {
    path: PathBuf,
}

impl OwnFolder {
    /// Opens the folder at `path`; creates it for this user alone if it does not exist.
    ///
    /// # Errors
    ///
    /// The errors of [`Owners::check_folder`], also for the existing part of the path to a new folder.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        let owners = Owners::this_user();
        let path = std::path::absolute(path).map_err(FileError::io("resolve", path))?;
        if !path.exists() {
            owners.check_place(&first_missing(&path))?;
            let mut builder = DirBuilder::new();
            builder.recursive(true);
            platform::for_this_user(&mut builder);
            builder
                .create(&path)
                .map_err(FileError::io("create", &path))?;
        }
        let path = owners.check_folder(&path)?;
        Ok(Self { path })
    }

    /// Opens a folder inside this one; creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// The errors of [`create`](Self::create).
    pub fn folder(&self, name: &str) -> Result<Self, FileError> {
        Self::create(&self.path.join(name))
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content of a file in the folder; `None` if there is no file.
    ///
    /// # Errors
    ///
    /// [`FileError::Kind`] for anything but a regular file, [`FileError::TooLong`] for one of more than `most_bytes`,
    /// [`FileError::Owner`], [`FileError::Writable`], [`FileError::Io`].
    pub fn read(&self, name: &str, most_bytes: u64) -> Result<Option<Vec<u8>>, FileError> {
        read_own(&self.path.join(name), &Owners::this_user(), most_bytes)
    }

    /// Opens a file in the folder for reading; `None` if there is no file.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read) but for the length.
    pub fn open(&self, name: &str) -> Result<Option<File>, FileError> {
        open_own(&self.path.join(name), &Owners::this_user())
    }

    /// Writes the parts, one after the other, to a file in the folder. A reader sees the old content or all of the new.
    ///
    /// # Errors
    ///
    /// [`FileError::Io`]; the file is then unchanged.
    pub fn write(&self, name: &str, parts: &[&[u8]]) -> Result<(), FileError> {
        let temp = TempFile::create(&self.path, &format!("{name}.tmp-"))?;
        // Whatever the umask: a file that others may write to is not read back.
        let protected = platform::protect(temp.file());
        protected.map_err(FileError::io("protect", temp.path()))?;
        temp.complete(parts, &self.path.join(name))
    }
}

/// The outermost part of `path` that does not exist.
fn first_missing(path: &Path) -> PathBuf {
    let missing = path.ancestors().take_while(|above| !above.exists());
    missing.last().unwrap_or(path).to_owned()
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_folder_is_for_its_user_alone() {
        let above = tempfile::tempdir().unwrap();
        let folder = OwnFolder::create(&above.path().join("a/b")).unwrap();
        let inner = folder.folder("c").unwrap();
        for path in [folder.path(), inner.path()] {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
    }

    #[test]
    fn nothing_is_made_where_others_may_write() {
        let above = tempfile::tempdir().unwrap();
        fs::set_permissions(above.path(), Permissions::from_mode(0o777)).unwrap();
        let error = OwnFolder::create(&above.path().join("a/b")).unwrap_err();
        assert!(matches!(error, FileError::Writable { .. }), "{error}");
        assert!(!above.path().join("a").exists());
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = OwnFolder::create(folder.path()).unwrap();
        assert_eq!(folder.read("x", 10).unwrap(), None);
        for parts in [&[b"one".as_slice(), b"two"][..], &[b"three"]] {
            folder.write("x", parts).unwrap();
            assert_eq!(folder.read("x", 10).unwrap(), Some(parts.concat()));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
