//! The HEG as the page draws it: kinds of layers with their kernels, the devices of these, and the data between them.
//!
//! Kinds of layers differ in their kernels. A kernel's home is the device where the chunk sweep placed it, so that an
//! edge can say whether data changes the accelerator.

use std::collections::BTreeMap;

use heg_artifacts::SectionId;
use heg_artifacts::manifest::{
    Crossing, EdgeReach, Kernel, KernelId, Manifest, Parameter, Variant,
};
use heg_profiler::annotation::ChunkSweep;
use heg_spec::DeviceClass;

use super::super::kernels::scaled;
use super::names;

/// Lengths of sections in bytes, by their hash.
pub(super) type Lengths = BTreeMap<SectionId, u64>;

/// The outline of a model, as it is drawn.
pub(super) struct Outline {
    pub(super) layers: usize,
    /// The kinds of layers in the order of their first layers, at most [`KINDS_MAX`].
    pub(super) kinds: Vec<LayerKind>,
    /// Number of further kinds.
    pub(super) more_kinds: usize,
    pub(super) embedding: [String; 2],
    pub(super) head: Card,
    /// The residual stream, from layer to layer.
    pub(super) stream: Edge,
    /// The edge into the head.
    pub(super) last: Edge,
}

/// Layers with the same kernels.
pub(super) struct LayerKind {
    /// Label of the layers: `22 layers: 0–4, 6–10`.
    pub(super) title: String,
    pub(super) qkv: Card,
    pub(super) mha: Card,
    pub(super) ffn: Card,
    pub(super) attend: Edge,
    pub(super) attended: Edge,
}

/// A kernel.
pub(super) struct Card {
    pub(super) name: String,
    /// The number of places that use it, in words.
    pub(super) uses: String,
    pub(super) weights: String,
    /// A description of the card in words.
    pub(super) title: String,
    /// The kernel's variants, class by class.
    pub(super) classes: Vec<CardClass>,
}

/// Variants of a kernel for one class of device.
pub(super) struct CardClass {
    pub(super) class: DeviceClass,
    pub(super) shapes: String,
    pub(super) details: Vec<String>,
}

/// The tensors that pass from kernel to kernel.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    pub(super) what: &'static str,
    /// Number of bytes for each token.
    pub(super) bytes: u64,
    /// Homes of both ends; `None` if unknown.
    pub(super) ends: [Option<DeviceClass>; 2],
    /// Whether the bundle's graph lets it change the accelerator.
    pub(super) crossing: Crossing,
}

impl Edge {
    pub(super) fn size(&self) -> String {
        scaled(self.bytes as f64, "B")
    }

    /// Returns whether the edge changes the accelerator: between the homes of its ends, or where one is unknown, as far
    /// as the graph lets it.
    pub(super) fn crosses(&self) -> bool {
        match self.ends {
            [Some(from), Some(to)] => from != to,
            _ => self.crossing == Crossing::Inter,
        }
    }

    /// Returns, in a word, whether the edge stays on one accelerator.
    pub(super) fn span(&self) -> &'static str {
        match self.crosses() {
            false => "intra",
            true => "inter",
        }
    }
}

/// Maximum number of kinds of layers that are drawn. Chosen: families in use have one or two.
const KINDS_MAX: usize = 4;
/// Maximum number of platforms that a kernel lists.
const PLATFORMS_MAX: usize = 4;
/// Maximum number of ranges of layers in a title.
const RANGES_MAX: usize = 4;

impl Outline {
    pub(super) fn new(manifest: &Manifest, sweep: Option<&ChunkSweep>, lengths: &Lengths) -> Self {
        let homes = Homes::new(manifest, sweep);
        let uses = uses(manifest);
        let card = |index: u32| card(manifest, index, &uses, lengths);
        let mut kinds: BTreeMap<[u32; 3], Ranges> = BTreeMap::new();
        for (index, layer) in manifest.layers.iter().enumerate() {
            let key = [&layer.qkv, &layer.mha, &layer.ffn].map(|used| used.kernel.0);
            kinds.entry(key).or_default().push(index);
        }
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by_key(|(_, ranges)| ranges.first());
        let more_kinds = kinds.len().saturating_sub(KINDS_MAX);
        let head = manifest.head.kernel.0;
        let before = manifest.layers.last().map_or(0, |layer| layer.ffn.kernel.0);
        let last = homes.edge(manifest, "x", EdgeReach::Next, [before, head]);
        // From layer to layer there are the same rows.
        let first = kinds.first().and_then(|(key, _)| homes.of(key[0]));
        let stream = Edge {
            ends: [last.ends[0], first],
            ..last
        };
        Outline {
            layers: manifest.layers.len(),
            more_kinds,
            embedding: embedding(manifest, lengths),
            head: card(head),
            stream,
            last,
            kinds: kinds
                .iter()
                .take(KINDS_MAX)
                .map(|(key, ranges)| {
                    let [qkv, mha, ffn] = *key;
                    LayerKind {
                        title: ranges.title(),
                        qkv: card(qkv),
                        mha: card(mha),
                        ffn: card(ffn),
                        attend: homes.edge(manifest, "q, k, v", EdgeReach::Layer, [qkv, mha]),
                        attended: homes.edge(manifest, "a", EdgeReach::Layer, [mha, ffn]),
                    }
                })
                .collect(),
        }
    }
}

/// The device of each kernel, by the sweep.
struct Homes(Vec<Option<DeviceClass>>);

impl Homes {
    fn new(manifest: &Manifest, sweep: Option<&ChunkSweep>) -> Self {
        let candidates = sweep.map_or(&[][..], ChunkSweep::candidates);
        let chosen = sweep.and_then(ChunkSweep::chosen);
        let chosen = candidates
            .iter()
            .find(|candidate| Some(candidate.tokens) == chosen)
            .or(candidates.last());
        let costs: BTreeMap<&str, DeviceClass> = chosen
            .iter()
            .flat_map(|candidate| &candidate.kernels)
            .map(|cost| (cost.kernel.as_str(), cost.device))
            .collect();
        let kernels = manifest.kernels.iter();
        Homes(
            kernels
                .map(|kernel| costs.get(kernel.name.as_str()).copied())
                .collect(),
        )
    }

    fn of(&self, kernel: u32) -> Option<DeviceClass> {
        self.0.get(kernel as usize).copied().flatten()
    }

    /// Returns the variant of a kernel at its home, or else its first.
    fn variant<'m>(&self, manifest: &'m Manifest, kernel: u32) -> Option<&'m Variant> {
        let variants = &manifest.kernels.get(kernel as usize)?.variants;
        let home = self.of(kernel);
        let at_home = variants.iter().find(|it| Some(it.device) == home);
        at_home.or(variants.first())
    }

    /// Returns all edges of the graph from a kernel to another as one, which carries what they carry.
    fn edge(
        &self,
        manifest: &Manifest,
        what: &'static str,
        reach: EdgeReach,
        [from, to]: [u32; 2],
    ) -> Edge {
        let graph = &manifest.heg.prefill;
        let is_of = |node: u32, kernel: u32| {
            let node = graph.nodes.get(node as usize);
            node.is_some_and(|node| node.kernel == KernelId(kernel))
        };
        let edges = graph.edges.iter().filter(|edge| edge.reach == reach);
        let edges = edges.filter(|edge| is_of(edge.from, from) && is_of(edge.to, to));
        let mut found = Edge {
            what,
            bytes: 0,
            ends: [self.of(from), self.of(to)],
            crossing: Crossing::Intra,
        };
        for edge in edges {
            let variant = self.variant(manifest, from);
            let bytes = variant.and_then(|it| edge.row_bytes.get(&it.port_element(edge.role)));
            found.bytes = found.bytes.saturating_add(bytes.copied().unwrap_or(0));
            found.crossing = found.crossing.max(edge.crossing);
        }
        found
    }
}

/// Returns the number of places that use each kernel.
pub(super) fn uses(manifest: &Manifest) -> Vec<usize> {
    let mut uses = vec![0; manifest.kernels.len()];
    let layers = manifest
        .layers
        .iter()
        .flat_map(|layer| [&layer.qkv, &layer.mha, &layer.ffn]);
    for used in layers.chain([&manifest.head]) {
        if let Some(count) = uses.get_mut(used.kernel.0 as usize) {
            *count += 1;
        }
    }
    uses
}

fn embedding(manifest: &Manifest, lengths: &Lengths) -> [String; 2] {
    let table = manifest.weights.get(manifest.embedding.table.0 as usize);
    let bytes = table.map_or(0, |table| {
        let sections = table.sections();
        sections.filter_map(|id| lengths.get(&id)).sum()
    });
    [
        format!("{} × {}", manifest.model.vocab, manifest.model.hidden),
        scaled(bytes as f64, "B"),
    ]
}

fn card(manifest: &Manifest, index: u32, uses: &[usize], lengths: &Lengths) -> Card {
    let Some(kernel) = manifest.kernels.get(index as usize) else {
        // An opened bundle has every kernel that it uses, so this is never reached.
        return Card {
            name: String::new(),
            uses: String::new(),
            weights: String::new(),
            title: String::new(),
            classes: Vec::new(),
        };
    };
    let weights = match weight_bytes(kernel) {
        0 => "no weights".to_owned(),
        bytes => format!("{} of weights", scaled(bytes as f64, "B")),
    };
    let classes = [DeviceClass::Npu, DeviceClass::Igpu, DeviceClass::Cpu];
    let classes = classes
        .into_iter()
        .filter_map(|class| card_class(kernel, class, lengths));
    let name = names::name(&kernel.name, 16);
    let ops: Vec<String> = kernel
        .ops
        .iter()
        .take(24)
        .map(|op| names::name(op, names::NAME))
        .collect();
    Card {
        title: format!("{name}: {}", ops.join(", ")),
        uses: format!("× {}", uses.get(index as usize).copied().unwrap_or(0)),
        weights,
        classes: classes.collect(),
        name,
    }
}

/// Returns the number of bytes of the values, scales and centres of the kernel's weights at one place.
pub(super) fn weight_bytes(kernel: &Kernel) -> u64 {
    let weights = kernel.parameters.iter().map(Parameter::bytes);
    weights.fold(0, u64::saturating_add)
}

fn card_class(kernel: &Kernel, class: DeviceClass, lengths: &Lengths) -> Option<CardClass> {
    let own = kernel
        .variants
        .iter()
        .filter(|variant| variant.device == class);
    let own: Vec<&Variant> = own.take(super::VARIANTS_MAX).collect();
    let first = own.first()?;
    let shapes: Vec<_> = own.iter().map(|variant| variant.shape).collect();
    let binding = names::binding(kernel, first.binding);
    let mut details = vec![format!("{}, {binding}", names::element(first.activations))];
    let blobs = blobs(&own, lengths);
    let more = blobs.len().saturating_sub(PLATFORMS_MAX);
    for (platform, (count, bytes)) in blobs.into_iter().take(PLATFORMS_MAX) {
        let plural = if count == 1 { "blob" } else { "blobs" };
        details.push(format!(
            "{platform}: {count} {plural}, {}",
            scaled(bytes as f64, "B")
        ));
    }
    if more > 0 {
        details.push(format!("and {more} more platforms"));
    }
    Some(CardClass {
        class,
        shapes: names::shapes(&shapes),
        details,
    })
}

/// Returns the number and total bytes of the blobs, by platform.
fn blobs(variants: &[&Variant], lengths: &Lengths) -> BTreeMap<u32, (usize, u64)> {
    let mut blobs = BTreeMap::new();
    for blob in variants.iter().flat_map(|variant| &variant.blobs) {
        let (count, bytes) = blobs.entry(blob.platform.number()).or_insert((0, 0u64));
        *count += 1;
        *bytes = bytes.saturating_add(lengths.get(&blob.section).copied().unwrap_or(0));
    }
    blobs
}

/// Formats ascending numbers as ranges.
#[derive(Default)]
struct Ranges {
    count: usize,
    ranges: Vec<(usize, usize)>,
    /// Whether ranges were left out.
    cut: bool,
}

impl Ranges {
    fn push(&mut self, index: usize) {
        self.count += 1;
        let room = self.ranges.len() < RANGES_MAX;
        match self.ranges.last_mut() {
            Some((_, last)) if !self.cut && *last + 1 == index => *last = index,
            _ if room => self.ranges.push((index, index)),
            _ => self.cut = true,
        }
    }

    fn first(&self) -> usize {
        self.ranges.first().map_or(0, |range| range.0)
    }

    fn title(&self) -> String {
        let ranges: Vec<String> = self
            .ranges
            .iter()
            .map(|(first, last)| match first == last {
                true => first.to_string(),
                false => format!("{first}–{last}"),
            })
            .collect();
        let cut = if self.cut { ", …" } else { "" };
        let plural = if self.count == 1 { "layer" } else { "layers" };
        format!("{} {plural}: {}{cut}", self.count, ranges.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_layers() {
        let title = |indices: &[usize]| {
            let mut ranges = Ranges::default();
            indices.iter().for_each(|&index| ranges.push(index));
            ranges.title()
        };
        assert_eq!(title(&[0]), "1 layer: 0");
        assert_eq!(title(&[0, 1, 2, 4]), "4 layers: 0–2, 4");
        assert_eq!(title(&[0, 2, 4, 6, 8, 9]), "6 layers: 0, 2, 4, 6, …");
    }
}
