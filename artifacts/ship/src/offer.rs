//! A bundle that a source offers: its head, and where its parts' bytes are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use heg_artifacts::{
    Bundle, BundleHead, FilePart, Manifest, SectionBlocks, list_bytes, list_ranges, references,
};

use crate::error::ShipError;
use crate::oci::{BUNDLE, Descriptor, ImageManifest, PART, SLICE};
use crate::source::{BundleSource, SHORT_DEADLINE, blob_range, from_any, whole_range};

/// A bundle that can be fetched.
///
/// Invariants: `parts` are those of `head`; of a layered offer, `layers[i]` has the length of `parts[i]`.
pub(crate) struct Offer<'s> {
    pub(crate) head: BundleHead,
    pub(crate) parts: Vec<FilePart>,
    origin: Origin<'s>,
}

enum Origin<'s> {
    /// The layers of an OCI artifact.
    Layers {
        source: &'s dyn BundleSource,
        layers: Vec<Descriptor>,
        blocks: Descriptor,
    },
    /// A file on this machine.
    File(PathBuf),
}

impl<'s> Offer<'s> {
    /// The offer of an artifact. Fetches the head and compares it with the bundle that the manifest names.
    pub(crate) fn of_artifact(
        source: &'s dyn BundleSource,
        manifest: &ImageManifest,
        claimed: heg_artifacts::SectionId,
    ) -> Result<Self, ShipError> {
        let place = source.place();
        let wrong = |message: String| ShipError::document("the manifest", &place, message);
        let layer_of = |name: &str| {
            let layers = manifest.layers.iter();
            let mut layers = layers.filter(|layer| layer.annotation(PART) == Some(name));
            layers
                .next()
                .cloned()
                .ok_or_else(|| wrong(format!("there is no layer of part `{name}`")))
        };
        let head = layer_of(heg_artifacts::HEAD_PART)?;
        if head.size > heg_artifacts::HEAD_BYTES_MAX {
            return Err(wrong(format!("a head of `{}` bytes", head.size)));
        }
        let head = from_any(source.places(), |first| {
            let bytes = blob_range(source, first, &head.digest, 0..head.size)?;
            let head = BundleHead::read(bytes).map_err(ShipError::bundle(&place))?;
            match head.manifest_id() == claimed {
                true => Ok(head),
                false => Err(ShipError::OtherBundle {
                    place: place.clone(),
                    expected: claimed,
                    found: head.manifest_id(),
                }),
            }
        })?;
        let parts = head.parts();
        let mut layers = Vec::with_capacity(parts.len());
        for part in &parts {
            let layer = layer_of(&part.name)?;
            let expected = part_bytes(part);
            if layer.size != expected {
                let found = layer.size;
                let name = &part.name;
                return Err(wrong(format!(
                    "the layer of part `{name}` has `{found}` bytes, expected `{expected}`"
                )));
            }
            layers.push(layer);
        }
        let blocks = manifest.files(BLOCKS_FILE).next().cloned();
        let blocks = blocks.ok_or_else(|| wrong("there is no list of blocks".to_owned()))?;
        let expected = list_bytes(head.manifest());
        if blocks.size != expected {
            let found = blocks.size;
            return Err(wrong(format!(
                "the list of blocks has `{found}` bytes, expected `{expected}`"
            )));
        }
        let origin = Origin::Layers {
            source,
            layers,
            blocks,
        };
        Ok(Self {
            head,
            parts,
            origin,
        })
    }

    /// The offer of a bundle's file.
    pub(crate) fn of_file(path: &Path, bundle: &Bundle) -> Result<Self, ShipError> {
        let head = BundleHead::of_bundle(bundle).map_err(ShipError::bundle(path.display()))?;
        Ok(Self {
            parts: head.parts(),
            head,
            origin: Origin::File(path.to_owned()),
        })
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        self.head.manifest()
    }

    /// Name of the place, for people.
    pub(crate) fn place(&self) -> String {
        match &self.origin {
            Origin::Layers { source, .. } => source.place(),
            Origin::File(path) => path.display().to_string(),
        }
    }

    /// Number of places that have copies of it.
    pub(crate) fn places(&self) -> usize {
        match &self.origin {
            Origin::Layers { source, .. } => source.places(),
            Origin::File(_) => 1,
        }
    }

    /// A range of a part's bytes, from the places in order from `first` on.
    pub(crate) fn read(
        &self,
        first: usize,
        part: usize,
        range: Range<u64>,
        deadline: Duration,
    ) -> Result<Box<dyn Read + '_>, ShipError> {
        let missing = || {
            ShipError::document(
                "the manifest",
                self.place(),
                format!("there is no part `{part}`"),
            )
        };
        match &self.origin {
            Origin::Layers { source, layers, .. } => {
                let layer = layers.get(part).ok_or_else(missing)?;
                source.blob_from(first, &layer.digest, range, deadline)
            }
            Origin::File(path) => {
                let part = self.parts.get(part).ok_or_else(missing)?;
                let mut file = File::open(path).map_err(ShipError::io("open", path))?;
                let start = part.range.start.saturating_add(range.start);
                let sought = file.seek(SeekFrom::Start(start));
                sought.map_err(ShipError::io("read", path))?;
                Ok(Box::new(file.take(range.end.saturating_sub(range.start))))
            }
        }
    }

    /// All bytes of a part, which the caller has bounded, from the places in order from `first` on.
    pub(crate) fn read_whole(&self, first: usize, part: usize) -> Result<Vec<u8>, ShipError> {
        let expected = self.parts.get(part).map_or(0, part_bytes);
        let reader = self.read(first, part, 0..expected, SHORT_DEADLINE)?;
        whole_range(reader, expected, &self.place())
    }

    /// The values by which blocks of these sections are checked: of an artifact, those ranges of its list that are
    /// needed; of a file, what its sections have, once they add up to their ids.
    pub(crate) fn blocks(&self, sections: &BTreeSet<usize>) -> Result<SectionBlocks, ShipError> {
        match &self.origin {
            Origin::Layers { source, blocks, .. } => from_any(source.places(), |first| {
                self.listed_blocks(*source, first, blocks, sections)
            }),
            Origin::File(path) => {
                let place = self.place();
                let bundle = Bundle::open(path).map_err(ShipError::bundle(&place))?;
                let blocks = SectionBlocks::of(&bundle, self.manifest());
                blocks.map_err(ShipError::bundle(&place))
            }
        }
    }

    /// The needed ranges of an artifact's list, from the places in order from `first` on.
    fn listed_blocks(
        &self,
        source: &dyn BundleSource,
        first: usize,
        blocks: &Descriptor,
        sections: &BTreeSet<usize>,
    ) -> Result<SectionBlocks, ShipError> {
        let ranges = list_ranges(self.manifest());
        let needed = sections.iter().filter_map(|index| {
            let range = ranges.get(*index).filter(|range| !range.is_empty())?;
            Some((*index, range.clone()))
        });
        let mut lists: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for (run, members) in runs(needed) {
            let bytes = blob_range(source, first, &blocks.digest, run.clone())?;
            for (index, range) in members {
                let (start, end) = (range.start - run.start, range.end - run.start);
                let piece = usize::try_from(start).ok().zip(usize::try_from(end).ok());
                let piece = piece.and_then(|(start, end)| bytes.get(start..end));
                lists.insert(index, piece.unwrap_or_default().to_vec());
            }
        }
        let read = SectionBlocks::read_some(self.manifest(), &lists);
        read.map_err(ShipError::bundle(self.place()))
    }

    /// Uses of the sections, for people and to find a section's earlier self: the first of each.
    pub(crate) fn labels(&self) -> BTreeMap<heg_artifacts::SectionId, String> {
        labels(self.manifest())
    }
}

/// Uses of a manifest's sections: the first of each.
pub(crate) fn labels(manifest: &Manifest) -> BTreeMap<heg_artifacts::SectionId, String> {
    let mut labels = BTreeMap::new();
    for (reference, id) in references(manifest) {
        labels
            .entry(id)
            .or_insert_with(|| reference.label(manifest));
    }
    labels
}

type Members = Vec<(usize, Range<u64>)>;

/// Joins ranges that follow each other, or nearly: a request costs more than a few bytes.
fn runs(ranges: impl Iterator<Item = (usize, Range<u64>)>) -> Vec<(Range<u64>, Members)> {
    let mut runs: Vec<(Range<u64>, Members)> = Vec::new();
    for (index, range) in ranges {
        match runs.last_mut() {
            Some((run, members)) if range.start <= run.end.saturating_add(GAP_BYTES_MAX) => {
                run.end = range.end;
                members.push((index, range));
            }
            _ => runs.push((range.clone(), vec![(index, range)])),
        }
    }
    runs
}

/// The bundle that a manifest says it is, and its slice.
pub(crate) fn claimed(
    manifest: &ImageManifest,
    place: &str,
) -> Result<(heg_artifacts::SectionId, String), ShipError> {
    let wrong = |message: &str| ShipError::document("the manifest", place, message);
    let bundle = manifest.annotations.get(BUNDLE);
    let bundle = bundle
        .ok_or_else(|| wrong("there is no annotation `heg.bundle`: it is not a bundle of HEG"))?;
    let bundle = bundle.parse();
    let bundle = bundle.map_err(|_| wrong("`heg.bundle` is not 64 hexadecimal digits"))?;
    let slice = manifest.annotations.get(SLICE).cloned();
    let slice = slice.unwrap_or_else(|| DEFAULT_SLICE.to_owned());
    let is_plain = slice.len() <= 64
        && slice
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'));
    match is_plain {
        true => Ok((bundle, slice)),
        false => Err(wrong(
            "`heg.slice` is not a name of letters, digits, `-` and `.`",
        )),
    }
}

pub(crate) fn part_bytes(part: &FilePart) -> u64 {
    part.range.end.saturating_sub(part.range.start)
}

/// Name of the file with the list of blocks.
pub(crate) const BLOCKS_FILE: &str = "blocks";

/// The slice of a bundle without blobs.
pub(crate) const DEFAULT_SLICE: &str = "cpu";

/// Longest gap that is read along in a list of values, in bytes. Chosen: below what the headers of a request take.
const GAP_BYTES_MAX: u64 = 512;
