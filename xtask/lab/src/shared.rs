//! Data of the project beside a checkout and not in it: `../shared`. Most clones have none, and output produced without
//! it says so.

use std::path::PathBuf;
use xtask::workspace::root;

/// A folder of the shared data, if it is on this machine.
pub(crate) fn folder(name: &str) -> Option<PathBuf> {
    let folder = root().join("../shared").join(name);
    folder.is_dir().then_some(folder)
}
