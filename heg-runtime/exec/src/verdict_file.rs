//! Small files in the cache folder: what earlier processes found of kernels and devices. Whoever reads one checks its
//! content and counts one that is malformed as missing.

use heg_files::OwnFolder;

use crate::error::ExecError;

/// The folder of the files, below the cache folder.
pub(crate) const FOLDER: &str = "verdicts";

/// The content of a file; `None` if it is missing, longer than `bytes_max`, or in a folder that is not the user's own.
pub(crate) fn read(cache: &OwnFolder, name: &str, bytes_max: u64) -> Option<Vec<u8>> {
    cache.folder(FOLDER).ok()?.read(name, bytes_max).ok()?
}

/// Writes a file in place of the one before.
///
/// # Errors
///
/// [`ExecError::Cache`] if the folder is not the user's own, or cannot be written.
pub(crate) fn write(cache: &OwnFolder, name: &str, text: &str) -> Result<(), ExecError> {
    let folder = cache.folder(FOLDER);
    let written = folder.and_then(|folder| folder.write(name, &[text.as_bytes()]));
    written.map_err(|source| ExecError::Cache {
        path: cache.path().to_owned(),
        source,
    })
}
