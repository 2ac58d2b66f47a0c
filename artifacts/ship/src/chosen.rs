//! The artifact under a tag that is for this machine: its manifest, and the statement about it.

use heg_artifacts::SectionId;
use heg_trust::{RELEASE_BYTES_MAX, SIGNATURE_BYTES_MAX};

use crate::error::ShipError;
use crate::names::{SIGNATURES_MAX, SignedRelease};
use crate::oci::{Descriptor, Digest, ImageManifest, SLICE, Tagged};
use crate::offer::{DEFAULT_SLICE, Offer, claimed};
use crate::source::{BundleSource, whole_blob};

/// An artifact, as far as its documents tell. Nothing of it is believed before a decision about its statement.
pub(crate) struct Chosen {
    manifest: ImageManifest,
    /// Bundle that the manifest claims to be.
    pub(crate) bundle: SectionId,
    /// Kind of devices that it is for.
    pub(crate) slice: String,
    /// Slices under the tag, in the index's order; one where there is no index.
    pub(crate) offered: Vec<String>,
    /// The publisher's statement, if there is one.
    pub(crate) signed: Option<SignedRelease>,
}

impl Chosen {
    /// Reads what stands under a tag: `tagged` is the document, `wanted` a slice; `None` takes the one without blobs, else
    /// the first. `name` is for people.
    ///
    /// Errors: [`ShipError::NoSlice`], [`ShipError::Document`], and those of the source.
    pub(crate) fn read(
        source: &dyn BundleSource,
        tagged: &[u8],
        wanted: Option<&str>,
        name: &str,
    ) -> Result<Self, ShipError> {
        let place = source.place();
        let (manifest, offered) = match Tagged::parse(tagged, &place)? {
            Tagged::Manifest(manifest) => (manifest, Vec::new()),
            Tagged::Index(index) => {
                let entry = entry(&index.manifests, wanted, name)?;
                let offered = index.manifests.iter().map(slice_of).collect();
                (read_manifest(source, &entry.digest)?, offered)
            }
        };
        let (bundle, slice) = claimed(&manifest, &place)?;
        let offered = match offered.is_empty() {
            true => vec![slice.clone()],
            false => offered,
        };
        Ok(Self {
            signed: signed_release(source, &manifest)?,
            manifest,
            bundle,
            slice,
            offered,
        })
    }

    /// The bundle that it offers. Fetches the head.
    ///
    /// Errors: those of [`Offer::of_artifact`].
    pub(crate) fn offer<'s>(&self, source: &'s dyn BundleSource) -> Result<Offer<'s>, ShipError> {
        Offer::of_artifact(source, &self.manifest, self.bundle)
    }
}

fn read_manifest(source: &dyn BundleSource, digest: &Digest) -> Result<ImageManifest, ShipError> {
    let place = source.place();
    let bytes = source.manifest(digest)?;
    digest.check("the manifest", &bytes, &place)?;
    ImageManifest::parse(&bytes, &place)
}

fn slice_of(entry: &Descriptor) -> String {
    entry.annotation(SLICE).unwrap_or(DEFAULT_SLICE).to_owned()
}

/// The entry of an index for the wanted slice.
fn entry<'d>(
    entries: &'d [Descriptor],
    wanted: Option<&str>,
    name: &str,
) -> Result<&'d Descriptor, ShipError> {
    let expected = wanted.unwrap_or(DEFAULT_SLICE);
    let exact = entries.iter().find(|entry| slice_of(entry) == expected);
    let first = match wanted {
        Some(_) => None,
        None => entries.first(),
    };
    exact.or(first).ok_or_else(|| {
        let found: Vec<String> = entries
            .iter()
            .map(|entry| format!("`{}`", slice_of(entry)))
            .collect();
        ShipError::NoSlice {
            name: name.to_owned(),
            expected: expected.to_owned(),
            found: match found.is_empty() {
                true => "none".to_owned(),
                false => found.join(", "),
            },
        }
    })
}

/// The statement in a manifest, and its signatures.
fn signed_release(
    source: &dyn BundleSource,
    manifest: &ImageManifest,
) -> Result<Option<SignedRelease>, ShipError> {
    let fetched = |blob: &Descriptor, most_bytes: u64| match blob.embedded() {
        Some(bytes) => Ok(bytes),
        None => whole_blob(source, blob, most_bytes),
    };
    let Some(release) = manifest.files(RELEASE_FILE).next() else {
        return Ok(None);
    };
    let signatures = manifest.files(SIGNATURE_FILE).take(SIGNATURES_MAX);
    let signatures = signatures.map(|blob| fetched(blob, SIGNATURE_BYTES_MAX));
    Ok(Some(SignedRelease {
        release: fetched(release, RELEASE_BYTES_MAX)?,
        signatures: signatures.collect::<Result<_, _>>()?,
    }))
}

/// Names of the files with a publisher's statement and its signatures.
pub(crate) const RELEASE_FILE: &str = "release.json";
pub(crate) const SIGNATURE_FILE: &str = "release.json.minisig";
