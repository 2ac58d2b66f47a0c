//! The page's tables, as strings in rows.

use std::collections::{BTreeMap, BTreeSet};

use heg_artifacts::manifest::Manifest;
use heg_artifacts::{Reference, references};
use heg_profiler::annotation::{
    ChunkCost, Contention, DeviceAnnotation, KernelCall, Regime, SocAnnotation, estimate,
    footprint_bytes,
};
use heg_spec::{DeviceClass, Soc};
use serde::Serialize;

use super::super::kernels::{self, scaled};
use super::outline::{Lengths, uses, weight_bytes};
use super::rooflines::{kernel_call, own_variants, taken};
use super::{DEVICES_MAX, KERNELS_MAX, VARIANTS_MAX, names};

/// Variants of a kernel that differ only in their shape.
#[derive(Serialize)]
pub(super) struct VariantRow {
    kernel: String,
    uses: String,
    weights: String,
    work: String,
    style: &'static str,
    device: &'static str,
    shapes: String,
    activations: &'static str,
    binding: &'static str,
    blobs: String,
}

/// Returns the variants of all kernels.
pub(super) fn variants(manifest: &Manifest, lengths: &Lengths) -> Vec<VariantRow> {
    let uses = uses(manifest);
    let mut rows = Vec::new();
    for (kernel, uses) in manifest.kernels.iter().zip(uses).take(KERNELS_MAX) {
        for class in [DeviceClass::Npu, DeviceClass::Igpu, DeviceClass::Cpu] {
            let own = kernel.variants.iter();
            let own = own.filter(|variant| variant.device == class);
            let own: Vec<_> = own.take(VARIANTS_MAX).collect();
            let Some(first) = own.first() else { continue };
            let shapes: Vec<String> = own
                .iter()
                .map(|variant| names::shape(variant.shape))
                .collect();
            let mut blobs: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
            for blob in own
                .iter()
                .flat_map(|variant| &variant.blobs)
                .take(BLOBS_MAX)
            {
                let bytes = lengths.get(&blob.section).copied().unwrap_or(0);
                blobs.entry(blob.platform.number()).or_default().push(bytes);
            }
            let blobs = blobs.iter().map(|(platform, bytes)| {
                let bytes: Vec<String> = bytes.iter().map(|&b| scaled(b as f64, "B")).collect();
                format!("{platform}: {}", bytes.join(", "))
            });
            rows.push(VariantRow {
                kernel: names::name(&kernel.name, names::NAME),
                uses: format!("× {uses}"),
                weights: match weight_bytes(kernel) {
                    0 => "none".to_owned(),
                    bytes => scaled(bytes as f64, "B"),
                },
                work: scaled(kernel.work.flops(1, 1), "FLOP"),
                style: names::style(class),
                device: names::device(class),
                shapes: shapes.join(", "),
                activations: names::element(first.activations),
                binding: names::binding(kernel, first.binding),
                blobs: blobs.collect::<Vec<_>>().join("; "),
            });
        }
    }
    rows
}

/// Maximum number of blobs in one row: all variants for four platforms.
const BLOBS_MAX: usize = 4 * VARIANTS_MAX;

/// One device's costs.
#[derive(Serialize)]
pub(super) struct EstimateTable {
    style: &'static str,
    device: &'static str,
    rows: Vec<EstimateRow>,
}

#[derive(Serialize)]
struct EstimateRow {
    kernel: String,
    shape: String,
    binding: &'static str,
    runs: String,
    latency: String,
    bandwidth: String,
    footprint: String,
    energy: String,
    source: &'static str,
    taken: bool,
}

/// Returns the cost of the call with each variant on each device.
pub(super) fn estimates(
    manifest: &Manifest,
    soc: &SocAnnotation,
    call: KernelCall,
    lengths: &Lengths,
) -> Vec<EstimateTable> {
    let devices = soc.devices.iter().take(DEVICES_MAX);
    devices
        .map(|device| EstimateTable {
            style: names::style(device.class),
            device: names::device(device.class),
            rows: estimate_rows(manifest, device, call, lengths),
        })
        .filter(|table| !table.rows.is_empty())
        .collect()
}

fn estimate_rows(
    manifest: &Manifest,
    device: &DeviceAnnotation,
    call: KernelCall,
    lengths: &Lengths,
) -> Vec<EstimateRow> {
    let unknown = || "–".to_owned();
    let mut rows = Vec::new();
    for (index, kernel) in manifest.kernels.iter().enumerate().take(KERNELS_MAX) {
        let call = kernel_call(manifest, index, call);
        let own = own_variants(kernel, device);
        let taken = taken(&own, call);
        for (variant, place) in own.iter().zip(0..) {
            let platform = device.npu.map(|npu| npu.platform);
            let mut blobs = variant.blobs.iter();
            let blob = blobs.find(|blob| Some(blob.platform) == platform);
            let blob_bytes = blob.and_then(|blob| lengths.get(&blob.section)).copied();
            let blob_bytes = blob_bytes.unwrap_or(0);
            let found = estimate(device, kernel, variant, call, blob_bytes);
            let found = found.as_ref();
            let share = found.and_then(|found| found.bandwidth_utilisation);
            let energy_uj = found.and_then(|found| found.energy_uj);
            rows.push(EstimateRow {
                kernel: names::name(&kernel.name, names::NAME),
                shape: names::shape(variant.shape),
                binding: names::binding(kernel, variant.binding),
                runs: found.map_or_else(unknown, |found| found.runs.to_string()),
                latency: found.map_or_else(unknown, |found| scaled(found.latency_us * 1e-6, "s")),
                bandwidth: share.map_or_else(unknown, |share| format!("{:.1}%", share * 100.0)),
                footprint: scaled(
                    footprint_bytes(kernel, variant, call, blob_bytes) as f64,
                    "B",
                ),
                energy: energy_uj.map_or_else(unknown, |energy| scaled(energy * 1e-6, "J")),
                source: found.map_or("none", |found| names::source(found.source)),
                taken: own.len() > 1 && taken == Some(place),
            });
        }
    }
    rows
}

/// A candidate of the chunk sweep.
#[derive(Serialize)]
pub(super) struct ChunkRow {
    tokens: u32,
    chosen: bool,
    token: String,
    longest: String,
    kernels: Vec<String>,
}

pub(super) fn chunk_row(candidate: &ChunkCost, chosen: Option<u32>) -> ChunkRow {
    let time = |time_us: f64| scaled(time_us * 1e-6, "s");
    let costs = candidate.kernels.iter().take(KERNELS_MAX);
    ChunkRow {
        tokens: candidate.tokens,
        chosen: chosen == Some(candidate.tokens),
        token: time(candidate.token_us),
        longest: time(candidate.longest_us),
        kernels: costs
            .map(|cost| {
                let name = names::name(&cost.kernel, 16);
                let latency = time(cost.latency_us);
                let (device, source) = (names::device(cost.device), names::source(cost.source));
                format!("{name} {latency} ({device}, {source})")
            })
            .collect(),
    }
}

/// Slow-downs: a row for each slowed device, a column for each device that is busy beside it.
#[derive(Serialize)]
pub(super) struct Matrix {
    columns: Vec<String>,
    rows: Vec<MatrixRow>,
}

#[derive(Serialize)]
struct MatrixRow {
    name: String,
    /// Factor and source; empty if nobody has measured it.
    cells: Vec<[String; 2]>,
}

/// Returns the contention table; there are three classes of device in two regimes, so it is small.
pub(super) fn contention(cells: &[Contention]) -> Option<Matrix> {
    type Key = (DeviceClass, Regime);
    let order = |(class, regime): Key| (names::device(class), regime);
    let sorted = |keys: &mut dyn Iterator<Item = Key>| -> Vec<Key> {
        let keys: BTreeMap<_, Key> = keys.map(|key| (order(key), key)).collect();
        keys.into_values().collect()
    };
    let rows = sorted(&mut cells.iter().map(Contention::subject));
    let columns = sorted(&mut cells.iter().map(Contention::neighbour));
    let name = |(class, regime): &Key| {
        let regime = match regime {
            Regime::MemoryBound => "memory-bound",
            Regime::ComputeBound => "compute-bound",
        };
        format!("{}, {regime}", names::device(*class))
    };
    let cell = |row: &Key, column: &Key| {
        let found = cells
            .iter()
            .find(|cell| cell.subject() == *row && cell.neighbour() == *column);
        found.map_or_else(<[String; 2]>::default, |cell| {
            let factor = super::roofline_svg::figure(cell.slowdown());
            [
                format!("× {factor}"),
                names::source(cell.source()).to_owned(),
            ]
        })
    };
    let rows: Vec<MatrixRow> = rows
        .iter()
        .map(|row| MatrixRow {
            name: name(row),
            cells: columns.iter().map(|column| cell(row, column)).collect(),
        })
        .collect();
    (!rows.is_empty()).then(|| Matrix {
        columns: columns.iter().map(name).collect(),
        rows,
    })
}

/// The size of one kind of section in the file.
#[derive(Serialize)]
pub(super) struct SizeRow {
    what: String,
    sections: usize,
    size: String,
    share: String,
}

/// Sizes by the purpose of sections, each section counted once.
pub(super) fn sizes(manifest: &Manifest, lengths: &Lengths, file_bytes: u64) -> Vec<SizeRow> {
    let mut seen = BTreeSet::new();
    let mut kinds: BTreeMap<(u8, String), (usize, u64)> = BTreeMap::new();
    for (reference, id) in references(manifest) {
        if !seen.insert(id) {
            continue;
        }
        let kind = match kind(manifest, reference) {
            blob if blob.0 == BLOBS && !kinds.contains_key(&blob) && kinds.len() > SIZES_MAX => {
                (BLOBS, "NPU blobs of other platforms".to_owned())
            }
            kind => kind,
        };
        let (count, bytes) = kinds.entry(kind).or_default();
        *count += 1;
        *bytes = bytes.saturating_add(lengths.get(&id).copied().unwrap_or(0));
    }
    let known: u64 = kinds
        .values()
        .fold(0, |sum, kind| sum.saturating_add(kind.1));
    let rest = (0, file_bytes.saturating_sub(known));
    kinds.insert((u8::MAX, "header, manifest and padding".to_owned()), rest);
    kinds
        .into_iter()
        .map(|((_, what), (sections, bytes))| SizeRow {
            what,
            sections,
            size: scaled(bytes as f64, "B"),
            share: format!("{:.1}%", bytes as f64 * 100.0 / file_bytes.max(1) as f64),
        })
        .collect()
}

/// Position of the blobs among the sizes.
const BLOBS: u8 = 1;
/// Maximum number of rows of sizes before platforms are merged.
const SIZES_MAX: usize = 16;

/// Returns the position and name of a section's purpose.
fn kind(manifest: &Manifest, reference: Reference) -> (u8, String) {
    let (order, name) = match reference {
        Reference::WeightValues(_) | Reference::WeightScales(_) | Reference::WeightCentres(_) => {
            (0, "weights")
        }
        Reference::Blob(kernel, variant, blob) => {
            let kernel = manifest.kernels.get(kernel);
            let blob = kernel.and_then(|kernel| kernel.variants.get(variant)?.blobs.get(blob));
            let platform = blob.map_or(0, |blob| blob.platform.number());
            return (BLOBS, format!("NPU blobs for {platform}"));
        }
        Reference::PieceBlob(piece, blob) => {
            let blob = manifest.pieces.get(piece).and_then(|it| it.blobs.get(blob));
            let platform = blob.map_or(0, |blob| blob.platform.number());
            return (BLOBS, format!("NPU blobs for {platform}"));
        }
        Reference::VariantIr(..) => (2, "OpenVINO IRs"),
        Reference::Literals => (3, "literals of the IRs"),
        Reference::VariantProgram(..) => (4, "CPU programs"),
        Reference::RopeCos(_) | Reference::RopeSin(_) => (5, "rotary tables"),
        Reference::Tokenizer | Reference::ChatTemplate => (6, "tokenizer and chat template"),
        Reference::Answer(..) => (7, "known answers"),
        Reference::Annotations => (8, "annotations"),
        Reference::Partitions => (9, "partitions"),
        Reference::GpuModule(_) => (10, "GPU modules"),
        Reference::StateBeginning(_) | Reference::StatePage(..) => (11, "baked states"),
    };
    (order, name.to_owned())
}

/// The origin of one of the machine's numbers.
#[derive(Serialize)]
pub(super) struct SourceRow {
    device: &'static str,
    fact: &'static str,
    source: String,
}

/// Returns the sources of a machine's figures; empty if its file is not available.
pub(super) fn sources(file: Option<&Soc>) -> Vec<SourceRow> {
    let sources = file.map_or_else(Vec::new, kernels::sources);
    sources
        .into_iter()
        .take(SOURCES_MAX)
        .map(|(device, fact, source)| SourceRow {
            device: match device.as_str() {
                "Npu" => "NPU",
                "Igpu" => "iGPU",
                "Cpu" => "CPU",
                _ => "memory",
            },
            fact,
            source: names::name(source, names::SENTENCE),
        })
        .collect()
}

/// Maximum number of listed sources.
const SOURCES_MAX: usize = 32;
