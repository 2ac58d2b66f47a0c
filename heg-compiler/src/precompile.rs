//! Blobs for the NPU variants of a model, and the vendor compiler's estimates of their speed.
//!
//! A blob is made for each NPU variant and each of the model's platforms. It takes weights as inputs, so that one
//! serves every layer. A blob that cannot be made is left out of the bundle and reported; the device then compiles the
//! variant's IR itself.

use heg_artifacts::manifest::{Blob, Compatibility, Kernel, Section};
use heg_artifacts::{SectionId, Store};
use heg_profiler::annotation::{BlobKey, VendorTable, VendorTables};
use heg_profiler::vendor::NpuBlob;
use heg_spec::{DeviceClass, Group, NpuPlatform};

use crate::error::CompileError;
use crate::heg::KernelBody;
use crate::lower::WeightsFirst;
use crate::npu::{NpuError, NpuJob, NpuToolchain, Precompiled, precompile};
use crate::options::NpuBlobs;
use crate::phase::Phase;
use crate::products::{Inquirer, Inquiry, Reply, Site, weights_first};

/// Counts of the blobs of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlobSummary {
    /// Blobs in the bundle.
    pub blobs: usize,
    /// Number of blobs that an earlier run made.
    pub recalled: usize,
    /// Number of blobs in which some products have weights first, because the vendor's compiler estimates that to be
    /// faster.
    pub weights_first: usize,
    /// Bytes of all blobs, with equal ones counted once.
    pub bytes: u64,
    /// Variants without a blob, each with the reason.
    pub left_out: Vec<(String, String)>,
    /// For each machine that the model is partitioned for by its compiler's estimates: the size of blobs of its cuts.
    pub cuts: Vec<String>,
}

/// Tokens from which both orders of operands are tried. Below, no product of Llama-3.2-3B is faster with weights first
/// (COMPILER.md, "Blobs for NPUs").
const WEIGHTS_FIRST_TOKENS_MIN: u32 = 512;

/// A blob to make: its place in the bundle, and its IR.
struct Wanted {
    key: BlobKey,
    name: String,
    ir: SectionId,
    tokens: u32,
    cost: u64,
}

/// Results of making the blobs.
#[derive(Default)]
pub(crate) struct Blobs {
    pub(crate) summary: BlobSummary,
    pub(crate) vendor: VendorTables,
    /// Sections that the bundle gains.
    pub(crate) sections: Vec<Section>,
    /// The toolchain that made them.
    pub(crate) compiler: Option<String>,
}

/// Makes the blobs of all NPU variants for `platforms` and enters them into `kernels`. `literals` is the pool of
/// literals to which their IRs, already in the store, refer.
pub(crate) fn add_blobs(
    kernels: &mut [Kernel],
    literals: SectionId,
    platforms: &[NpuPlatform],
    handling: NpuBlobs,
    inquirer: &Inquirer<'_>,
) -> Result<Blobs, CompileError> {
    let (store, progress) = (inquirer.store, inquirer.progress);
    let wanted = wanted(kernels, platforms);
    let mut found = Blobs::default();
    if wanted.is_empty() {
        return Ok(found);
    }
    let required = handling == NpuBlobs::Required;
    let toolchain = match NpuToolchain::find() {
        Ok(toolchain) => toolchain,
        Err(absent) if required => return Err(NpuError::from(absent).into()),
        Err(absent) => {
            let what = format!("{} blobs for NPU {}", wanted.len(), list(platforms));
            let why = format!("{absent} ({})", absent.hint);
            found.summary.left_out.push((what, why));
            return Ok(found);
        }
    };
    let reordered = reordered(&wanted, inquirer)?;
    let literals = store.map(literals)?;
    let jobs = wanted
        .iter()
        .map(|wanted| job(wanted, &literals, store))
        .collect::<Result<Vec<_>, CompileError>>()?;
    progress.begin(Phase::Precompile, jobs.len() as u64);
    let seen = std::cell::Cell::new(0);
    let outcomes = precompile(&toolchain, &jobs, store, inquirer.pool, &|done, _| {
        let news = done.saturating_sub(seen.replace(done));
        progress.advance(news as u64);
    })?;
    found.compiler = Some(toolchain.identity().to_owned());
    for ((wanted, outcome), other) in wanted.into_iter().zip(outcomes).zip(reordered) {
        match outcome {
            Ok(precompiled) => {
                let one = inquirer.reply(&wanted.name, precompiled)?;
                let other = other.filter(|other| other.latency_us < one.latency_us);
                found.summary.weights_first += usize::from(other.is_some());
                let faster = other.unwrap_or(one).made;
                enter(kernels, &wanted, faster, store, &mut found)?;
            }
            Err(error) if required => return Err(error.into()),
            Err(error) => {
                let left_out = &mut found.summary.left_out;
                left_out.push((wanted.name, error.to_string()));
            }
        }
    }
    Ok(found)
}

/// For each blob, the reply for the same kernel with weights first in those products that are faster that way; `None`
/// if no product is, or if the compiler refuses it.
fn reordered(
    wanted: &[Wanted],
    inquirer: &Inquirer<'_>,
) -> Result<Vec<Option<Reply>>, CompileError> {
    let bodies = &inquirer.plan.heg.kernels;
    let large: Vec<(usize, &KernelBody, Site)> = wanted
        .iter()
        .enumerate()
        .filter(|(_, wanted)| wanted.tokens >= WEIGHTS_FIRST_TOKENS_MIN)
        .filter_map(|(index, wanted)| {
            let body = bodies.get(wanted.key.kernel)?;
            Some((index, body, (wanted.tokens, wanted.key.platform)))
        })
        .filter(|(_, body, _)| matches!(body.group, Group::Qkv | Group::Ffn))
        .collect();
    let asked: Vec<(&KernelBody, Site)> =
        large.iter().map(|(_, body, site)| (*body, *site)).collect();
    let orders = weights_first(inquirer, &asked)?;
    let (places, inquiries): (Vec<usize>, Vec<Inquiry>) = large
        .into_iter()
        .zip(orders)
        .filter(|(_, weights_first)| *weights_first != WeightsFirst::NONE)
        .filter_map(|((index, body, (tokens, platform)), weights_first)| {
            let inquiry = Inquiry {
                name: format!("{}, weights first", wanted.get(index)?.name),
                body: body.clone(),
                tokens,
                weights_first,
                platform,
            };
            Some((index, inquiry))
        })
        .unzip();
    let mut found: Vec<Option<Reply>> = vec![None; wanted.len()];
    for (index, reply) in places.into_iter().zip(inquirer.ask(&inquiries)?) {
        if let Some(place) = found.get_mut(index) {
            *place = reply.ok().filter(|reply| reply.latency_us.is_some());
        }
    }
    Ok(found)
}

/// Lists every NPU variant for every platform.
fn wanted(kernels: &[Kernel], platforms: &[NpuPlatform]) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for (kernel_index, kernel) in kernels.iter().enumerate() {
        for (variant_index, variant) in kernel.variants.iter().enumerate() {
            if variant.device != DeviceClass::Npu {
                continue;
            }
            let tokens = variant.shape.chunk().unwrap_or(1);
            let context = variant.shape.bucket().unwrap_or(tokens);
            for platform in platforms {
                wanted.push(Wanted {
                    key: BlobKey {
                        kernel: kernel_index,
                        variant: variant_index,
                        platform: *platform,
                    },
                    name: format!("{} {} for NPU {platform}", kernel.name, variant.shape),
                    ir: variant.ir,
                    tokens,
                    // The time to compile grows roughly with the work of a call.
                    cost: kernel.work.flops(tokens.into(), context.into()) as u64,
                });
            }
        }
    }
    wanted
}

fn job(wanted: &Wanted, literals: &[u8], store: &Store) -> Result<NpuJob, CompileError> {
    let ir = store.map(wanted.ir)?;
    let ir = String::from_utf8_lossy(&ir);
    let mut job = NpuJob::from_ir(wanted.name.clone(), &ir, literals, wanted.key.platform)?;
    job.cost = wanted.cost;
    Ok(job)
}

/// Enters a blob into its variant, with its own metadata.
fn enter(
    kernels: &mut [Kernel],
    wanted: &Wanted,
    precompiled: Precompiled,
    store: &Store,
    found: &mut Blobs,
) -> Result<(), CompileError> {
    let section = precompiled.blob;
    let bytes = store.map(section.id)?;
    let unreadable = |source| CompileError::Blob {
        name: wanted.name.clone(),
        source,
    };
    let metrics = NpuBlob::read(&bytes).and_then(|blob| blob.perf_metrics());
    if let Some(metrics) = metrics.map_err(unreadable)? {
        let table = VendorTable::new(metrics.latencies_us().to_vec())?;
        found.vendor.insert(wanted.key, table);
    }
    let entry = blob_of(&wanted.name, wanted.key.platform, section.id, &bytes)?;
    let variants = kernels
        .get_mut(wanted.key.kernel)
        .map(|kernel| &mut kernel.variants);
    if let Some(variant) = variants.and_then(|list| list.get_mut(wanted.key.variant)) {
        variant.blobs.push(entry);
    }
    found.summary.blobs += 1;
    found.summary.recalled += usize::from(precompiled.recalled);
    if !found.sections.contains(&section) {
        found.summary.bytes += section.bytes;
        found.sections.push(section);
    }
    Ok(())
}

/// A blob as manifests have it, with its own metadata.
pub(crate) fn blob_of(
    name: &str,
    platform: NpuPlatform,
    section: SectionId,
    bytes: &[u8],
) -> Result<Blob, CompileError> {
    let blob = NpuBlob::read(bytes).map_err(|source| CompileError::Blob {
        name: name.to_owned(),
        source,
    })?;
    let record = blob.compatibility();
    Ok(Blob {
        platform,
        compatibility: Compatibility {
            compiler: record.compiler().to_string(),
            elf: record.elf().to_string(),
            tiles: Some(record.tiles()),
            stepping: stepping(record.other()),
            text: record.text().to_owned(),
        },
        section,
    })
}

/// The stepping in a record, if any. The compiler of OpenVINO 2026.4 never writes one; drivers check it if present.
fn stepping(attributes: &[String]) -> Option<String> {
    attributes
        .iter()
        .find_map(|attribute| attribute.strip_prefix("stepping="))
        .map(str::to_owned)
}

fn list(platforms: &[NpuPlatform]) -> String {
    let names: Vec<String> = platforms.iter().map(NpuPlatform::to_string).collect();
    names.join(", ")
}
