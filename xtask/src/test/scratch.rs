//! The folder in which tests keep their files: in memory where there is room. Tests make a few thousand small files and sync
//! many of them, which takes up to a third of the time of those tests on a disk.

use std::path::Path;
use tempfile::TempDir;
use xtask::workspace::note;

/// A new folder in memory, removed when it is dropped; `None` where there is too little memory, or tests have a place already.
pub(super) fn in_memory() -> Option<TempDir> {
    if std::env::var_os("TMPDIR").is_some() || free_bytes(Path::new(MEMORY))? < ROOM_BYTES {
        return None;
    }
    let folder = TempDir::with_prefix_in("heg-tests-", MEMORY).ok()?;
    note(format!("tests write to `{}`", folder.path().display()));
    Some(folder)
}

/// Bytes that a file system has left; `None` where there is none.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// `None`: the standard library does not say.
#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// The file system in memory that Linux has for everybody.
const MEMORY: &str = "/dev/shm";

/// Bytes that have to be free: several times the most that tests keep at once.
const ROOM_BYTES: u64 = 8 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_has_no_room() {
        assert_eq!(free_bytes(Path::new("/there/is/nothing")), None);
    }
}
