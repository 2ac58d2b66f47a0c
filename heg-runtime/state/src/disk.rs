//! The operations on files that kept state is made of, so that tests can make each of them fail.

use std::fs::{File, FileTimes, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::time::SystemTime;

use heg_files::{FileError, OwnFolder, TempFile, remove_stale};

/// A folder of files, and a clock. Other processes may use the same folder.
pub trait Disk: Send + Sync {
    /// The time of day, which may go back.
    fn now(&self) -> SystemTime;

    /// Lists all files.
    ///
    /// # Errors
    ///
    /// As the operating system says.
    fn list(&self) -> io::Result<Vec<DiskFile>>;

    /// Reads a file's first `most` bytes in place of what `into` holds; returns false if there is no file. The memory of
    /// `into` is used again: fresh memory costs as much time as the reading.
    ///
    /// # Errors
    ///
    /// As the operating system says; also for a file that is another user's.
    fn read_into(&self, name: &str, most: usize, into: &mut Vec<u8>) -> io::Result<bool>;

    /// Opens a file whose bytes can be mapped; `None` if there is no such file, or the disk has none of the system's.
    ///
    /// # Errors
    ///
    /// As [`read_into`](Self::read_into).
    fn open(&self, name: &str) -> io::Result<Option<File>>;

    /// Reads a file's first `most` bytes; `None` if there is no file.
    ///
    /// # Errors
    ///
    /// As [`read_into`](Self::read_into).
    fn read(&self, name: &str, most: usize) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let is_there = self.read_into(name, most, &mut bytes)?;
        Ok(is_there.then_some(bytes))
    }

    /// Writes a file, on disk before it has its name, with a time of use.
    ///
    /// # Errors
    ///
    /// As the operating system says; then there is no such file, or the whole.
    fn write(&self, name: &str, parts: &[&[u8]], used: SystemTime) -> io::Result<()>;

    /// Sets a file's time of use.
    ///
    /// # Errors
    ///
    /// As the operating system says.
    fn touch(&self, name: &str, used: SystemTime) -> io::Result<()>;

    /// Removes a file; it is no error if there is none.
    ///
    /// # Errors
    ///
    /// As the operating system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Removes what killed writers have left. Called with the lock only.
    ///
    /// # Errors
    ///
    /// As the operating system says.
    fn remove_leftovers(&self) -> io::Result<()>;

    /// Locks the folder against other writers; `None` if one of them has it.
    ///
    /// # Errors
    ///
    /// As the operating system says.
    fn lock(&self) -> io::Result<Option<Lock>>;
}

/// A file in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskFile {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The time when it was last used.
    pub used: SystemTime,
}

/// The lock of a folder, which ends with the value or the process.
pub struct Lock(#[expect(dead_code, reason = "it is held, and not read")] Box<dyn Send>);

impl Lock {
    /// Makes a lock that ends when `held` is dropped.
    pub fn new(held: impl Send + 'static) -> Self {
        Self(Box::new(held))
    }
}

/// A folder that only this user can change.
#[derive(Debug, Clone)]
pub struct FolderDisk(OwnFolder);

impl FolderDisk {
    /// Makes a disk of a folder.
    pub fn new(folder: OwnFolder) -> Self {
        Self(folder)
    }
}

impl Disk for FolderDisk {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn list(&self) -> io::Result<Vec<DiskFile>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(self.0.path())? {
            let entry = entry?;
            let data = match entry.metadata() {
                // Removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                data => data?,
            };
            if let Ok(name) = entry.file_name().into_string()
                && data.is_file()
            {
                let (bytes, used) = (data.len(), data.modified()?);
                files.push(DiskFile { name, bytes, used });
            }
        }
        Ok(files)
    }

    fn open(&self, name: &str) -> io::Result<Option<File>> {
        self.0.open(name).map_err(cause)
    }

    fn read_into(&self, name: &str, most: usize, into: &mut Vec<u8>) -> io::Result<bool> {
        let Some(mut file) = self.open(name)? else {
            return Ok(false);
        };
        let there = file.metadata()?.len();
        into.resize(usize::try_from(there).unwrap_or(most).min(most), 0);
        match file.read_exact(into) {
            // It was cut short since.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                into.clear();
                Ok(true)
            }
            read => read.map(|()| true),
        }
    }

    fn write(&self, name: &str, parts: &[&[u8]], used: SystemTime) -> io::Result<()> {
        let mut temp = TempFile::create(self.0.path(), LEFTOVER).map_err(cause)?;
        temp.protect().map_err(cause)?;
        temp.write(parts).map_err(cause)?;
        temp.file().set_times(FileTimes::new().set_modified(used))?;
        temp.file().sync_all()?;
        temp.rename(&self.0.path().join(name)).map_err(cause)
    }

    fn touch(&self, name: &str, used: SystemTime) -> io::Result<()> {
        let file = self.0.open(name).map_err(cause)?;
        let touched = file.map(|file| file.set_times(FileTimes::new().set_modified(used)));
        touched.unwrap_or(Ok(()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.0.path().join(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn remove_leftovers(&self) -> io::Result<()> {
        remove_stale(self.0.path(), LEFTOVER).map_err(cause)
    }

    fn lock(&self) -> io::Result<Option<Lock>> {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true);
        let file: File = options.open(self.0.path().join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// The operating system's own words, or the whole error.
fn cause(error: FileError) -> io::Error {
    match error {
        FileError::Io { source, .. } => source,
        other => io::Error::new(ErrorKind::PermissionDenied, other),
    }
}

/// The name of the file that is locked.
pub(crate) const LOCK: &str = "heg-state.lock";

/// The first letters of files that are being written.
pub const LEFTOVER: &str = "tmp-";
