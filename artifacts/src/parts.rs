//! The order of sections in a file, and its cut into parts.
//!
//! A part is a run of a bundle's bytes in file order, from page to page, that one place of the model reads: the unit in
//! which bundles are stored and sent. Everything here is a pure function of the manifest, so that the machine that
//! publishes a bundle and the one that fetches it cut it alike, whatever lies between them says. The writer sorts
//! sections into this order; readers take any order, and a file in another order has more and smaller parts.
//!
//! The order goes from what changes often to what seldom does: a change of the template moves no weight.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use heg_spec::{Group, NpuPlatform};

use crate::content_id::SectionId;
use crate::error::Error;
use crate::layout::{Extent, Header};
use crate::manifest::{BakedState, Embedding, KernelUse, Manifest, Section, WeightId};
use crate::references::{Reference, references};

/// A run of a bundle's bytes, from page to page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePart {
    /// Name by its place in the model, e.g. `weights-07-ffn`, unique in the bundle.
    pub name: String,
    /// Name by its content: blake3 of the ids and lengths of its sections, see [`PartId`].
    pub id: PartId,
    /// Place in the file, in bytes, padding included.
    pub range: Range<u64>,
    /// Sections of the part, as indices of [`Manifest::sections`]; empty for the head.
    pub sections: Range<usize>,
}

/// Name of a part by its content: blake3 of each section's id and length (u64, little-endian), one after the other.
///
/// The head is named by the id and the length of the manifest, hashed in blake3's mode of deriving keys, since one
/// section with the same bytes is not the same part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartId(SectionId);

impl PartId {
    /// Name of the part that holds the header and the manifest.
    pub fn of_head(manifest_id: SectionId, manifest_bytes: u64) -> Self {
        let hasher = blake3::Hasher::new_derive_key(HEAD_CONTEXT);
        let bytes = manifest_bytes;
        Self::finish(
            hasher,
            &[Section {
                id: manifest_id,
                bytes,
            }],
        )
    }

    /// Name of a part with these sections.
    pub fn of_sections(sections: &[Section]) -> Self {
        Self::finish(blake3::Hasher::new(), sections)
    }

    fn finish(mut hasher: blake3::Hasher, sections: &[Section]) -> Self {
        for section in sections {
            hasher.update(section.id.as_bytes());
            hasher.update(&section.bytes.to_le_bytes());
        }
        Self(SectionId::from(hasher.finalize()))
    }
}

/// Formats as 64 hexadecimal digits.
impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for PartId {
    type Err = Error;

    /// Accepts 64 lower-case hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse().map(Self)
    }
}

/// Sorts the sections of a manifest into the order in which files have them. A section that nothing refers to is left
/// out.
pub(crate) fn sort_sections(manifest: &mut Manifest) {
    let kinds = kinds(manifest);
    let mut first = BTreeMap::new();
    for (index, (_, id)) in references(manifest).into_iter().enumerate() {
        first.entry(id).or_insert(index);
    }
    let place = |section: &Section| (kinds.get(&section.id).copied(), first.get(&section.id));
    manifest
        .sections
        .retain(|section| kinds.contains_key(&section.id));
    manifest.sections.sort_by(|a, b| place(a).cmp(&place(b)));
}

/// Cuts the file of a manifest into parts, the head first. A part ends where another begins, and before the section
/// that would take it beyond [`PART_BYTES_MAX`]; a longer section is a part by itself. With more than [`PARTS_MAX`]
/// parts, places of a layer share one. `extents` are the places of the manifest's sections.
pub(crate) fn parts(manifest: &Manifest, header: &Header, extents: &[Extent]) -> Vec<FilePart> {
    let kinds = kinds(manifest);
    let cut = Cut {
        sections: &manifest.sections,
        kinds: &kinds,
        extents,
        file_bytes: header.file_bytes,
        layers: manifest.layers.len(),
        states: &manifest.states,
    };
    let mut rest = cut.runs(Joined::Nothing);
    if rest.len() >= PARTS_MAX {
        rest = cut.runs(Joined::Layers);
    }
    let mut all = vec![FilePart {
        name: HEAD_PART.to_owned(),
        id: PartId::of_head(header.manifest_id, header.manifest_bytes),
        range: 0..cut.start(0),
        sections: 0..0,
    }];
    all.append(&mut rest);
    all
}

/// The use of a section. The order of the variants is the order in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PartKind {
    Text,
    Tokenizer,
    Kernels,
    Tables,
    Answers,
    Embedding,
    /// A layer, by its number, and one of its groups.
    Layer(usize, Group),
    Head,
    Npu(NpuPlatform, Group),
    NpuPieces(NpuPlatform),
    /// A baked state, by its place among the others.
    State(usize),
}

impl PartKind {
    /// The name of its part. Numbers of layers have as many digits as the largest one, at least two.
    fn name(self, layers: usize, states: &[BakedState], joined: Joined) -> String {
        let digits = layers.saturating_sub(1).to_string().len().max(2);
        match (self, joined) {
            (Self::Text, _) => "text".to_owned(),
            (Self::Tokenizer, _) => "tokenizer".to_owned(),
            (Self::Kernels, _) => "kernels".to_owned(),
            (Self::Tables, _) => "tables".to_owned(),
            (Self::Answers, _) => "answers".to_owned(),
            (Self::Embedding, _) => "weights-embedding".to_owned(),
            (Self::Layer(layer, group), Joined::Nothing) => {
                format!("weights-{layer:0digits$}-{}", group.name())
            }
            (Self::Layer(layer, _), Joined::Layers) => format!("weights-{layer:0digits$}"),
            (Self::Head, _) => "weights-head".to_owned(),
            (Self::Npu(platform, group), _) => format!("npu-{platform}-{}", group.name()),
            (Self::NpuPieces(platform), _) => format!("npu-{platform}-pieces"),
            (Self::State(state), _) => {
                format!(
                    "state-{}",
                    states.get(state).map_or("", |state| &state.name)
                )
            }
        }
    }
}

/// Whether the places of a layer share a part.
#[derive(Debug, Clone, Copy)]
enum Joined {
    Nothing,
    Layers,
}

/// The input of a cut.
struct Cut<'a> {
    sections: &'a [Section],
    kinds: &'a BTreeMap<SectionId, PartKind>,
    extents: &'a [Extent],
    file_bytes: u64,
    layers: usize,
    states: &'a [BakedState],
}

impl Cut<'_> {
    /// All parts but the head, in file order.
    fn runs(&self, joined: Joined) -> Vec<FilePart> {
        let mut found: Vec<(String, Range<usize>)> = Vec::new();
        for (index, section) in self.sections.iter().enumerate() {
            let kind = self.kinds.get(&section.id).copied();
            let name = kind
                .unwrap_or(PartKind::Head)
                .name(self.layers, self.states, joined);
            match found.last_mut() {
                Some((last, run)) if *last == name && self.fits(run.start, index) => {
                    run.end = index + 1;
                }
                _ => found.push((name, index..index + 1)),
            }
        }
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let parts = found.into_iter().map(|(name, run)| {
            let again = seen.entry(name.clone()).or_default();
            let name = match *again {
                0 => name,
                again => format!("{name}.{again}"),
            };
            *again += 1;
            FilePart {
                name,
                id: PartId::of_sections(self.sections.get(run.clone()).unwrap_or_default()),
                range: self.start(run.start)..self.start(run.end),
                sections: run,
            }
        });
        parts.collect()
    }

    /// Whether the part that begins with section `first` has room for section `next`.
    fn fits(&self, first: usize, next: usize) -> bool {
        let end = self.start(next.saturating_add(1));
        end.saturating_sub(self.start(first)) <= PART_BYTES_MAX
    }

    /// The first byte of a section; the end of the file behind the last one.
    fn start(&self, section: usize) -> u64 {
        let extent = self.extents.get(section);
        extent.map_or(self.file_bytes, |extent| extent.offset)
    }
}

/// The use of each section: of several uses, the one that comes first in a file.
fn kinds(manifest: &Manifest) -> BTreeMap<SectionId, PartKind> {
    let places = places(manifest);
    let mut found = BTreeMap::new();
    for (reference, id) in references(manifest) {
        let kind = kind(manifest, &places, reference);
        let known = found.entry(id).or_insert(kind);
        *known = kind.min(*known);
    }
    found
}

fn kind(manifest: &Manifest, places: &[PartKind], reference: Reference) -> PartKind {
    match reference {
        Reference::ChatTemplate | Reference::Annotations | Reference::Partitions => PartKind::Text,
        Reference::Tokenizer => PartKind::Tokenizer,
        Reference::Literals
        | Reference::VariantIr(..)
        | Reference::VariantProgram(..)
        | Reference::GpuModule(_) => PartKind::Kernels,
        Reference::RopeCos(_) | Reference::RopeSin(_) => PartKind::Tables,
        Reference::Answer(..) => PartKind::Answers,
        Reference::WeightValues(weight)
        | Reference::WeightScales(weight)
        | Reference::WeightCentres(weight) => places.get(weight).copied().unwrap_or(PartKind::Head),
        Reference::StateBeginning(state) | Reference::StatePage(state, _) => PartKind::State(state),
        Reference::PieceBlob(piece, blob) => {
            let blob = manifest.pieces.get(piece).and_then(|it| it.blobs.get(blob));
            blob.map_or(PartKind::Kernels, |blob| PartKind::NpuPieces(blob.platform))
        }
        Reference::Blob(kernel, variant, blob) => {
            let kernel = manifest.kernels.get(kernel);
            let blob = kernel.and_then(|kernel| kernel.variants.get(variant)?.blobs.get(blob));
            match (kernel, blob) {
                (Some(kernel), Some(blob)) => PartKind::Npu(blob.platform, kernel.group),
                _ => PartKind::Kernels,
            }
        }
    }
}

/// The first place that uses each weight.
fn places(manifest: &Manifest) -> Vec<PartKind> {
    let mut found = vec![PartKind::Head; manifest.weights.len()];
    let mut note = |weights: &[WeightId], kind: PartKind| {
        for weight in weights {
            if let Some(known) = found.get_mut(weight.0 as usize) {
                *known = kind.min(*known);
            }
        }
    };
    let Embedding {
        table,
        scale: _,
        positions,
        token_types,
    } = &manifest.embedding;
    let embedding: Vec<WeightId> = [Some(*table), *positions, *token_types]
        .into_iter()
        .flatten()
        .collect();
    note(&embedding, PartKind::Embedding);
    for (index, layer) in manifest.layers.iter().enumerate() {
        let groups: [(Group, &KernelUse); 3] = [
            (Group::Qkv, &layer.qkv),
            (Group::Mha, &layer.mha),
            (Group::Ffn, &layer.ffn),
        ];
        for (group, place) in groups {
            note(&place.weights, PartKind::Layer(index, group));
        }
    }
    found
}

/// Name of the part that holds the header and the manifest.
pub const HEAD_PART: &str = "head";

/// Longest part of several sections, in bytes. Registries take 10 GB and ten minutes for a layer; chosen far below.
pub const PART_BYTES_MAX: u64 = 512 << 20;

/// Most parts of a bundle that is in the writer's order. A registry with a limit stops near 500 layers; chosen.
pub const PARTS_MAX: usize = 300;

/// Context that sets the ids of heads apart.
const HEAD_CONTEXT: &str = "heg-artifacts 1 part head";
