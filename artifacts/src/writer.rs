//! Writing a bundle from a manifest and a store.
//!
//! Everything that can be checked beforehand is checked before the first byte is written: the manifest passes the
//! reader's own check and every section is in the store with its length. The file then grows under a temporary name
//! beside its target, is synced, and renamed: a full disk or a kill leaves the old bundle and, until the next run, at
//! most a hidden file. The same manifest gives the same bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use heg_files::{TempFile, remove_stale};

use crate::check::check_manifest;
use crate::content_id::SectionId;
use crate::document;
use crate::error::{BundlePart, Error};
use crate::head::BundleHead;
use crate::layout::{self, Extent, HEADER_BYTES, MANIFEST_BYTES_MAX};
use crate::manifest::{Manifest, Section};
use crate::parts::sort_sections;
use crate::reader::Bundle;
use crate::references;
use crate::store::{Store, check_object};

/// The outcome of [`write_bundle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Length of the bundle, in bytes.
    pub bytes: u64,
    /// blake3 of the manifest's text; names the bundle.
    pub manifest_id: SectionId,
    /// `false` if the target was this bundle already and was left alone.
    pub rewritten: bool,
}

/// Writes the bundle of `manifest` to `path`, with sections from `store`, which it sorts into the order of
/// [`FilePart`](crate::FilePart)s. `progress` gets the number of bytes written, now and then and at the end.
///
/// A target that is the same bundle already, and whole, is left alone: it is read, not written. A target that is open
/// elsewhere is replaced, not changed. Copies from the store are hashed: all objects that have changed are discarded,
/// and the first is the error.
///
/// Errors: [`Error::InvalidManifest`]; [`Error::NoSuchSection`] or [`Error::ObjectLength`] if the store does not have
/// the listed sections; [`Error::ObjectChanged`]; [`Error::TooLarge`]; [`Error::Io`]. Nothing is left of a bundle that
/// could not be written.
pub fn write_bundle(
    path: &Path,
    manifest: &Manifest,
    store: &Store,
    progress: &dyn Fn(u64),
) -> Result<Written, Error> {
    check_manifest(manifest)?;
    let mut manifest = manifest.clone();
    sort_sections(&mut manifest);
    let head = BundleHead::of_checked(manifest)?;
    let (manifest, file_bytes) = (head.manifest(), head.file_bytes());
    let written = |rewritten| Written {
        bytes: file_bytes,
        manifest_id: head.manifest_id(),
        rewritten,
    };
    remove_stale(folder_of(path), &temporary_prefix(path))?;
    if is_written(path, head.bytes(), file_bytes) && is_whole(path) {
        progress(file_bytes);
        return Ok(written(false));
    }
    for section in &manifest.sections {
        check_length(manifest, *section, store.section(section.id)?.bytes)?;
    }
    write_file(path, head.bytes(), file_bytes, |output| {
        let mut changed = Ok(());
        for (section, extent) in manifest.sections.iter().zip(head.extents()) {
            output.fill_to(extent.offset)?;
            progress(extent.offset);
            output.copy_section(manifest, *section, *extent, store, progress)?;
            let label = || references::label(manifest, section.id);
            let checked = check_object(section.id, output.hash(*extent)?, label);
            if checked.is_err() {
                store.discard(section.id)?;
            }
            changed = changed.and(checked);
        }
        changed?;
        output.fill_to(file_bytes)
    })?;
    progress(file_bytes);
    Ok(written(true))
}

/// Writes a bundle of the sections of another one and of `new` sections, given by their bytes, as [`write_bundle`] does.
/// `path` may be the other one's. What is copied is hashed, unless it is known to be right.
///
/// Errors: [`Error::InvalidManifest`]; [`Error::NoSuchSection`] if neither has a listed section; [`Error::Corrupt`] if
/// one of the other bundle's is damaged; [`Error::ObjectLength`], [`Error::TooLarge`], [`Error::Io`].
pub fn write_amended(
    path: &Path,
    manifest: &Manifest,
    bundle: &Bundle,
    new: &[Vec<u8>],
    progress: &dyn Fn(u64),
) -> Result<Written, Error> {
    let mut manifest = manifest.clone();
    sort_sections(&mut manifest);
    let head = BundleHead::of(manifest)?;
    let (manifest, file_bytes) = (head.manifest(), head.file_bytes());
    let new: BTreeMap<SectionId, &[u8]> = new
        .iter()
        .map(|bytes| (SectionId::of(bytes), bytes.as_slice()))
        .collect();
    remove_stale(folder_of(path), &temporary_prefix(path))?;
    let rewritten = !is_written(path, head.bytes(), file_bytes) || !is_whole(path);
    if rewritten {
        write_file(path, head.bytes(), file_bytes, |output| {
            for (section, extent) in manifest.sections.iter().zip(head.extents()) {
                output.fill_to(extent.offset)?;
                let bytes = match new.get(&section.id) {
                    Some(bytes) => bytes,
                    None => bundle.section(section.id)?,
                };
                check_length(manifest, *section, bytes.len() as u64)?;
                for step in bytes.chunks(STEP_BYTES as usize) {
                    progress(output.bytes);
                    output.write(step)?;
                }
            }
            output.fill_to(file_bytes)
        })?;
    }
    progress(file_bytes);
    Ok(Written {
        bytes: file_bytes,
        manifest_id: head.manifest_id(),
        rewritten,
    })
}

/// The manifest's text.
pub(crate) fn encode_manifest(manifest: &Manifest) -> Result<Vec<u8>, Error> {
    let text = document::to_text(manifest).map_err(|source| Error::EncodeManifest { source })?;
    let found = text.len() as u64;
    if found > MANIFEST_BYTES_MAX {
        return Err(Error::TooLarge {
            what: "the manifest",
            found,
            supported: MANIFEST_BYTES_MAX,
        });
    }
    Ok(text.into_bytes())
}

fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// The prefix of a bundle's temporary files, which are beside it.
fn temporary_prefix(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!(".{name}.tmp-")
}

/// Whether every byte of the bundle at `path` is right. In doubt, false.
fn is_whole(path: &Path) -> bool {
    let threads = std::thread::available_parallelism().unwrap_or(std::num::NonZero::<usize>::MIN);
    Bundle::open(path).is_ok_and(|bundle| bundle.verify(threads).is_ok())
}

/// Whether `path` holds this bundle, by its first bytes and its length. In doubt, false.
fn is_written(path: &Path, head: &[u8], file_bytes: u64) -> bool {
    let Ok(file) = File::open(path) else {
        return false;
    };
    if !file
        .metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.len() == file_bytes)
    {
        return false;
    }
    let mut found = Vec::with_capacity(head.len());
    file.take(head.len() as u64).read_to_end(&mut found).is_ok() && found == head
}

fn check_length(manifest: &Manifest, section: Section, found: u64) -> Result<(), Error> {
    if found == section.bytes {
        return Ok(());
    }
    let part = BundlePart::Section {
        id: section.id,
        label: references::label(manifest, section.id),
    };
    Err(Error::ObjectLength {
        part,
        expected: section.bytes,
        found,
    })
}

/// Writes `head` and the output of `body`, syncs, and gives the file its name.
fn write_file(
    path: &Path,
    head: &[u8],
    file_bytes: u64,
    body: impl FnOnce(&mut Output) -> Result<(), Error>,
) -> Result<(), Error> {
    let folder = folder_of(path);
    let temp = TempFile::create(folder, &temporary_prefix(path))?;
    let written = File::open(temp.path()).map_err(Error::io("open", temp.path()))?;
    let mut output = Output {
        temp,
        written,
        bytes: 0,
    };
    output.write(head)?;
    body(&mut output)?;
    layout::check_file_bytes(file_bytes, output.bytes)?;
    let temp = output.temp;
    temp.file()
        .sync_all()
        .map_err(Error::io("sync", temp.path()))?;
    temp.rename(path)?;
    sync_folder(folder)
}

/// The file being written.
struct Output {
    temp: TempFile,
    /// A second handle of the file, for reading.
    written: File,
    bytes: u64,
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.temp
            .file()
            .write_all(bytes)
            .map_err(Error::io("write", self.temp.path()))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Writes zeros up to the next section.
    fn fill_to(&mut self, offset: u64) -> Result<(), Error> {
        let zeros = [0; HEADER_BYTES];
        while self.bytes < offset {
            let missing = offset - self.bytes;
            let step = usize::try_from(missing)
                .unwrap_or(zeros.len())
                .min(zeros.len());
            self.write(&zeros[..step])?;
        }
        Ok(())
    }

    /// Copies an object from file to file, so that the kernel does it and shares the blocks if the file system can.
    fn copy_section(
        &mut self,
        manifest: &Manifest,
        section: Section,
        extent: Extent,
        store: &Store,
        progress: &dyn Fn(u64),
    ) -> Result<(), Error> {
        let object = store.file(section.id)?;
        let end = extent.range().end;
        while self.bytes < end {
            let step = (end - self.bytes).min(STEP_BYTES);
            let copied = io::copy(&mut (&object).take(step), &mut self.temp.file());
            let copied = copied.map_err(Error::io("write", self.temp.path()))?;
            self.bytes += copied;
            if copied < step {
                return check_length(manifest, section, self.bytes - extent.offset);
            }
            progress(self.bytes);
        }
        Ok(())
    }

    /// The hash of the bytes written at `extent`.
    fn hash(&mut self, extent: Extent) -> Result<SectionId, Error> {
        let mut hasher = blake3::Hasher::new();
        let read = self
            .written
            .seek(SeekFrom::Start(extent.offset))
            .and_then(|_| {
                hasher
                    .update_reader((&self.written).take(extent.bytes))
                    .map(drop)
            });
        read.map_err(Error::io("read", self.temp.path()))?;
        Ok(SectionId::from(hasher.finalize()))
    }
}

/// Makes the rename durable. Only Unix can open a folder for that.
fn sync_folder(folder: &Path) -> Result<(), Error> {
    if cfg!(unix) {
        let opened = File::open(folder).map_err(Error::io("open", folder))?;
        opened.sync_all().map_err(Error::io("sync", folder))?;
    }
    Ok(())
}

/// Bytes between two reports of progress. Chosen, not measured.
const STEP_BYTES: u64 = 64 << 20;
