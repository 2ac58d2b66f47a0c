//! The artifact under a tag that is for this machine: its manifest, and the statement about it.

use heg_artifacts::SectionId;
use heg_trust::{CHANGES_MAX, KEYS_BYTES_MAX, RELEASE_BYTES_MAX, SIGNATURE_BYTES_MAX};

use crate::error::ShipError;
use crate::names::{SIGNATURES_MAX, SignedChange, SignedRelease};
use crate::oci::{Descriptor, Digest, FILE_PATH, ImageManifest, SLICE, Tagged};
use crate::offer::{DEFAULT_SLICE, Offer, claimed};
use crate::source::{BundleSource, whole_blob};

/// The kind of devices that a bundle is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceWish<'w> {
    /// This one, or none.
    Named(&'w str),
    /// This one if it is offered, else the one without blobs, else the first.
    Best(Option<&'w str>),
}

impl<'w> SliceWish<'w> {
    /// The slice that somebody named, else the best one for a machine.
    pub fn new(named: Option<&'w str>, best: Option<&'w str>) -> Self {
        named.map_or(Self::Best(best), Self::Named)
    }

    /// Whether a bundle that is here has the wanted slice.
    pub(crate) fn fits(self, held: &str) -> bool {
        match self {
            Self::Named(slice) | Self::Best(Some(slice)) => slice == held,
            Self::Best(None) => true,
        }
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
    /// The publisher's statement, if there is one.
    pub(crate) signed: Option<SignedRelease>,
}

impl Chosen {
    /// Reads what stands under a tag: `tagged` is the document, `name` is for people.
    ///
    /// Errors: [`ShipError::NoSlice`], [`ShipError::Document`], and those of the source.
    pub(crate) fn read(
        source: &dyn BundleSource,
        tagged: &[u8],
        wanted: SliceWish<'_>,
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
    wanted: SliceWish<'_>,
    name: &str,
) -> Result<&'d Descriptor, ShipError> {
    let of = |slice: &str| entries.iter().find(|entry| slice_of(entry) == slice);
    let (expected, found) = match wanted {
        SliceWish::Named(slice) => (slice, of(slice)),
        SliceWish::Best(best) => {
            let without_blobs = || of(DEFAULT_SLICE).or(entries.first());
            (DEFAULT_SLICE, best.and_then(of).or_else(without_blobs))
        }
    };
    found.ok_or_else(|| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::described;

    #[test]
    fn a_wish_is_met_by_name_or_by_the_best_that_is_offered() {
        let index = |slices: &[&str]| -> Vec<Descriptor> {
            let entry =
                |slice: &&str| described("manifest", slice.as_bytes()).annotated(SLICE, *slice);
            slices.iter().map(entry).collect()
        };
        let chosen = |slices: &[&str], wish| {
            let index = index(slices);
            let found = entry(&index, wish, "chat").map(slice_of);
            found.map_err(|error| error.to_string())
        };
        let all = ["npu-3720", "cpu", "npu-4000"];
        let takes = |slice: &str| Ok(slice.to_owned());
        assert_eq!(
            chosen(&all, SliceWish::Named("npu-3720")),
            takes("npu-3720")
        );
        assert_eq!(
            chosen(&all, SliceWish::Best(Some("npu-4000"))),
            takes("npu-4000")
        );
        assert_eq!(
            chosen(&all, SliceWish::Best(Some("npu-5010"))),
            takes("cpu")
        );
        assert_eq!(chosen(&all, SliceWish::Best(None)), takes("cpu"));
        assert_eq!(chosen(&all[2..], SliceWish::Best(None)), takes("npu-4000"));
        let absent = chosen(&all, SliceWish::Named("npu-5010")).unwrap_err();
        insta::assert_snapshot!(
            absent,
            @"`chat` has no slice `npu-5010`, only `npu-3720`, `cpu`, `npu-4000`: choose one with `--slice`"
        );
    }
}
