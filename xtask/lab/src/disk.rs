//! Files that have to come from the disk.

use anyhow::{Context, Result};
use rustix::fs::Advice;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Has the system forget what it knows of a file, so that it has to be read from the disk. Pages that a process maps stay.
pub(crate) fn forget(file: &Path) -> Result<()> {
    let file = File::open(file).with_context(|| format!("cannot open `{}`", file.display()))?;
    file.sync_all()?;
    Ok(rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?)
}

/// Reads a file from its begin to its end, as fast as a program can that reads one part after the other.
pub(crate) fn read(file: &Path) -> Result<()> {
    let unreadable = || format!("cannot read `{}`", file.display());
    let mut file = File::open(file).with_context(unreadable)?;
    let mut part = vec![0; PART_BYTES];
    loop {
        match file.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(unreadable),
        }
    }
}

/// Chosen: more than a disk reads ahead.
const PART_BYTES: usize = 1 << 20;
