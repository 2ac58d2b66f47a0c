//! Bundles as an OCI artifact: the layers of a slice, one behind the other, are its file.
//!
//! Every document here is a pure function of the bundles and the statement: who pushes the same twice gets the same
//! digests. The envelope is ModelPack's, so that registries show the model and tools that unpack it leave its parts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use heg_artifacts::{Bundle, BundleHead, FilePart, SectionBlocks, platforms, slice};
use heg_spec::NpuPlatform;
use serde_json::json;

use crate::choice::slice_name;
use crate::chosen::{KEYS_FILE, KEYS_SIGNATURE_FILE, RELEASE_FILE, SIGNATURE_FILE};
use crate::error::ShipError;
use crate::names::SignedRelease;
use crate::oci::{
    BUNDLE, CONFIG_TYPE, DOC_TYPE, Descriptor, Digest, FILE_PATH, INDEX_TYPE, ImageManifest, Index,
    MANIFEST_TYPE, MODEL_TYPE, NPU, PART, SETTINGS_TYPE, SLICE, Sha256, WEIGHT_TYPE,
};
use crate::offer::BLOCKS_FILE;

/// A slice of a bundle, ready to be sent.
pub(crate) struct SliceArtifact<'b> {
    /// The kind of devices that it is for.
    pub(crate) slice: String,
    /// Needs of its blobs.
    pub(crate) npu: Option<String>,
    pub(crate) head: BundleHead,
    bundle: &'b Bundle,
}

/// A blob to be sent.
pub(crate) struct OutgoingBlob<'b> {
    pub(crate) digest: Digest,
    pub(crate) bytes: u64,
    pub(crate) content: Pieces<'b>,
}

/// Bytes that lie in several places.
#[derive(Clone)]
pub(crate) struct Pieces<'b>(Vec<Piece<'b>>);

#[derive(Clone)]
enum Piece<'b> {
    Mapped(&'b [u8]),
    Owned(std::sync::Arc<[u8]>),
    Zeros(u64),
}

/// The slices of bundles: of each one without blobs, and one for each platform that it has blobs for.
///
/// Errors: [`ShipError::Bundle`].
pub(crate) fn slices(bundles: &[Bundle]) -> Result<Vec<SliceArtifact<'_>>, ShipError> {
    let mut found: Vec<SliceArtifact<'_>> = Vec::new();
    for bundle in bundles {
        let manifest = bundle.manifest();
        let of_platforms = platforms(manifest).into_iter().map(Some);
        for platform in std::iter::once(None).chain(of_platforms) {
            let sliced = SliceArtifact::of(bundle, platform)?;
            if found
                .iter()
                .all(|known| known.head.manifest_id() != sliced.head.manifest_id())
            {
                found.push(sliced);
            }
        }
    }
    // Of several bundles with blobs for one platform, the later ones are told apart by a number.
    let mut names = BTreeSet::new();
    for sliced in &mut found {
        let base = sliced.slice.clone();
        for number in 2_u32.. {
            if names.insert(sliced.slice.clone()) {
                break;
            }
            sliced.slice = format!("{base}.{number}");
        }
    }
    Ok(found)
}

impl<'b> SliceArtifact<'b> {
    fn of(bundle: &'b Bundle, platform: Option<NpuPlatform>) -> Result<Self, ShipError> {
        let manifest = bundle.manifest();
        let place = &manifest.model.name;
        let head = BundleHead::of(slice(manifest, platform)).map_err(ShipError::bundle(place))?;
        Ok(Self {
            slice: slice_name(platform),
            npu: platform.and_then(|platform| heg_artifacts::npu_needs(manifest, platform)),
            head,
            bundle,
        })
    }

    /// A part's bytes: the sections of the bundle's file, and the zeros between them.
    pub(crate) fn part(&self, part: &FilePart) -> Result<Pieces<'b>, ShipError> {
        let mut pieces = Vec::new();
        if part.sections.is_empty() {
            pieces.push(Piece::Owned(self.head.bytes().into()));
        }
        let mut end = part.range.start;
        for index in part.sections.clone() {
            let section = self.head.manifest().sections.get(index);
            let Some((section, range)) = section.zip(self.head.section_range(index)) else {
                continue;
            };
            pieces.push(Piece::Zeros(range.start.saturating_sub(end)));
            let bytes = self.bundle.section(section.id);
            let place = &self.head.manifest().model.name;
            pieces.push(Piece::Mapped(bytes.map_err(ShipError::bundle(place))?));
            end = range.end;
        }
        if !part.sections.is_empty() {
            pieces.push(Piece::Zeros(part.range.end.saturating_sub(end)));
        }
        Ok(Pieces(pieces))
    }

    /// The values of the slice's blocks, which say that the bundle's sections are right.
    fn blocks(&self) -> Result<Vec<u8>, ShipError> {
        let blocks = SectionBlocks::of(self.bundle, self.head.manifest());
        let place = &self.head.manifest().model.name;
        Ok(blocks.map_err(ShipError::bundle(place))?.to_bytes())
    }

    /// The slice's manifest and the blobs that it names. `known` are digests of parts that were computed before.
    pub(crate) fn manifest(
        &self,
        signed: Option<&SignedRelease>,
        known: &mut BTreeMap<heg_artifacts::PartId, Digest>,
    ) -> Result<(ImageManifest, Vec<OutgoingBlob<'b>>), ShipError> {
        let mut layers = Vec::new();
        let mut blobs = Vec::new();
        let mut add = |descriptor: Descriptor, content: Pieces<'b>| {
            blobs.push(OutgoingBlob {
                digest: descriptor.digest,
                bytes: descriptor.size,
                content,
            });
            descriptor
        };
        if let Some(signed) = signed {
            for (file, bytes) in documents(signed) {
                let layer = Descriptor::embedding(DOC_TYPE, bytes);
                layers.push(add(layer.annotated(FILE_PATH, file), Pieces::owned(bytes)));
            }
        }
        let blocks = self.blocks()?;
        let layer = described(SETTINGS_TYPE, &blocks).annotated(FILE_PATH, BLOCKS_FILE);
        layers.push(add(layer, Pieces::owned(&blocks)));
        let name = &self.head.manifest().model.name;
        for (part, number) in self.head.parts().iter().zip(0_u32..) {
            let content = self.part(part)?;
            let digest = *known.entry(part.id).or_insert_with(|| content.digest());
            let layer = Descriptor {
                media_type: match part.sections.is_empty() {
                    true => SETTINGS_TYPE.to_owned(),
                    false => WEIGHT_TYPE.to_owned(),
                },
                digest,
                size: content.bytes(),
                data: None,
                annotations: BTreeMap::new(),
            };
            let path = format!("{}.heg/{number:03}-{}", file_name(name), part.name);
            let layer = layer.annotated(PART, &part.name).annotated(FILE_PATH, path);
            layers.push(add(layer, content));
        }
        let config = self.config(&layers);
        let config = add(described(CONFIG_TYPE, &config), Pieces::owned(&config));
        let manifest = ImageManifest {
            schema_version: 2,
            media_type: Some(MANIFEST_TYPE.to_owned()),
            artifact_type: Some(MODEL_TYPE.to_owned()),
            config,
            layers,
            annotations: self.annotations(),
        };
        Ok((manifest, blobs))
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        let manifest = self.head.manifest();
        let mut annotations = BTreeMap::from([
            (SLICE.to_owned(), self.slice.clone()),
            (BUNDLE.to_owned(), self.head.manifest_id().to_string()),
            (
                "heg.format".to_owned(),
                heg_artifacts::layout::FORMAT_VERSION.to_string(),
            ),
            ("heg.revision".to_owned(), manifest.revision.to_string()),
            (
                "org.opencontainers.image.title".to_owned(),
                manifest.model.name.clone(),
            ),
        ]);
        if let Some(npu) = &self.npu {
            annotations.insert(NPU.to_owned(), npu.clone());
        }
        annotations
    }

    /// ModelPack's description of the model. Its schema takes no fields of ours.
    fn config(&self, layers: &[Descriptor]) -> Vec<u8> {
        let digests: Vec<String> = layers
            .iter()
            .map(|layer| layer.digest.to_string())
            .collect();
        let config = json!({
            "descriptor": {"name": self.head.manifest().model.name},
            "modelfs": {"type": "layers", "diffIds": digests},
            "config": {"format": "heg"},
        });
        config.to_string().into_bytes()
    }
}

/// The files of a statement in the order in which they are sent: signatures follow what they sign.
fn documents(signed: &SignedRelease) -> Vec<(&'static str, &[u8])> {
    let mut files: Vec<(&'static str, &[u8])> = vec![(RELEASE_FILE, &signed.release)];
    let signatures = signed.signatures.iter();
    files.extend(signatures.map(|signature| (SIGNATURE_FILE, signature.as_slice())));
    for change in &signed.changes {
        files.push((KEYS_FILE, &change.keys));
        let signatures = change.signatures.iter();
        files.extend(signatures.map(|signature| (KEYS_SIGNATURE_FILE, signature.as_slice())));
    }
    files
}

/// The index of a name's slices: that without blobs first, since a copy of one entry takes the first.
pub(crate) fn index(slices: &[(&SliceArtifact<'_>, &[u8])]) -> Index {
    let entries = slices.iter().map(|(sliced, manifest)| {
        let entry = described(MANIFEST_TYPE, manifest).annotated(SLICE, &sliced.slice);
        match &sliced.npu {
            Some(npu) => entry.annotated(NPU, npu),
            None => entry,
        }
    });
    Index {
        schema_version: 2,
        media_type: Some(INDEX_TYPE.to_owned()),
        manifests: entries.collect(),
    }
}

pub(crate) fn described(media_type: &str, bytes: &[u8]) -> Descriptor {
    Descriptor {
        data: None,
        ..Descriptor::embedding(media_type, bytes)
    }
}

/// The name of a model as the name of a file for other tools.
fn file_name(model: &str) -> String {
    let plain = |c: char| match c.is_ascii_alphanumeric() || matches!(c, '-' | '_') {
        true => c,
        false => '_',
    };
    model.chars().map(plain).collect()
}

impl Pieces<'_> {
    pub(crate) fn owned(bytes: &[u8]) -> Self {
        Self(vec![Piece::Owned(bytes.into())])
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(Piece::bytes).sum()
    }

    fn digest(&self) -> Digest {
        let mut hasher = Sha256::default();
        for piece in &self.0 {
            match piece {
                Piece::Mapped(bytes) => hasher.update(bytes),
                Piece::Owned(bytes) => hasher.update(bytes),
                Piece::Zeros(bytes) => hasher.update(zeros(*bytes)),
            }
        }
        hasher.finish()
    }

    /// The bytes, to be read from their beginning.
    pub(crate) fn reader(&self) -> PiecesReader<'_> {
        PiecesReader {
            pieces: &self.0,
            done: 0,
        }
    }
}

impl Piece<'_> {
    fn bytes(&self) -> u64 {
        match self {
            Self::Mapped(bytes) => bytes.len() as u64,
            Self::Owned(bytes) => bytes.len() as u64,
            Self::Zeros(bytes) => *bytes,
        }
    }
}

/// Padding is shorter than a page.
fn zeros(bytes: u64) -> &'static [u8] {
    const PAGE: [u8; 4096] = [0; 4096];
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    PAGE.get(..length).unwrap_or(&PAGE)
}

pub(crate) struct PiecesReader<'p> {
    pieces: &'p [Piece<'p>],
    /// Bytes of the first piece that were read.
    done: usize,
}

impl Read for PiecesReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some((first, rest)) = self.pieces.split_first() {
            let bytes: &[u8] = match first {
                Piece::Mapped(bytes) => bytes,
                Piece::Owned(bytes) => bytes,
                Piece::Zeros(bytes) => zeros(*bytes),
            };
            let left = bytes.get(self.done..).unwrap_or_default();
            if left.is_empty() {
                (self.pieces, self.done) = (rest, 0);
                continue;
            }
            let length = left.len().min(buffer.len());
            if let (Some(to), Some(from)) = (buffer.get_mut(..length), left.get(..length)) {
                to.copy_from_slice(from);
            }
            self.done = self.done.saturating_add(length);
            return Ok(length);
        }
        Ok(0)
    }
}
