//! Places that bundles come from: the interface, and OCI image layouts in folders.
//!
//! Whatever a source says is checked by whoever asked: a source is trusted with nothing but availability.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{RECEIVE, ShipError};
use crate::oci::{DOCUMENT_BYTES_MAX, Descriptor, Digest, Index};

/// A place with manifests and blobs, read by many threads at once.
pub trait BundleSource: Sync {
    /// Name of the place, for people.
    fn place(&self) -> String;

    /// Bytes of the document under a tag.
    fn tagged(&self, tag: &str) -> Result<Vec<u8>, ShipError>;

    /// Bytes of the manifest with a digest, not yet compared with it.
    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>, ShipError>;

    /// A range of the blob with a digest: at most its bytes, in order. After `deadline` reading fails.
    fn blob(
        &self,
        digest: &Digest,
        range: Range<u64>,
        deadline: Duration,
    ) -> Result<Box<dyn Read + '_>, ShipError>;

    /// Number of places behind it that have copies, at least 1.
    fn places(&self) -> usize {
        1
    }

    /// As [`BundleSource::blob`], but begins with the place of this number, counted round, where there are several: for
    /// a reader to whom the place before sent wrong bytes.
    fn blob_from(
        &self,
        first: usize,
        digest: &Digest,
        range: Range<u64>,
        deadline: Duration,
    ) -> Result<Box<dyn Read + '_>, ShipError> {
        let _ = first;
        self.blob(digest, range, deadline)
    }
}

/// Asks one place after the other until an answer is right. Without any, returns the error of the last question.
pub(crate) fn from_any<T>(
    places: usize,
    ask: impl Fn(usize) -> Result<T, ShipError>,
) -> Result<T, ShipError> {
    let mut outcome = ask(0);
    for first in 1..places {
        if outcome.is_ok() {
            break;
        }
        outcome = ask(first);
    }
    outcome
}

/// Reads a whole blob and compares its digest.
///
/// Errors: [`ShipError::Document`] for another length or digest, and those of the source.
pub(crate) fn whole_blob(
    source: &dyn BundleSource,
    blob: &Descriptor,
    most_bytes: u64,
) -> Result<Vec<u8>, ShipError> {
    let place = format!("{} of {}", blob.digest, source.place());
    if blob.size > most_bytes {
        let message = format!("`{}` bytes, expected at most `{most_bytes}`", blob.size);
        return Err(ShipError::document("the blob", place, message));
    }
    from_any(source.places(), |first| {
        let bytes = blob_range(source, first, &blob.digest, 0..blob.size)?;
        blob.digest.check("the blob", &bytes, &place)?;
        Ok(bytes)
    })
}

/// Reads a short range of a blob, of exactly the range's length, from the places in order from `first` on. The caller
/// compares hashes.
pub(crate) fn blob_range(
    source: &dyn BundleSource,
    first: usize,
    digest: &Digest,
    range: Range<u64>,
) -> Result<Vec<u8>, ShipError> {
    let expected = range.end.saturating_sub(range.start);
    let reader = source.blob_from(first, digest, range, SHORT_DEADLINE)?;
    whole_range(reader, expected, &source.place())
}

/// Reads exactly `expected` bytes of what comes from a place.
pub(crate) fn whole_range(
    reader: impl Read,
    expected: u64,
    place: &str,
) -> Result<Vec<u8>, ShipError> {
    let mut bytes = Vec::new();
    let read = reader.take(expected).read_to_end(&mut bytes);
    read.map_err(ShipError::io(RECEIVE, place))?;
    if bytes.len() as u64 != expected {
        let cut = std::io::ErrorKind::UnexpectedEof.into();
        return Err(ShipError::io(RECEIVE, place)(cut));
    }
    Ok(bytes)
}

/// An OCI image layout in a folder.
#[derive(Debug)]
pub struct Layout {
    folder: PathBuf,
}

impl Layout {
    /// The layout in a folder.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    /// The layout's own index, whose entries are tags.
    ///
    /// Errors: [`ShipError::Document`], [`ShipError::Io`].
    pub fn index(&self) -> Result<Index, ShipError> {
        let path = self.folder.join("index.json");
        let bytes = read_document(&path)?;
        Index::parse(&bytes, &path.display().to_string())
    }

    /// The tags of the layout; an entry without one has the tag `latest`.
    ///
    /// Errors: as [`Layout::index`].
    pub fn tags(&self) -> Result<Vec<String>, ShipError> {
        let entries = self.index()?.manifests.into_iter();
        Ok(entries.map(|entry| tag_of(&entry).to_owned()).collect())
    }

    pub(crate) fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.folder.join("blobs/sha256").join(digest.hex())
    }
}

/// The tag of an entry of a layout's index.
pub(crate) fn tag_of(entry: &Descriptor) -> &str {
    entry.annotation(REF_NAME).unwrap_or("latest")
}

/// The entry of a layout's index with a tag.
pub(crate) fn tagged_entry<'i>(
    index: &'i Index,
    tag: &str,
    place: &str,
) -> Result<&'i Descriptor, ShipError> {
    let entry = index.manifests.iter().find(|entry| tag_of(entry) == tag);
    entry.ok_or_else(|| {
        let tags: Vec<&str> = index.manifests.iter().map(tag_of).collect();
        ShipError::Missing {
            what: format!("tag `{tag}` but `{}`", tags.join("`, `")),
            place: place.to_owned(),
        }
    })
}

impl BundleSource for Layout {
    fn place(&self) -> String {
        format!("oci:{}", self.folder.display())
    }

    fn tagged(&self, tag: &str) -> Result<Vec<u8>, ShipError> {
        let index = self.index()?;
        self.manifest(&tagged_entry(&index, tag, &self.place())?.digest)
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>, ShipError> {
        read_document(&self.blob_path(digest))
    }

    fn blob(
        &self,
        digest: &Digest,
        range: Range<u64>,
        _deadline: Duration,
    ) -> Result<Box<dyn Read + '_>, ShipError> {
        let path = self.blob_path(digest);
        let mut file = heg_files::open_regular(&path)?;
        let sought = file.seek(SeekFrom::Start(range.start));
        sought.map_err(ShipError::io("read", &path))?;
        let bytes = range.end.saturating_sub(range.start);
        Ok(Box::new(file.take(bytes)))
    }
}

fn read_document(path: &Path) -> Result<Vec<u8>, ShipError> {
    let file: File = heg_files::open_regular(path).map_err(|error| match error.is_not_found() {
        true => ShipError::Missing {
            what: "OCI image layout".to_owned(),
            place: path.display().to_string(),
        },
        false => error.into(),
    })?;
    let mut bytes = Vec::new();
    let read = file.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(ShipError::io("read", path))?;
    Ok(bytes)
}

/// Whether a folder is an OCI image layout.
pub fn is_layout(folder: &Path) -> bool {
    fs::metadata(folder.join("oci-layout")).is_ok_and(|data| data.is_file())
}

/// Annotation with the tag of an entry.
pub(crate) const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Longest time for a document or a short blob. Chosen.
pub(crate) const SHORT_DEADLINE: Duration = Duration::from_secs(60);
