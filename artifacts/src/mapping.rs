//! A file as memory: with `platform`, the only unsafe code of this crate.
//!
//! A [`Mapping`] is a read-only view of a whole file, of parts side by side that are one, or, for bytes that came from
//! elsewhere, of a read-only anonymous copy with the same page alignment; with advice for the kernel. The meaning and the
//! correctness of the bytes are the reader's concern.
//!
//! **The promise behind the unsafe blocks:** mapped files are never written in place. This crate only ever creates such
//! files under another name and renames them; it unlinks, but never shortens or overwrites them. If another program
//! does, [`Mapping::check_unchanged`] detects it.

#![allow(
    unsafe_code,
    reason = "mapping a file is unsafe by nature; the proofs stand at the blocks"
)]

use std::fs::File;
use std::io::Read;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memmap2::{Mmap, MmapMut};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::layout::ALIGNMENT;
use crate::platform::{self, MappedParts};
use crate::view::{VIEW_BYTES_MAX, VIEW_MAGIC, View};

/// A read-only mapping of a whole file, or of the parts of a [`View`] as the file that they are. Dereferences to its
/// bytes, which start at a page boundary.
///
/// Invariants:
/// - the memory stays mapped, readable and unchanged for as long as the value lives;
/// - `files` are those that pages can be read again from; empty for a copy of bytes.
#[derive(Debug)]
pub struct Mapping {
    pages: Pages,
    path: PathBuf,
    files: Vec<MappedFile>,
    /// Counts the checks: of several files, each check looks at one.
    checks: AtomicUsize,
    /// Whether its pages stay in memory.
    locked: AtomicBool,
}

/// The memory of a mapping.
#[derive(Debug)]
pub(crate) enum Pages {
    /// A file, or a copy of bytes.
    Whole(Mmap),
    /// Files side by side.
    Parts(MappedParts),
}

/// A mapped file, kept open to detect changes.
#[derive(Debug)]
struct MappedFile {
    file: File,
    path: PathBuf,
    bytes: u64,
    identity: Option<FileIdentity>,
}

/// Identity of a file's content, as the file system reports it. While it stays equal, so does the content: every write
/// changes a time, every replacement the inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileIdentity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Last change of the content: seconds and nanoseconds since 1970.
    pub modified: [i64; 2],
    /// Last change of content or attributes: seconds and nanoseconds since 1970.
    pub changed: [i64; 2],
}

impl FileIdentity {
    /// Identity of the file at `path` now; `None` on systems without file identities.
    ///
    /// Errors: [`Error::Io`] if it cannot be inspected.
    pub fn of_path(path: &Path) -> Result<Option<Self>, Error> {
        let metadata = std::fs::metadata(path).map_err(Error::io("inspect", path))?;
        Ok(platform::identity(&metadata))
    }
}

impl Mapping {
    /// Maps the file at `path` at its present length; for a [`View`], the parts that it names in the folder `parts`
    /// beside its own. Files may be replaced or unlinked afterwards, but must not be changed in place (see the module).
    ///
    /// Errors: [`Error::Io`] if it cannot be opened or mapped, [`Error::File`] if it is not a regular file; of a view also
    /// [`Error::View`] and [`Error::PartLength`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = MappedFile::open(path)?;
        if let Some(view) = read_view(&file)? {
            return Self::of_view(path, &view);
        }
        // SAFETY: the mapping is read-only and shared, so this process cannot write through it. The bytes behind it
        // must not change or vanish while it lives. By the promise in the module's header nothing in this project
        // writes to such a file in place: stores and bundles are written under a temporary name and renamed, and a
        // replaced or unlinked file lives on as long as it is mapped. Another program that overwrites the file breaks
        // the promise: we would then read changed bytes, as every mapped executable would, until the next
        // `check_unchanged`. One that shortens it makes reads behind the new end raise SIGBUS, which ends the process;
        // no memory of ours is exposed or damaged. memmap2 takes the length from this same open file, so a file that
        // was replaced under its name meanwhile cannot give a wrong one.
        let map = unsafe { Mmap::map(&file.file) }.map_err(Error::io("map", path))?;
        Ok(Self::new(Pages::Whole(map), path, vec![file]))
    }

    fn of_view(path: &Path, view: &View) -> Result<Self, Error> {
        let store = path.parent().and_then(Path::parent);
        let parts = store.unwrap_or(Path::new("..")).join("parts");
        let mut files = Vec::with_capacity(view.parts().len());
        for part in view.parts() {
            let file = MappedFile::open(&part.id.path_in(&parts))?;
            if file.bytes != part.bytes {
                return Err(Error::PartLength {
                    path: file.path,
                    expected: part.bytes,
                    found: file.bytes,
                });
            }
            files.push(file);
        }
        let parts = files.iter().map(|file| (&file.file, file.bytes));
        let mapped = MappedParts::map(&parts.collect::<Vec<_>>());
        let mapped = mapped.map_err(Error::io("map the parts of", path))?;
        Ok(Self::new(Pages::Parts(mapped), path, files))
    }

    fn new(pages: Pages, path: &Path, files: Vec<MappedFile>) -> Self {
        Self {
            pages,
            path: path.to_owned(),
            files,
            checks: AtomicUsize::new(0),
            locked: AtomicBool::new(false),
        }
    }

    /// A page-aligned, read-only copy of `bytes`, for bytes that are not a file.
    ///
    /// Errors: [`Error::Io`] if there is not enough memory.
    pub fn of_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let path = PathBuf::from("(memory)");
        let mut map = MmapMut::map_anon(bytes.len()).map_err(Error::io("map", &path))?;
        map.copy_from_slice(bytes);
        let map = map.make_read_only().map_err(Error::io("map", &path))?;
        Ok(Self::new(Pages::Whole(map), &path, Vec::new()))
    }

    /// Identities of the file, or of the parts in their order, when they were opened; `None` for a copy of bytes, and on
    /// systems without file identities.
    pub fn identities(&self) -> Option<Vec<FileIdentity>> {
        let identities = self.files.iter().map(|file| file.identity);
        identities
            .collect::<Option<Vec<_>>>()
            .filter(|found| !found.is_empty())
    }

    /// Checks that the file has its old length and was not written to since; of several parts one, another in each call.
    /// Costs one query of the open file, 0.4 µs. A change between this check and a read is only detected by the next
    /// check.
    ///
    /// Errors: [`Error::Changed`] if it changed, [`Error::Io`] if it cannot be inspected.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        let turn = self.checks.fetch_add(1, Ordering::Relaxed);
        let file = turn
            .checked_rem(self.files.len())
            .and_then(|turn| self.files.get(turn));
        file.map_or(Ok(()), MappedFile::check_unchanged)
    }

    /// Reads all pages and keeps them in memory for as long as the mapping lives.
    ///
    /// Errors: [`Error::Io`] if the kernel refuses, as it does above a limit.
    pub fn lock(&self) -> Result<(), Error> {
        platform::lock(&self.pages).map_err(Error::io("lock in memory", &self.path))?;
        self.locked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Advises the system that the file will be read from front to back; has no effect on systems without such advice.
    pub fn will_read_in_order(&self) {
        platform::will_read_in_order(&self.pages);
    }

    /// Starts to read `range` (bytes of the file) in the background, because it will be needed soon. Returns at once.
    /// Parts of `range` past the end are ignored.
    ///
    /// Errors: [`Error::Io`] if the kernel refuses; only speed is lost then.
    pub fn will_need(&self, range: Range<u64>) -> Result<(), Error> {
        let range = self.clamp(range);
        if range.is_empty() || !self.has_file() {
            return Ok(());
        }
        let advised = platform::will_need(&self.pages, range);
        advised.map_err(Error::io("read ahead in", &self.path))
    }

    /// Drops the pages of `range` (bytes of the file) from memory; they are read again when touched. References into it
    /// stay valid and keep their content. Does nothing for copies of bytes, which have no file to be read again from,
    /// and for locked mappings.
    ///
    /// Errors: [`Error::Io`] if the kernel refuses; only memory is lost then.
    pub fn give_back(&self, range: Range<u64>) -> Result<(), Error> {
        let range = self.clamp(range);
        if range.is_empty() || !self.has_file() || self.locked.load(Ordering::Relaxed) {
            return Ok(());
        }
        platform::dont_need(&self.pages, range).map_err(Error::io("give back pages of", &self.path))
    }

    fn has_file(&self) -> bool {
        !self.files.is_empty()
    }

    /// The part of `range` that is mapped.
    fn clamp(&self, range: Range<u64>) -> Range<usize> {
        let clamp = |position| {
            usize::try_from(position)
                .unwrap_or(usize::MAX)
                .min(self.len())
        };
        clamp(range.start)..clamp(range.end)
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.pages {
            Pages::Whole(map) => map,
            Pages::Parts(parts) => parts.bytes(),
        }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl MappedFile {
    fn open(path: &Path) -> Result<Self, Error> {
        let file = heg_files::open_regular(path)?;
        let metadata = file.metadata().map_err(Error::io("inspect", path))?;
        Ok(Self {
            bytes: metadata.len(),
            identity: platform::identity(&metadata),
            path: path.to_owned(),
            file,
        })
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        let metadata = self
            .file
            .metadata()
            .map_err(Error::io("inspect", &self.path))?;
        // Not the whole identity: renaming, unlinking or linking a file changes one of its times, but no content.
        let modified = |identity: FileIdentity| identity.modified;
        let is_same = metadata.len() == self.bytes
            && platform::identity(&metadata).map(modified) == self.identity.map(modified);
        match is_same {
            true => Ok(()),
            false => Err(Error::Changed {
                path: self.path.clone(),
                mapped: self.bytes,
                found: metadata.len(),
            }),
        }
    }
}

/// Whether this system maps the parts of a view: pages are as long as parts are aligned. Where it does not, a store
/// keeps whole files.
pub fn maps_parts() -> bool {
    platform::page_bytes() == Some(ALIGNMENT)
}

/// Reads a file if it begins as a view does.
fn read_view(file: &MappedFile) -> Result<Option<View>, Error> {
    if file.bytes > VIEW_BYTES_MAX {
        return Ok(None);
    }
    let mut text = Vec::new();
    let read = |text: &mut Vec<u8>, bytes: u64| {
        let read = (&file.file).take(bytes).read_to_end(text);
        read.map_err(Error::io("read", &file.path))
    };
    read(&mut text, VIEW_MAGIC.len() as u64)?;
    if !View::is_view(&text) {
        return Ok(None);
    }
    read(&mut text, VIEW_BYTES_MAX)?;
    View::parse(&text).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 5 * 4096 + 17;

    fn sample() -> Vec<u8> {
        (0..PAGES).map(|index| (index % 251) as u8).collect()
    }

    #[test]
    fn content_survives_giving_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, sample()).unwrap();
        for mapping in [
            Mapping::open(&path).unwrap(),
            Mapping::of_bytes(&sample()).unwrap(),
        ] {
            let held = &mapping[4096..8192];
            for range in [0..u64::MAX, 4096..8192, 1..3, 5..5, PAGES as u64..u64::MAX] {
                mapping.will_need(range.clone()).unwrap();
                mapping.give_back(range).unwrap();
                assert_eq!(*mapping, *sample());
            }
            assert_eq!(held, &sample()[4096..8192]);
            assert!(mapping.as_ptr().addr().is_multiple_of(4096));
        }
    }

    #[test]
    fn empty_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        assert!(Mapping::open(&path).unwrap().is_empty());
        assert!(Mapping::of_bytes(b"").unwrap().is_empty());
        let error = Mapping::open(folder.path()).unwrap_err().to_string();
        let path = folder.path().display();
        let expected = format!("`{path}` is a folder, expected a regular file");
        assert_eq!(error, expected);
    }

    #[test]
    fn a_replaced_file_lives_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, sample()).unwrap();
        let mapping = Mapping::open(&path).unwrap();
        std::fs::rename(&path, folder.path().join("elsewhere")).unwrap();
        mapping.check_unchanged().unwrap();
        std::fs::remove_file(folder.path().join("elsewhere")).unwrap();
        std::fs::write(&path, b"other").unwrap();
        mapping.give_back(0..u64::MAX).unwrap();
        assert_eq!(*mapping, *sample());
        mapping.check_unchanged().unwrap();
    }

    #[test]
    fn what_is_written_in_place_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, sample()).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        let cut = |mapping: &Mapping| {
            file.set_len(100).unwrap();
            let error = mapping.check_unchanged().unwrap_err().to_string();
            file.set_len(PAGES as u64).unwrap();
            error.ends_with("was written to in place: it had `20497` bytes and has `100` now")
        };
        let written = |mapping: &Mapping| {
            std::io::Write::write_all(&mut &file, b"other").unwrap();
            mapping.check_unchanged().is_err()
        };
        assert!(cut(&Mapping::open(&path).unwrap()));
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        let mapping = Mapping::open(&path).unwrap();
        mapping.check_unchanged().unwrap();
        assert!(written(&mapping) || cfg!(not(unix)));
        Mapping::of_bytes(b"bytes")
            .unwrap()
            .check_unchanged()
            .unwrap();
    }

    /// A few pages are below every usual limit; if they are not, the refusal is expected.
    #[test]
    fn what_is_locked_is_not_given_back() {
        let mapping = Mapping::of_bytes(&sample()).unwrap();
        match mapping.lock() {
            Ok(()) => mapping.give_back(0..u64::MAX).unwrap(),
            Err(error) => assert!(error.to_string().starts_with("cannot lock in memory")),
        }
    }
}
