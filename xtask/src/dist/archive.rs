//! Entries of archives, and tar and zip files of them: sorted, owned by root, of one time.

use anyhow::{Context, Result};
use flate2::GzBuilder;
use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// A file or a link, by its path below the archive's root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) content: Content,
}

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Content {
    /// A file that nobody runs.
    Plain(Vec<u8>),
    /// A program.
    Program(Vec<u8>),
    /// A link to a file beside it.
    Link(String),
}

impl Entry {
    pub(super) fn plain(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            content: Content::Plain(bytes.into()),
        }
    }

    pub(super) fn program(path: impl Into<String>, bytes: &[u8]) -> Self {
        Self {
            path: path.into(),
            content: Content::Program(bytes.to_vec()),
        }
    }

    /// The same below a folder.
    pub(super) fn below(mut self, folder: &str) -> Self {
        self.path = format!("{folder}/{}", self.path);
        self
    }
}

/// Reads all files below a folder.
pub(super) fn entries(folder: &Path) -> Result<Vec<Entry>> {
    let mut found = Vec::new();
    let listed = fs::read_dir(folder)
        .with_context(|| format!("cannot read the folder `{}`", folder.display()))?;
    for listed in listed {
        let listed = listed?;
        let (path, name) = (listed.path(), listed.file_name());
        if listed.file_type()?.is_dir() {
            let inner = entries(&path)?.into_iter();
            found.extend(inner.map(|entry| entry.below(&name.to_string_lossy())));
        } else {
            let bytes =
                fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
            found.push(Entry::plain(name.to_string_lossy(), bytes));
        }
    }
    found.sort();
    Ok(found)
}

/// Compresses bytes; the header has no name and no time.
pub(super) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), flate2::Compression::best());
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}

/// Makes a compressed tar file; `epoch` is the time of all entries, in seconds since 1970.
pub(super) fn tar_gz(mut entries: Vec<Entry>, epoch: u64) -> Result<Vec<u8>> {
    entries.sort();
    let mut tar = tar::Builder::new(Vec::new());
    let mut folders: Vec<String> = entries.iter().flat_map(|it| parents(&it.path)).collect();
    folders.sort();
    folders.dedup();
    for folder in folders {
        let mut header = header(epoch, 0o755, tar::EntryType::Directory);
        tar.append_data(&mut header, folder, &[][..])?;
    }
    for Entry { path, content } in entries {
        let (mode, bytes) = match &content {
            Content::Plain(bytes) => (0o644, bytes),
            Content::Program(bytes) => (0o755, bytes),
            Content::Link(to) => {
                let mut header = header(epoch, 0o777, tar::EntryType::Symlink);
                tar.append_link(&mut header, path, to)?;
                continue;
            }
        };
        let mut header = header(epoch, mode, tar::EntryType::Regular);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, path, &bytes[..])?;
    }
    gzip(&tar.into_inner()?)
}

/// Strength of an archive's compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// As small as it gets.
    Small,
    /// Not at all, for a trial.
    Quick,
}

/// Makes a zip file of paths and their bytes, in this order; the time of all entries is the first that the format knows,
/// 1980.
pub(super) fn zip<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    compression: Compression,
) -> Result<Vec<u8>> {
    let plain = SimpleFileOptions::default()
        .last_modified_time(zip::DateTime::default())
        .unix_permissions(0o644);
    let plain = match compression {
        Compression::Small => plain
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(9)),
        Compression::Quick => plain.compression_method(CompressionMethod::Stored),
    };
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, content) in files {
        archive.start_file(path, plain)?;
        archive.write_all(content)?;
    }
    Ok(archive.finish()?.into_inner())
}

/// The folders above a path, each with a slash at its end.
fn parents(path: &str) -> Vec<String> {
    let slashes = path.match_indices('/').filter(|(at, _)| *at > 0);
    slashes.map(|(at, _)| path[..=at].to_owned()).collect()
}

fn header(epoch: u64, mode: u32, kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(epoch);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header
}
