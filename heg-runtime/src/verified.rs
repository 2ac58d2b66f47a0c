//! Remembers the bundles that were verified on this machine, so that later starts need not hash them again.
//!
//! A bundle's first start hashes every section before its use. After that, a small note in the cache folder says
//! that the bundle with this manifest, in the file with this identity (device, inode, length, times) or in parts with
//! these, was correct. As long as the identity is the same, the file was neither written nor replaced, and its sections are taken to be
//! correct. Silent corruption on the disk is found only by `heg verify`, which never uses the notes. Since a note
//! saves the hashing, it is trusted only in a folder, and from a file, that nobody else can write to.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use heg_artifacts::{Bundle, FileIdentity};
use heg_files::{FileError, OwnFolder};

use crate::error::RuntimeError;
use crate::platform::{user_cache_folder, variable};
use heg_exec::ExecError;

/// Marks the sections of `bundle` as verified if this file was verified before. Returns whether it was.
pub fn trust_if_verified(bundle: &Bundle, cache: &OwnFolder) -> bool {
    let known = bundle
        .mapping()
        .identities()
        .is_some_and(|identities| recall(bundle, cache) == Some(identities));
    if known {
        bundle.trust_sections();
    }
    known
}

/// Hashes the sections that were not hashed yet, and remembers that all were correct. A file that changed in the
/// last seconds is not remembered: another change within the clock's tick would go unseen. A failure to write the
/// cache is no error; the next start hashes again.
pub fn remember(bundle: &Bundle, cache: &OwnFolder) -> Result<(), RuntimeError> {
    let Some(identities) = bundle.mapping().identities() else {
        return Ok(());
    };
    let is_known = recall(bundle, cache).as_ref() == Some(&identities);
    if is_known || identities.iter().copied().any(is_recent) {
        return Ok(());
    }
    for section in &bundle.manifest().sections {
        bundle.section(section.id).map_err(ExecError::Section)?;
    }
    // Without the note a later start takes longer, nothing else.
    let _ = write(bundle, cache, &identities);
    Ok(())
}

/// Remembers a bundle whose every byte was checked while it was written, under names that nobody else writes to: nothing
/// is hashed, now or at the first start. Recent files count, since no later write can have the same name.
pub fn remember_checked(bundle: &Bundle, cache: &OwnFolder) {
    if let Some(identities) = bundle.mapping().identities() {
        // Without the note the first start takes longer, nothing else.
        let _ = write(bundle, cache, &identities);
    }
}

/// Returns the cache folder: `HEG_CACHE_DIR`, else the user's cache folder, created if missing; `None` if there is
/// neither, or the system does not allow its creation.
///
/// # Errors
///
/// [`ExecError::Cache`] if other users could change its contents.
pub fn cache_folder() -> Result<Option<OwnFolder>, RuntimeError> {
    let Some(path) = cache_path() else {
        return Ok(None);
    };
    match OwnFolder::create(&path) {
        Ok(folder) => Ok(Some(folder)),
        // On a read-only machine nothing is cached.
        Err(FileError::Io { .. }) => Ok(None),
        Err(source) => Err(ExecError::Cache { path, source }.into()),
    }
}

fn cache_path() -> Option<PathBuf> {
    variable("HEG_CACHE_DIR").or_else(|| Some(user_cache_folder()?.join("heg")))
}

fn note(bundle: &Bundle) -> String {
    format!("{}.json", bundle.manifest_id())
}

fn recall(bundle: &Bundle, cache: &OwnFolder) -> Option<Vec<FileIdentity>> {
    let folder = cache.folder(FOLDER).ok()?;
    let text = folder.read(&note(bundle), NOTE_BYTES_MAX).ok()??;
    serde_json::from_slice(&text).ok()
}

fn write(bundle: &Bundle, cache: &OwnFolder, identities: &[FileIdentity]) -> Result<(), FileError> {
    // Identities are all numbers, so serialising them cannot fail.
    let text = serde_json::to_vec(identities).unwrap_or_default();
    cache.folder(FOLDER)?.write(&note(bundle), &[&text])
}

const FOLDER: &str = "verified";

/// Seven numbers take 200 bytes, and a bundle of a store has hundreds of parts, or thousands in an order that no writer
/// makes.
const NOTE_BYTES_MAX: u64 = 4 << 20;

fn is_recent(identity: FileIdentity) -> bool {
    let changed = u64::try_from(identity.changed[0]).unwrap_or(0);
    let changed = UNIX_EPOCH + Duration::from_secs(changed);
    // A time in the future is no reason to trust the file either.
    SystemTime::now()
        .duration_since(changed)
        .is_ok_and(|age| age < RECENT)
        || changed > SystemTime::now()
}

/// Far above the granularity of file times (4 ms on Linux, 2 s on FAT).
const RECENT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const TINY: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../artifacts/testdata/v1/tiny.heg"
    );

    /// Copies the tiny bundle.
    fn copy(folder: &Path) -> PathBuf {
        let path = folder.join("tiny.heg");
        std::fs::copy(TINY, &path).unwrap();
        path
    }

    /// Remembers a bundle as if its file were old.
    fn remember_old(bundle: &Bundle, cache: &OwnFolder) {
        write(bundle, cache, &bundle.mapping().identities().unwrap()).unwrap();
    }

    fn entry(bundle: &Bundle, cache: &OwnFolder) -> PathBuf {
        cache.path().join(FOLDER).join(note(bundle))
    }

    #[test]
    fn an_unchanged_file_is_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        let path = copy(folder.path());
        let bundle = Bundle::open(&path).unwrap();
        assert!(!trust_if_verified(&bundle, &cache));
        remember_old(&bundle, &cache);
        assert!(trust_if_verified(&Bundle::open(&path).unwrap(), &cache));
    }

    #[test]
    fn a_changed_or_replaced_file_is_hashed_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        let path = copy(folder.path());
        remember_old(&Bundle::open(&path).unwrap(), &cache);
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 4096;
        bytes[last] ^= 1;
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(&path, &bytes).unwrap();
        let damaged = Bundle::open(&path).unwrap();
        assert!(!trust_if_verified(&damaged, &cache));
        assert!(
            remember(&damaged, &cache).is_ok(),
            "too recent to be looked at"
        );
        std::fs::remove_file(&path).unwrap();
        copy(folder.path());
        assert!(!trust_if_verified(&Bundle::open(&path).unwrap(), &cache));
    }

    #[test]
    fn a_fresh_file_is_not_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        let bundle = Bundle::open(copy(folder.path())).unwrap();
        remember(&bundle, &cache).unwrap();
        assert!(!entry(&bundle, &cache).exists());
    }

    #[test]
    fn nonsense_in_the_cache_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        let bundle = Bundle::open(copy(folder.path())).unwrap();
        let entry = entry(&bundle, &cache);
        std::fs::create_dir_all(entry.parent().unwrap()).unwrap();
        std::fs::write(entry, b"{\"device\":1}").unwrap();
        assert!(!trust_if_verified(&bundle, &cache));
    }

    #[cfg(unix)]
    #[test]
    fn a_note_that_somebody_else_could_have_written_is_not_believed() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        let bundle = Bundle::open(copy(folder.path())).unwrap();
        remember_old(&bundle, &cache);
        assert!(trust_if_verified(&bundle, &cache));
        let entry = entry(&bundle, &cache);
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&entry, 0o666);
        assert!(!trust_if_verified(&bundle, &cache), "the note");
        mode(&entry, 0o600);
        mode(entry.parent().unwrap(), 0o777);
        assert!(!trust_if_verified(&bundle, &cache), "its folder");
        mode(entry.parent().unwrap(), 0o700);
        assert!(trust_if_verified(&bundle, &cache));
        let elsewhere = folder.path().join("elsewhere");
        std::fs::rename(&entry, &elsewhere).unwrap();
        symlink(&elsewhere, &entry).unwrap();
        assert!(!trust_if_verified(&bundle, &cache), "a link");
    }

    /// Opening a pipe waits for its writer, and reading one never ends.
    #[cfg(unix)]
    #[test]
    fn a_pipe_in_place_of_a_note_holds_up_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        let bundle = Bundle::open(copy(folder.path())).unwrap();
        let verified = cache.folder(FOLDER).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(verified.path().join(note(&bundle)))
            .status();
        assert!(made.unwrap().success());
        assert!(!trust_if_verified(&bundle, &cache));
    }
}
