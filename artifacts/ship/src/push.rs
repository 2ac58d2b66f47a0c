//! Bundles on their way to others: to a registry, to a layout in a folder, to a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use heg_artifacts::{Bundle, SectionId};
use heg_files::TempFile;
use heg_trust::{Release, ReleaseSlice};

use crate::artifact::{self, OutgoingBlob, SliceArtifact};
use crate::error::ShipError;
use crate::fetch::TransferProgress;
use crate::names::{SignedChange, SignedRelease};
use crate::oci::{Descriptor, Digest, INDEX_TYPE, Index, MANIFEST_TYPE};
use crate::plan::Amounts;
use crate::source::{Layout, REF_NAME, tag_of};

/// A place that takes blobs and manifests.
pub(crate) trait Target {
    /// Whether a blob is there.
    fn has(&self, digest: &Digest) -> Result<bool, ShipError>;
    /// Puts a blob.
    fn put(
        &self,
        blob: &OutgoingBlob<'_>,
        progress: &dyn TransferProgress,
    ) -> Result<Put, ShipError>;
    /// Puts a manifest or an index; under a tag if there is one.
    fn put_manifest(
        &self,
        tag: Option<&str>,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<(), ShipError>;
}

/// The way of a blob to its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// Its bytes were sent.
    Sent,
    /// The registry took it from another of its repositories.
    Mounted,
}

/// The outcome of a push.
#[derive(Debug, Clone)]
pub struct Pushed {
    /// Slices, with their bundles.
    pub slices: Vec<(String, SectionId)>,
    /// Digest of what now stands under the tag.
    pub index: Digest,
    /// Bytes of all blobs.
    pub all_bytes: u64,
    /// Bytes that were sent.
    pub moved_bytes: u64,
    /// Bytes that the registry took from other repositories of its own.
    pub mounted_bytes: u64,
}

/// The slices of bundles as a statement lists them.
///
/// Errors: [`ShipError::Bundle`].
pub fn release_slices(bundles: &[Bundle]) -> Result<Vec<ReleaseSlice>, ShipError> {
    let slices = artifact::slices(bundles)?;
    let listed = slices.into_iter().map(|sliced| ReleaseSlice {
        slice: sliced.slice,
        npu: sliced.npu,
        bundle: sliced.head.manifest_id(),
        bytes: sliced.head.file_bytes(),
    });
    Ok(listed.collect())
}

/// Sends the slices of bundles under a tag.
pub(crate) fn push(
    target: &dyn Target,
    tag: &str,
    bundles: &[Bundle],
    signed: Option<&SignedRelease>,
    progress: &dyn TransferProgress,
) -> Result<Pushed, ShipError> {
    let slices = artifact::slices(bundles)?;
    if let Some(signed) = signed {
        check_release(signed, &slices)?;
    }
    let mut known = BTreeMap::new();
    let mut manifests = Vec::new();
    let mut blobs: BTreeMap<Digest, OutgoingBlob<'_>> = BTreeMap::new();
    for sliced in &slices {
        let (manifest, own) = sliced.manifest(signed, &mut known)?;
        manifests.push(manifest.to_text());
        blobs.extend(own.into_iter().map(|blob| (blob.digest, blob)));
    }
    let mut absent = BTreeSet::new();
    for digest in blobs.keys() {
        if !target.has(digest)? {
            absent.insert(*digest);
        }
    }
    let bytes_of = |blobs: &mut dyn Iterator<Item = &OutgoingBlob<'_>>| {
        blobs.map(|blob| blob.bytes).sum::<u64>()
    };
    let all_bytes = bytes_of(&mut blobs.values());
    let absent_bytes = bytes_of(&mut absent.iter().filter_map(|digest| blobs.get(digest)));
    progress.planned(&Amounts {
        bundle_bytes: all_bytes,
        here_bytes: all_bytes.saturating_sub(absent_bytes),
        fetch_bytes: absent_bytes,
    });
    let mut mounted_bytes = 0_u64;
    for blob in absent.iter().filter_map(|digest| blobs.get(digest)) {
        if target.put(blob, progress)? == Put::Mounted {
            mounted_bytes = mounted_bytes.saturating_add(blob.bytes);
            progress.arrived(blob.bytes);
        }
    }
    for manifest in &manifests {
        target.put_manifest(None, MANIFEST_TYPE, manifest)?;
    }
    let pairs: Vec<(&SliceArtifact<'_>, &[u8])> = slices
        .iter()
        .zip(manifests.iter().map(Vec::as_slice))
        .collect();
    let index = artifact::index(&pairs).to_text();
    target.put_manifest(Some(tag), INDEX_TYPE, &index)?;
    let slices = slices
        .iter()
        .map(|sliced| (sliced.slice.clone(), sliced.head.manifest_id()));
    Ok(Pushed {
        slices: slices.collect(),
        index: Digest::of(&index),
        all_bytes,
        moved_bytes: absent_bytes.saturating_sub(mounted_bytes),
        mounted_bytes,
    })
}

/// Every slice has to be in the statement, and changes of keys signed by those who may make them: no device would take
/// another.
fn check_release(signed: &SignedRelease, slices: &[SliceArtifact<'_>]) -> Result<(), ShipError> {
    let refused = |source| ShipError::TrustFile {
        path: PathBuf::from("release.json"),
        source,
    };
    let release = Release::parse(&signed.release).map_err(refused)?;
    for sliced in slices {
        let bundle = sliced.head.manifest_id();
        if release.slice_of(bundle).is_none() {
            let number = release.number;
            return Err(refused(heg_trust::TrustError::OtherBundle {
                number,
                found: bundle,
            }));
        }
    }
    let changes: Vec<_> = signed.changes.iter().map(SignedChange::borrowed).collect();
    let of_changes = |source| ShipError::TrustFile {
        path: PathBuf::from("keys.json"),
        source,
    };
    heg_trust::check_changes(&signed.release, &signed.signatures, &changes).map_err(of_changes)
}

/// Writes the slices of bundles into an OCI layout, which is made if there is none. Other tags of it stay.
///
/// Errors: [`ShipError::Bundle`], [`ShipError::TrustFile`], [`ShipError::Io`], [`ShipError::Document`].
pub fn export_layout(
    folder: &Path,
    tag: &str,
    bundles: &[Bundle],
    signed: Option<&SignedRelease>,
    progress: &dyn TransferProgress,
) -> Result<Pushed, ShipError> {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs).map_err(ShipError::io("create", &blobs))?;
    heg_files::remove_stale(&blobs, BLOB_PREFIX)?;
    heg_files::write_whole(&folder.join("oci-layout"), &[LAYOUT_VERSION])?;
    let target = LayoutTarget {
        folder: folder.to_owned(),
    };
    push(&target, tag, bundles, signed, progress)
}

/// Writes a bundle as one file, and its statement beside it. The bundle may be a view of a store.
///
/// Errors: [`ShipError::Bundle`] if a section is damaged, [`ShipError::File`], [`ShipError::Io`].
pub fn export_file(
    path: &Path,
    bundle: &Bundle,
    signed: Option<&SignedRelease>,
    progress: &dyn TransferProgress,
) -> Result<u64, ShipError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let temp = TempFile::create(folder, &format!(".{name}.tmp-"))?;
    let bytes: &[u8] = bundle.mapping();
    progress.planned(&Amounts {
        bundle_bytes: bytes.len() as u64,
        here_bytes: 0,
        fetch_bytes: bytes.len() as u64,
    });
    // Hashed first: what is damaged here is not handed on.
    let threads = std::thread::available_parallelism().unwrap_or(std::num::NonZero::<usize>::MIN);
    bundle
        .verify(threads)
        .map_err(ShipError::bundle(&bundle.manifest().model.name))?;
    for step in bytes.chunks(STEP_BYTES) {
        io::Write::write_all(&mut temp.file(), step)
            .map_err(ShipError::io("write", temp.path()))?;
        progress.arrived(step.len() as u64);
    }
    temp.file()
        .sync_all()
        .map_err(ShipError::io("sync", temp.path()))?;
    temp.rename(path)?;
    if let Some(signed) = signed {
        signed.write(&SignedRelease::path_beside(path))?;
    }
    Ok(bytes.len() as u64)
}

/// An OCI layout that is written.
struct LayoutTarget {
    folder: PathBuf,
}

impl LayoutTarget {
    fn layout(&self) -> Layout {
        Layout::new(&self.folder)
    }

    fn put_bytes(&self, digest: &Digest, mut content: impl io::Read) -> Result<(), ShipError> {
        let path = self.layout().blob_path(digest);
        let folder = path.parent().unwrap_or(&path);
        let temp = TempFile::create(folder, BLOB_PREFIX)?;
        let copied = io::copy(&mut content, &mut temp.file());
        copied.map_err(ShipError::io("write", temp.path()))?;
        temp.file()
            .sync_all()
            .map_err(ShipError::io("sync", temp.path()))?;
        Ok(temp.rename(&path)?)
    }
}

impl Target for LayoutTarget {
    fn has(&self, digest: &Digest) -> Result<bool, ShipError> {
        Ok(self.layout().blob_path(digest).is_file())
    }

    fn put(
        &self,
        blob: &OutgoingBlob<'_>,
        progress: &dyn TransferProgress,
    ) -> Result<Put, ShipError> {
        self.put_bytes(&blob.digest, blob.content.reader())?;
        progress.arrived(blob.bytes);
        Ok(Put::Sent)
    }

    fn put_manifest(
        &self,
        tag: Option<&str>,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<(), ShipError> {
        self.put_bytes(&Digest::of(bytes), bytes)?;
        let Some(tag) = tag else {
            return Ok(());
        };
        let path = self.folder.join("index.json");
        let mut index = match File::open(&path) {
            Ok(_) => self.layout().index()?,
            Err(_) => Index {
                schema_version: 2,
                media_type: Some(INDEX_TYPE.to_owned()),
                manifests: Vec::new(),
            },
        };
        index.manifests.retain(|entry| tag_of(entry) != tag);
        let entry = artifact::described(media_type, bytes);
        let entry: Descriptor = entry.annotated(REF_NAME, tag);
        index.manifests.push(entry);
        Ok(heg_files::write_whole(&path, &[&index.to_text()])?)
    }
}

const LAYOUT_VERSION: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// Beginning of the names of unfinished blobs.
const BLOB_PREFIX: &str = ".heg-";

/// Bytes between two reports of progress. Chosen.
const STEP_BYTES: usize = 16 << 20;
