//! Remembers which bundles were verified on this machine, so that later starts need not hash them again.
//!
//! A bundle's first start hashes every section before its use. After that a small file in the cache folder
//! says: the bundle with this manifest, in the file with this identity (device, inode, length, times), was
//! right. While the identity is the same the file was neither written nor replaced, and its sections are
//! taken for right. What a disk loses by itself is found by `heg verify` only, which never looks here.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use heg_artifacts::{Bundle, FileIdentity};

use crate::error::RuntimeError;
use crate::private::write_whole;

/// Takes the sections of `bundle` for right if this file was verified before. Says whether it was.
pub fn trust_if_verified(bundle: &Bundle, cache: &Path) -> bool {
    let known = bundle
        .mapping()
        .identity()
        .is_some_and(|identity| recall(bundle, cache) == Some(identity));
    if known {
        bundle.trust_sections();
    }
    known
}

/// Hashes what was not hashed yet, and remembers that all was right. A file that changed in the last seconds
/// is not remembered: another change within the clock's tick would go unseen. That the cache cannot be
/// written is no error; the next start hashes again.
pub fn remember(bundle: &Bundle, cache: &Path) -> Result<(), RuntimeError> {
    let Some(identity) = bundle.mapping().identity() else {
        return Ok(());
    };
    if recall(bundle, cache) == Some(identity) || is_recent(identity) {
        return Ok(());
    }
    for section in &bundle.manifest().sections {
        bundle.section(section.id).map_err(RuntimeError::Section)?;
    }
    // Losing the note costs a later start some time, nothing else.
    let _ = write(&entry(bundle, cache), identity);
    Ok(())
}

/// The cache folder: `HEG_CACHE_DIR`, else the user's cache folder; none where there is neither.
pub fn cache_folder() -> Option<PathBuf> {
    let variable = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    variable("HEG_CACHE_DIR")
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("heg")))
        .or_else(|| variable("HOME").map(|folder| folder.join(".cache").join("heg")))
}

fn entry(bundle: &Bundle, cache: &Path) -> PathBuf {
    cache
        .join("verified")
        .join(format!("{}.json", bundle.manifest_id()))
}

fn recall(bundle: &Bundle, cache: &Path) -> Option<FileIdentity> {
    let text = std::fs::read(entry(bundle, cache)).ok()?;
    serde_json::from_slice(&text).ok()
}

fn write(entry: &Path, identity: FileIdentity) -> std::io::Result<()> {
    write_whole(entry, &[&serde_json::to_vec(&identity)?])
}

fn is_recent(identity: FileIdentity) -> bool {
    let changed = u64::try_from(identity.changed[0]).unwrap_or(0);
    let changed = UNIX_EPOCH + Duration::from_secs(changed);
    // A time in the future is no reason to trust either.
    SystemTime::now()
        .duration_since(changed)
        .is_ok_and(|age| age < RECENT)
        || changed > SystemTime::now()
}

/// Far above the granularity of file times (4 ms on Linux, 2 s on FAT).
const RECENT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../artifacts/testdata/v1/tiny.heg"
    );

    /// A copy of the tiny bundle.
    fn copy(folder: &Path) -> PathBuf {
        let path = folder.join("tiny.heg");
        std::fs::copy(TINY, &path).unwrap();
        path
    }

    /// Remembers a bundle as if it had been there for long.
    fn remember_old(bundle: &Bundle, cache: &Path) {
        write(&entry(bundle, cache), bundle.mapping().identity().unwrap()).unwrap();
    }

    #[test]
    fn an_unchanged_file_is_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let path = copy(folder.path());
        let bundle = Bundle::open(&path).unwrap();
        assert!(!trust_if_verified(&bundle, folder.path()));
        remember_old(&bundle, folder.path());
        assert!(trust_if_verified(
            &Bundle::open(&path).unwrap(),
            folder.path()
        ));
    }

    #[test]
    fn a_changed_or_replaced_file_is_hashed_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = copy(folder.path());
        remember_old(&Bundle::open(&path).unwrap(), folder.path());
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 4096;
        bytes[last] ^= 1;
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(&path, &bytes).unwrap();
        let damaged = Bundle::open(&path).unwrap();
        assert!(!trust_if_verified(&damaged, folder.path()));
        assert!(
            remember(&damaged, folder.path()).is_ok(),
            "too recent to be looked at"
        );
        std::fs::remove_file(&path).unwrap();
        copy(folder.path());
        assert!(!trust_if_verified(
            &Bundle::open(&path).unwrap(),
            folder.path()
        ));
    }

    #[test]
    fn a_fresh_file_is_not_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let bundle = Bundle::open(copy(folder.path())).unwrap();
        remember(&bundle, folder.path()).unwrap();
        assert!(!entry(&bundle, folder.path()).exists());
    }

    #[test]
    fn nonsense_in_the_cache_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let bundle = Bundle::open(copy(folder.path())).unwrap();
        let entry = entry(&bundle, folder.path());
        std::fs::create_dir_all(entry.parent().unwrap()).unwrap();
        std::fs::write(entry, b"{\"device\":1}").unwrap();
        assert!(!trust_if_verified(&bundle, folder.path()));
    }
}
