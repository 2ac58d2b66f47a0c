//! The way from a model folder or a GGUF file to a bundle.

use std::collections::BTreeSet;
use std::path::PathBuf;

use heg_artifacts::manifest::{ElementType, Manifest, RowsPiece, Section};
use heg_artifacts::{Error, SectionId, Store, write_bundle};
use heg_profiler::annotation::{self, SweepLimits, VendorTables};
use heg_profiler::measure::Profile;
use heg_profiler::partition::{self, PairModel, PartitionError, Partitions};
use heg_spec::{NpuPlatform, Side, Soc, shipped};

use crate::assemble::{Assembly, Parts};
use crate::encode::{SourceMemory, encode_weights, source_bytes};
use crate::error::CompileError;
use crate::npu::{NpuToolchain, Pool};
use crate::options::CompileOptions;
use crate::phase::{Phase, Progress};
use crate::plan::Plan;
use crate::precompile::{BlobSummary, add_blobs};
use crate::products::{Inquirer, cut_blobs, npu_of};
use crate::provenance::provenance;
use crate::reference::StoredModel;
use crate::target::Target;
use heg_ingest::ModelSource;

/// Paths of a compile.
#[derive(Debug, Clone)]
pub struct Places {
    /// The bundle to write.
    pub bundle: PathBuf,
    /// The build cache, created if absent.
    pub store: PathBuf,
}

impl Places {
    fn shared_store(&self, options: &CompileOptions) -> Result<Store, Error> {
        Ok(Store::open(&self.store)?.shared(options.sharing.clone()))
    }
}

/// Summary of a compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of the bundle.
    pub bundle_bytes: u64,
    /// Identity of the bundle: the hash of its manifest.
    pub manifest: SectionId,
    /// Whether the file was written; false if an equal one existed.
    pub rewritten: bool,
    /// Number of distinct kernels.
    pub kernels: usize,
    /// Number of distinct weights.
    pub weights: usize,
    /// NPU blobs that were made and left out.
    pub npu: BlobSummary,
    /// Memory of keys and values of 8 bits; `None` if they have more.
    pub narrow_kv: Option<NarrowKv>,
}

/// Bytes of a token's keys and values over all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NarrowKv {
    /// In 8 bits, with their scales.
    pub i8_bytes: u64,
    /// In bf16, which they would have otherwise.
    pub bf16_bytes: u64,
}

impl NarrowKv {
    fn of(manifest: &Manifest) -> Option<Self> {
        let model = &manifest.model;
        let width = model.kv_heads.checked_mul(model.head_dim)?;
        let row = ElementType::Bf16.cache_row_bytes(width, model.head_dim)?;
        let halves = (manifest.layers.len() as u64).checked_mul(2)?;
        Some(Self {
            i8_bytes: manifest.heg.decode.cache_bytes(ElementType::I8)?,
            bf16_bytes: row.checked_mul(halves)?,
        })
    }
}

/// Compiles `target` into a bundle. On error no file is left at the bundle's path; encoded weights stay in the store,
/// and a later compile continues from there. If an object of the store turns out to have changed when it is read, it is
/// discarded and the compile starts over, reusing all other objects.
pub fn compile(
    target: &Target,
    places: &Places,
    options: &CompileOptions,
    progress: &dyn Progress,
) -> Result<Summary, CompileError> {
    let target = target.with(options);
    let mut made_again = BTreeSet::new();
    loop {
        match compile_from_store(&target, places, options, progress) {
            Err(CompileError::Artifacts(error)) => {
                let Error::ObjectChanged { expected, .. } = &error else {
                    return Err(error.into());
                };
                // An object that changes right after it was remade points to a failing disk or to another writer.
                if made_again.len() == STARTS_MAX || !made_again.insert(*expected) {
                    return Err(error.into());
                }
                Store::open(&places.store)?.discard(*expected)?;
                progress.note(&error.to_string());
            }
            outcome => return outcome,
        }
    }
}

fn compile_from_store(
    target: &Target,
    places: &Places,
    options: &CompileOptions,
    progress: &dyn Progress,
) -> Result<Summary, CompileError> {
    progress.begin(Phase::Ingest, 0);
    let ModelSource {
        config,
        text,
        checkpoint,
        config_name,
    } = ModelSource::open(&target.spec.source)?;
    progress.begin(Phase::Graph, 0);
    let target = &target.pooling(text.pooled);
    let mut plan = Plan::new(target, &config, options.verify)?;
    plan.take_form_of(&checkpoint)?;
    let (store, params) = (places.shared_store(options)?, plan.weights());
    checkpoint.check_used(params.iter().map(|param| param.source.name.as_str()))?;
    let total = source_bytes(&checkpoint, &params)?;
    progress.begin(Phase::Lower, 0);
    let mut build = Assembly::new(&plan, &store, options.verify);
    let (mut kernels, literals) = build.kernels()?;
    let gpu = build.gpu(options.gpu_modules)?;
    let platforms = &target.spec.npu_platforms;
    let pool = Pool::new(places.store.join("npu"));
    let inquirer = Inquirer::new(&plan, (&store, &pool), options.verify, progress);
    let mut blobs = add_blobs(
        &mut kernels,
        literals,
        platforms,
        options.npu_blobs,
        &inquirer,
    )?;
    build.add_all(&blobs.sections);
    let rope = build.rope(&config)?;
    let provenance = provenance((config_name, &config), &text, &plan, blobs.compiler);
    let (vectors, text) = (plan.vectors(target.pooled(), &config)?, build.text(text)?);
    progress.begin(Phase::Encode, total);
    let memory = SourceMemory::load(&places.store, &checkpoint)?;
    memory.save()?;
    let stored = encode_weights(
        &checkpoint,
        &params,
        plan.weights,
        &store,
        &memory,
        progress,
    )?;
    memory.save()?;
    let answers = StoredModel::new(&plan, &store, &params, &stored, &rope).answers(progress)?;
    let mut manifest = build.manifest(
        &target.spec.name,
        Parts {
            kernels,
            vectors,
            literals,
            gpu,
            rope,
            text,
            provenance,
            params,
            stored,
            answers,
        },
    )?;
    annotate(&mut manifest, &blobs.vendor, &options.profiles, &store)?;
    blobs.summary.cuts = share(&mut manifest, &options.partitions, platforms, &inquirer)?;
    write(&manifest, places, &store, blobs.summary, progress)
}

/// Adds annotations: the speed of each variant on the SoCs that ship with HEG, and on measured machines.
fn annotate(
    manifest: &mut Manifest,
    vendor: &VendorTables,
    profiles: &[Profile],
    store: &Store,
) -> Result<(), CompileError> {
    let socs = shipped::SOCS
        .iter()
        .map(|(name, _)| shipped::soc(name))
        .collect::<Result<Vec<_>, _>>()?;
    let limits = SweepLimits::default();
    let mut annotations = annotation::annotate(manifest, &socs, vendor, limits)?;
    for profile in profiles {
        annotations.overlay(profile.annotations(manifest));
    }
    for soc in &mut annotations.socs {
        if profiles.iter().any(|profile| profile.soc == soc.name) {
            soc.sweep = annotation::sweep(manifest, soc, limits);
        }
    }
    let section = store.put_bytes(annotations.to_text()?.as_bytes())?;
    manifest.annotations = Some(section.id);
    manifest.sections.push(section);
    Ok(())
}

/// Adds partitions: the division of the model's products between the two devices of each machine, by estimates of its
/// NPU's compiler if blobs for that are made, else by data sheets. Reports the size of blobs of the NPU's pieces, which the
/// bundle gains where CPU programs are the other side.
fn share(
    manifest: &mut Manifest,
    socs: &[Soc],
    platforms: &[NpuPlatform],
    inquirer: &Inquirer<'_>,
) -> Result<Vec<String>, CompileError> {
    if socs.is_empty() {
        return Ok(Vec::new());
    }
    let mut cuts = Vec::new();
    let shapes = partition::products(&manifest.model, &manifest.kernels)?;
    let of_sheet = |soc: &Soc| -> Result<_, PartitionError> {
        let rates = PairModel::of(soc)?;
        let pair = soc.pair.as_ref().ok_or_else(|| PartitionError::NoPair {
            soc: soc.name.clone(),
        })?;
        let chunk_tokens = pair.static_tokens.last().copied().unwrap_or(1);
        partition::partition(&soc.name, pair, &rates, &shapes, chunk_tokens)
    };
    let has_compiler = NpuToolchain::find().is_ok();
    let mut partitions = Vec::new();
    for soc in socs {
        let is_asked = has_compiler && npu_of(soc).is_some_and(|npu| platforms.contains(&npu));
        if is_asked {
            let found = cut_blobs(inquirer, soc, &shapes)?;
            cuts.push(found.to_string());
            if programs_share_with_npu(soc) {
                add_pieces(manifest, found.pieces, found.sections);
            }
            partitions.push(found.partition);
        } else {
            partitions.push(of_sheet(soc)?);
        }
    }
    let text = Partitions::new(partitions).to_text()?;
    let section = inquirer.store.put_bytes(text.as_bytes())?;
    manifest.partitions = Some(section.id);
    manifest.sections.push(section);
    Ok(cuts)
}

/// Whether CPU programs are the side of a machine's pair that takes what its NPU leaves: they alone give an NPU pieces.
fn programs_share_with_npu(soc: &Soc) -> bool {
    let second = soc.pair.as_ref().map(|pair| pair.device(Side::Second));
    let second = second.and_then(|place| soc.devices.get(place));
    second.is_some_and(|device| device.programs.is_some())
}

/// Adds an NPU's pieces of cut products, each once; machines may have some in common.
fn add_pieces(manifest: &mut Manifest, pieces: Vec<RowsPiece>, sections: Vec<Section>) {
    for piece in pieces {
        let mut known = manifest.pieces.iter_mut();
        match known.find(|known| known.place() == piece.place()) {
            Some(known) => {
                for blob in piece.blobs {
                    if known.blobs.iter().all(|it| it.platform != blob.platform) {
                        known.blobs.push(blob);
                    }
                }
            }
            None => manifest.pieces.push(piece),
        }
    }
    manifest.pieces.sort_by_key(RowsPiece::place);
    for section in sections {
        if !manifest.sections.contains(&section) {
            manifest.sections.push(section);
        }
    }
}

fn write(
    manifest: &Manifest,
    places: &Places,
    store: &Store,
    npu: BlobSummary,
    progress: &dyn Progress,
) -> Result<Summary, CompileError> {
    let total = manifest.sections.iter().map(|section| section.bytes).sum();
    progress.begin(Phase::Bundle, total);
    if let Some(folder) = places.bundle.parent() {
        std::fs::create_dir_all(folder).map_err(|source| CompileError::Io {
            action: "create",
            path: folder.to_owned(),
            source,
        })?;
    }
    let done = std::cell::Cell::new(0);
    let written = write_bundle(&places.bundle, manifest, store, &|bytes| {
        progress.advance(bytes.saturating_sub(done.replace(bytes)));
    })?;
    Ok(Summary {
        bundle_bytes: written.bytes,
        manifest: written.manifest_id,
        rewritten: written.rewritten,
        kernels: manifest.kernels.len(),
        weights: manifest.weights.len(),
        npu,
        narrow_kv: NarrowKv::of(manifest),
    })
}

/// Largest number of restarts of a compile. Chosen: more changed objects in a row mean a disk that loses data.
const STARTS_MAX: usize = 8;
