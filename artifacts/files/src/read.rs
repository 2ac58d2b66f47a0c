//! Opens and reads files of unknown kind: never waits for a pipe, never reads more than a bounded length.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::Path;

use crate::error::FileError;
use crate::owners::Owners;
use crate::platform::{Links, open_at_once};

/// Opens a regular file for reading. Anything else is refused at once: opening a pipe would wait for its writer.
///
/// # Errors
///
/// [`FileError::Io`], [`FileError::Kind`].
pub fn open_regular(path: &Path) -> Result<File, FileError> {
    open(path, Links::Followed)
}

/// Opens a file that only `owners` can change and that is not itself a link. Returns `None` if there is no file.
pub(crate) fn open_own(path: &Path, owners: &Owners) -> Result<Option<File>, FileError> {
    let file = match open(path, Links::Refused) {
        Err(error) if error.is_not_found() => return Ok(None),
        opened => opened?,
    };
    let data = file.metadata().map_err(FileError::io("inspect", path))?;
    owners.check_file(path, &data)?;
    Ok(Some(file))
}

/// Reads a file that [`open_own`] opens.
pub(crate) fn read_own(
    path: &Path,
    owners: &Owners,
    most_bytes: u64,
) -> Result<Option<Vec<u8>>, FileError> {
    let Some(file) = open_own(path, owners)? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    let mut bounded = file.take(most_bytes.saturating_add(1));
    bounded
        .read_to_end(&mut bytes)
        .map_err(FileError::io("read", path))?;
    if bytes.len() as u64 > most_bytes {
        let path = path.to_owned();
        return Err(FileError::TooLong { path, most_bytes });
    }
    Ok(Some(bytes))
}

fn open(path: &Path, links: Links) -> Result<File, FileError> {
    let mut options = OpenOptions::new();
    options.read(true);
    open_at_once(&mut options, links);
    let refused = |found| FileError::Kind {
        path: path.to_owned(),
        found,
        expected: "a regular file",
    };
    if links == Links::Refused && path.is_symlink() {
        return Err(refused("a symbolic link"));
    }
    let file = options.open(path).map_err(FileError::io("open", path))?;
    let data = file.metadata().map_err(FileError::io("inspect", path))?;
    if data.is_file() {
        Ok(file)
    } else if data.is_dir() {
        Err(refused("a folder"))
    } else {
        Err(refused("a pipe, a socket or a device"))
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
        let read = read_own(path, &Owners::this_user(), 5);
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn a_pipe_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let text = format!(
            "`{}` is a pipe, a socket or a device, expected a regular file",
            pipe.display()
        );
        assert_eq!(open_regular(&pipe).unwrap_err().to_string(), text);
        assert_eq!(read(&pipe).unwrap_err(), text);
    }

    #[test]
    fn only_short_files_of_ours_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert_eq!(read(&path), Ok(None));
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read(&path), Ok(Some(b"12345".to_vec())));
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(read(&link).unwrap_err().contains("is a symbolic link"));
        assert!(open_regular(&link).is_ok());
        std::fs::write(&path, b"123456").unwrap();
        assert!(read(&path).unwrap_err().contains("has more than 5 bytes"));
        std::fs::write(&path, b"").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o602)).unwrap();
        assert!(
            read(&path)
                .unwrap_err()
                .starts_with("other users can write to")
        );
        assert!(read(folder.path()).unwrap_err().contains("is a folder"));
    }
}
