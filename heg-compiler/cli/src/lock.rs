//! Lock files that keep two runs from doing the same work at once.

use crate::terminal::note;
use anyhow::{Context, Result};
use std::fs::File;
use std::path::Path;

/// Locks a file, creating it if necessary. If two runs compete, the second waits and then finds the work done.
pub fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot create `{}`", path.display()))?;
    if file.try_lock().is_err() {
        note("waiting for another run to finish");
        file.lock()
            .with_context(|| format!("cannot lock `{}`", path.display()))?;
    }
    Ok(file)
}
