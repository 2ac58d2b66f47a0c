//! Files in the cache folder: whole or not there, and where it matters nobody else's.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder below `cache` that only this user can write to, made where it is not there.
pub(crate) fn private_folder(cache: &Path, name: &str) -> io::Result<PathBuf> {
    let folder = cache.join(name);
    fs::create_dir_all(cache)?;
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    match builder.create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    check_private(&folder)?;
    Ok(folder)
}

/// A link, a file, and a folder that others may write to are refused.
#[cfg(unix)]
fn check_private(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let data = fs::symlink_metadata(folder)?;
    if data.is_dir() && data.permissions().mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other("not a folder of the user's own"))
}

#[cfg(not(unix))]
fn check_private(folder: &Path) -> io::Result<()> {
    if fs::symlink_metadata(folder)?.is_dir() {
        return Ok(());
    }
    Err(io::Error::other("not a folder"))
}

/// Writes a file under another name and renames it. Its folder is made where it is not there.
pub(crate) fn write_whole(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let (fresh, mut file) = create_beside(path)?;
    let written = parts.iter().try_for_each(|part| file.write_all(part));
    let outcome = written.and_then(|()| fs::rename(&fresh, path));
    if outcome.is_err() {
        let _ = fs::remove_file(fresh);
    }
    outcome
}

/// A new file beside `path`. Names that a killed process left behind are passed over.
fn create_beside(path: &Path) -> io::Result<(PathBuf, fs::File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let fresh = path.with_extension(format!("tmp-{}-{n}", std::process::id()));
        match fs::File::options()
            .write(true)
            .create_new(true)
            .open(&fresh)
        {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (fresh, file)),
        }
    }
}
