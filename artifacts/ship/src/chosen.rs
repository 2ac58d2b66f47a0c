//! The artifact under a tag that is for this machine: its manifest, and the statement about it.

use heg_artifacts::SectionId;
use heg_trust::{CHANGES_MAX, KEYS_BYTES_MAX, RELEASE_BYTES_MAX, SIGNATURE_BYTES_MAX};

use crate::choice::{SecondBest, SliceWish, choose, slice_of};
use crate::error::ShipError;
use crate::names::{SIGNATURES_MAX, SignedChange, SignedRelease};
use crate::oci::{Descriptor, Digest, FILE_PATH, ImageManifest, Tagged};
use crate::offer::{Offer, claimed};
use crate::source::{BundleSource, whole_blob};

/// The slice under a tag that is wanted, of which nothing was fetched.
pub(crate) struct Choice {
    manifest: Named,
    /// Kind of devices that the slice is for.
    pub(crate) slice: String,
    /// Slices under the tag, in the index's order; one where there is no index.
    offered: Vec<String>,
    why: Option<SecondBest>,
}

/// The manifest of a slice.
enum Named {
    /// It stands under the tag itself.
    Here(Box<ImageManifest>),
    /// An index names it.
    By(Digest),
}

impl Choice {
    /// Chooses among the slices of the document under a tag; `name` is for people.
    ///
    /// Errors: [`ShipError::NoSlice`], [`ShipError::Document`].
    pub(crate) fn of(
        tagged: &[u8],
        wanted: SliceWish<'_>,
        name: &str,
        place: &str,
    ) -> Result<Self, ShipError> {
        Ok(match Tagged::parse(tagged, place)? {
            Tagged::Manifest(manifest) => {
                let (_, slice) = claimed(&manifest, place)?;
                Self {
                    manifest: Named::Here(Box::new(manifest)),
                    slice: slice.clone(),
                    offered: vec![slice],
                    why: None,
                }
            }
            Tagged::Index(index) => {
                let (entry, why) = choose(&index.manifests, wanted, name)?;
                let offered = index.manifests.iter().map(|it| slice_of(it).to_owned());
                Self {
                    manifest: Named::By(entry.digest),
                    slice: slice_of(entry).to_owned(),
                    offered: offered.collect(),
                    why,
                }
            }
        })
    }
}

/// The documents of an artifact. Nothing of it is believed before a decision about its statement.
pub(crate) struct Chosen {
    manifest: ImageManifest,
    /// Bundle that the manifest claims to be.
    pub(crate) bundle: SectionId,
    /// Kind of devices that it is for.
    pub(crate) slice: String,
    /// Slices under the tag, in the index's order; one where there is no index.
    pub(crate) offered: Vec<String>,
    /// The reason if it is not the best slice for the machine's NPU.
    pub(crate) why: Option<SecondBest>,
    /// The publisher's statement, if there is one.
    pub(crate) signed: Option<SignedRelease>,
}

impl Chosen {
    /// Reads the documents of a choice.
    ///
    /// Errors: [`ShipError::Document`], and those of the source.
    pub(crate) fn read(source: &dyn BundleSource, choice: Choice) -> Result<Self, ShipError> {
        let place = source.place();
        let manifest = match choice.manifest {
            Named::Here(manifest) => *manifest,
            Named::By(digest) => read_manifest(source, &digest)?,
        };
        let (bundle, slice) = claimed(&manifest, &place)?;
        Ok(Self {
            signed: signed_release(source, &manifest)?,
            manifest,
            bundle,
            slice,
            offered: choice.offered,
            why: choice.why,
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
    let mut changes: Vec<SignedChange> = Vec::new();
    for layer in &manifest.layers {
        match layer.annotation(FILE_PATH) {
            Some(KEYS_FILE) if changes.len() < CHANGES_MAX => changes.push(SignedChange {
                keys: fetched(layer, KEYS_BYTES_MAX)?,
                signatures: Vec::new(),
            }),
            // It belongs to the change before it.
            Some(KEYS_SIGNATURE_FILE) => {
                let last = changes.last_mut();
                if let Some(last) = last.filter(|it| it.signatures.len() < SIGNATURES_MAX) {
                    last.signatures.push(fetched(layer, SIGNATURE_BYTES_MAX)?);
                }
            }
            _ => {}
        }
    }
    Ok(Some(SignedRelease {
        changes,
        release: fetched(release, RELEASE_BYTES_MAX)?,
        signatures: signatures.collect::<Result<_, _>>()?,
    }))
}

/// Names of the files with a publisher's statement and its signatures.
pub(crate) const RELEASE_FILE: &str = "release.json";
pub(crate) const SIGNATURE_FILE: &str = "release.json.minisig";

/// Names of the files with a publisher's change of keys and its signatures, which follow it.
pub(crate) const KEYS_FILE: &str = "keys.json";
pub(crate) const KEYS_SIGNATURE_FILE: &str = "keys.json.minisig";
