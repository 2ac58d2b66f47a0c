//! The road from a model folder to a bundle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use heg_artifacts::manifest::{
    Binding, ElementType, Embedding, Kernel, KernelId, KernelUse, Layer, Manifest, Model,
    Parameter, Provenance, RopeId, RopeTable, Section, ShapeClass, Text, Variant, Weight, WeightId,
};
use heg_artifacts::{Error, MANIFEST_REVISION, SectionId, Store, write_bundle};
use heg_profiler::annotation::{self, SweepLimits, VendorTables};
use heg_profiler::measure::Profile;
use heg_spec::shipped;
use heg_spec::{DeviceClass, Group, WeightForm};

use crate::encode::{SourceMemory, StoredWeight, encode_weights, source_bytes, weight_name};
use crate::error::CompileError;
use crate::graph::{Param, SpecScope, WeightSource};
use crate::heg::{KernelBody, Use};
use crate::ingest::{Checkpoint, ConfigJson, TextAssets};
use crate::lower::{Literals, Lowering, lower, stored_element};
use crate::npu::Pool;
use crate::phase::{Phase, Progress};
use crate::plan::Plan;
use crate::precompile::{BlobSummary, NpuAccess, add_blobs};
use crate::reference::{Answers, StoredModel};
use crate::rope::rope_table;
use crate::target::Target;

/// Where a compile works.
#[derive(Debug, Clone)]
pub struct Places {
    /// The bundle to write.
    pub bundle: PathBuf,
    /// The build cache, created where there is none.
    pub store: PathBuf,
}

/// What a compile may use besides the model.
#[derive(Debug, Clone)]
pub struct Tools {
    /// With what blobs for NPUs are made, where the model asks for them.
    pub npu: NpuAccess,
    /// What was measured on devices; becomes annotations, before what data sheets and vendors say.
    pub profiles: Vec<Profile>,
}

impl Tools {
    /// The NPU toolchain that was set up, if one was, and no measurements.
    pub fn find() -> Self {
        Self {
            npu: NpuAccess::find(),
            profiles: Vec::new(),
        }
    }
}

/// What a compile did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of the bundle.
    pub bundle_bytes: u64,
    /// Identity of the bundle: the hash of its manifest.
    pub manifest: SectionId,
    /// Whether the file was written; false where an equal one was there.
    pub rewritten: bool,
    /// Distinct kernels.
    pub kernels: usize,
    /// Distinct weights.
    pub weights: usize,
    /// What became of the blobs for NPUs.
    pub npu: BlobSummary,
}

/// Compiles `target` into a bundle. On error nothing is left at the bundle's place; what was encoded stays in
/// the store, so that a later compile goes on from there. An object of the store that is not what it was is noticed
/// by whoever reads it, discarded, and made again by starting over, which takes all else from the store.
pub fn compile(
    target: &Target,
    places: &Places,
    tools: &Tools,
    progress: &dyn Progress,
) -> Result<Summary, CompileError> {
    let mut made_again = BTreeSet::new();
    loop {
        match compile_from_store(target, places, tools, progress) {
            Err(CompileError::Artifacts(error)) => {
                let Error::ObjectChanged { expected, .. } = &error else {
                    return Err(error.into());
                };
                // One that changes as soon as it is made says that the disk is at its end, or somebody else writes.
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
    tools: &Tools,
    progress: &dyn Progress,
) -> Result<Summary, CompileError> {
    progress.begin(Phase::Ingest, 0);
    let folder = &target.spec.source;
    let config = ConfigJson::read(&folder.join("config.json"))?;
    let text = TextAssets::read(folder)?;
    let checkpoint = Checkpoint::open(folder)?;
    progress.begin(Phase::Graph, 0);
    let plan = Plan::new(target, &config)?;
    let store = Store::open(&places.store)?;
    let params = plan.weights();
    let total = source_bytes(&checkpoint, &params)?;
    progress.begin(Phase::Lower, 0);
    let mut build = BundleBuild::new(&plan, &store);
    let (mut kernels, literals) = build.kernels()?;
    let platforms = &target.spec.npu_platforms;
    let workers = Pool::new(places.store.join("npu"));
    let blobs = add_blobs(
        &mut kernels,
        literals,
        platforms,
        &tools.npu,
        (&store, &workers),
        progress,
    )?;
    for section in &blobs.sections {
        build.add(*section);
    }
    let rope = build.rope(&config)?;
    let text = build.text(text)?;
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
    let mut provenance = provenance(folder, &config, &plan)?;
    provenance.npu_compiler = blobs.compiler;
    let mut manifest = build.manifest(
        &target.spec.name,
        Parts {
            kernels,
            literals,
            rope,
            text,
            provenance,
            params,
            stored,
            answers,
        },
    )?;
    annotate(&mut manifest, &blobs.vendor, &tools.profiles, &store)?;
    write(&manifest, places, &store, blobs.summary, progress)
}

/// Says how fast the variants are on the machines that ship with HEG, and on those that were measured.
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
    })
}

/// Everything that goes into a manifest.
struct Parts {
    kernels: Vec<Kernel>,
    literals: SectionId,
    rope: BTreeMap<String, RopeTable>,
    text: Text,
    provenance: Provenance,
    params: Vec<Param>,
    stored: Vec<StoredWeight>,
    answers: Answers,
}

/// Collects the sections of a bundle as its parts come to be.
struct BundleBuild<'a> {
    plan: &'a Plan,
    store: &'a Store,
    sections: Vec<Section>,
    seen: BTreeSet<SectionId>,
}

impl<'a> BundleBuild<'a> {
    fn new(plan: &'a Plan, store: &'a Store) -> Self {
        Self {
            plan,
            store,
            sections: Vec::new(),
            seen: BTreeSet::new(),
        }
    }

    fn add(&mut self, section: Section) -> SectionId {
        if self.seen.insert(section.id) {
            self.sections.push(section);
        }
        section.id
    }

    fn put(&mut self, bytes: &[u8]) -> Result<SectionId, CompileError> {
        let section = self.store.put_bytes(bytes)?;
        Ok(self.add(section))
    }

    /// All kernels with the IR of their variants, and the pool of literals.
    fn kernels(&mut self) -> Result<(Vec<Kernel>, SectionId), CompileError> {
        let mut literals = Literals::default();
        let kernels = self
            .plan
            .heg
            .kernels
            .iter()
            .map(|body| self.kernel(body, &mut literals))
            .collect::<Result<_, _>>()?;
        let mut pool = literals.into_bytes();
        // A section is never empty, even for a model without small constants.
        pool.resize(pool.len().max(8), 0);
        let literals = self.put(&pool)?;
        Ok((kernels, literals))
    }

    fn kernel(
        &mut self,
        body: &KernelBody,
        literals: &mut Literals,
    ) -> Result<Kernel, CompileError> {
        let form = self.plan.weights;
        let mut variants = Vec::new();
        let (chunks, buckets) = (&self.plan.chunk_tokens, &self.plan.mha_context_tokens);
        for (device, shape, binding) in variant_kinds(body.group, chunks, buckets) {
            let (activations, kv_cache) = (activations(device, form), kv_cache(device, form));
            let lowering = Lowering {
                shape,
                binding,
                activations,
                kv_cache,
                weights: form,
            };
            let ir = lower(body, lowering, literals);
            let ir = self.put(ir.as_bytes())?;
            variants.push(Variant {
                device,
                shape,
                binding,
                activations,
                kv_cache,
                ir,
                tolerance: tolerance(activations, form),
                blobs: Vec::new(),
            });
        }
        let parameters: Vec<Parameter> = body
            .params()
            .map(|param| Parameter {
                name: param.slot.clone(),
                element: stored_element(param.kind, form),
                shape: param.shape.clone(),
            })
            .collect();
        let weight_bytes = parameters.iter().map(parameter_bytes).sum();
        let element = activations(DeviceClass::Npu, form);
        Ok(Kernel {
            name: body.name.clone(),
            group: body.group,
            ops: body.ops.iter().map(|op| op.name.clone()).collect(),
            inputs: body.inputs.clone(),
            outputs: body.outputs.clone(),
            parameters,
            work: body.work(weight_bytes, element.bytes()),
            variants,
        })
    }

    fn rope(&mut self, config: &ConfigJson) -> Result<BTreeMap<String, RopeTable>, CompileError> {
        let architecture = &self.plan.architecture;
        let scope = SpecScope::new(architecture, config, None);
        let mut tables = BTreeMap::new();
        for name in self.plan.rope_tables() {
            let table = rope_table(
                &architecture.rope[&name],
                &scope,
                config,
                self.plan.context_tokens,
            )?;
            let (cos, sin) = (self.put(&table.cos)?, self.put(&table.sin)?);
            tables.insert(
                name,
                RopeTable {
                    rows: table.rows,
                    width: table.width,
                    cos,
                    sin,
                },
            );
        }
        Ok(tables)
    }

    fn text(&mut self, assets: TextAssets) -> Result<Text, CompileError> {
        let tokenizer = assets.tokenizer.map(|bytes| self.put(&bytes)).transpose()?;
        let chat_template = assets
            .chat_template
            .map(|text| self.put(text.as_bytes()))
            .transpose()?;
        Ok(Text {
            tokenizer,
            chat_template,
            special_tokens: assets.special_tokens,
            eos_ids: assets.eos_ids,
        })
    }

    fn manifest(mut self, name: &str, parts: Parts) -> Result<Manifest, CompileError> {
        let ids: BTreeMap<WeightSource, WeightId> = parts
            .params
            .iter()
            .enumerate()
            .map(|(index, param)| (param.source.clone(), WeightId(index as u32)))
            .collect();
        let rope_ids: BTreeMap<&str, RopeId> = parts
            .rope
            .keys()
            .enumerate()
            .map(|(index, name)| (name.as_str(), RopeId(index as u32)))
            .collect();
        let place = |used: &Use, answer: &Section| KernelUse {
            kernel: KernelId(used.kernel as u32),
            weights: used
                .weights
                .iter()
                .map(|param| ids[&param.source])
                .collect(),
            rope: used.rope.as_deref().map(|name| rope_ids[name]),
            answer: Some(answer.id),
        };
        let (heg, answers) = (&self.plan.heg, &parts.answers);
        let layers = heg
            .layers
            .iter()
            .zip(&answers.layers)
            .map(|([qkv, mha, ffn], answers)| Layer {
                qkv: place(qkv, &answers[0]),
                mha: place(mha, &answers[1]),
                ffn: place(ffn, &answers[2]),
            })
            .collect();
        let head = place(&heg.head, &answers.head);
        let weights: Vec<Weight> = parts
            .params
            .iter()
            .zip(&parts.stored)
            .map(|(param, stored)| Weight {
                name: weight_name(param),
                element: stored.element,
                shape: param.shape.clone(),
                values: self.add(stored.values),
                scales: stored.scales.map(|scales| self.add(scales)),
                source: stored.source,
            })
            .collect();
        for answer in answers.layers.iter().flatten().chain([&answers.head]) {
            self.add(*answer);
        }
        Ok(Manifest {
            revision: MANIFEST_REVISION,
            model: self.model(name, &parts.params),
            text: parts.text,
            embedding: Embedding {
                table: WeightId(0),
                scale: self.plan.embedding_scale,
            },
            rope: parts.rope.into_values().collect(),
            weights,
            literals: parts.literals,
            kernels: parts.kernels,
            layers,
            head,
            known_answers: Some(parts.answers.question),
            annotations: None,
            provenance: parts.provenance,
            sections: self.sections,
        })
    }

    fn model(&self, name: &str, params: &[Param]) -> Model {
        let plan = self.plan;
        let elements = |param: &Param| {
            param
                .shape
                .iter()
                .map(|dim| u64::from(*dim))
                .product::<u64>()
        };
        Model {
            name: name.to_owned(),
            architecture: plan.architecture.name.clone(),
            weights: plan.weights,
            hidden: plan.dims.hidden,
            heads: plan.dims.heads,
            kv_heads: plan.dims.kv_heads,
            head_dim: plan.dims.head_dim,
            vocab: plan.dims.vocab,
            context_tokens: plan.context_tokens,
            chunk_tokens: plan.chunk_tokens.clone(),
            parameters: params.iter().map(elements).sum(),
        }
    }
}

/// Variants of a kernel: dynamic ones for CPU and iGPU, static ones for the NPU. Attention is static in the
/// rows of the cache as well, at every bucket that holds the chunk.
fn variant_kinds(
    group: Group,
    chunks: &[u32],
    buckets: &[u32],
) -> Vec<(DeviceClass, ShapeClass, Binding)> {
    let mut kinds = vec![
        (DeviceClass::Cpu, ShapeClass::Dynamic, Binding::Constant),
        (DeviceClass::Igpu, ShapeClass::Dynamic, Binding::Constant),
    ];
    for tokens in chunks.iter().copied() {
        let shapes: Vec<ShapeClass> = match group {
            // More rows never reach it, and the NPU compiler takes minutes over large ones.
            Group::Head if tokens > HEAD_ROWS_MAX.max(chunks[0]) => Vec::new(),
            Group::Qkv | Group::Ffn | Group::Head => vec![ShapeClass::Static { tokens }],
            Group::Mha => {
                let holding = buckets.iter().filter(|context| **context >= tokens);
                holding
                    .map(|context| ShapeClass::Bucket {
                        tokens,
                        context: *context,
                    })
                    .collect()
            }
        };
        let fixed = |shape| (DeviceClass::Npu, shape, Binding::Input);
        kinds.extend(shapes.into_iter().map(fixed));
    }
    kinds
}

/// Rows of the largest static head: the head runs on the last row of each sequence only, and 32 is the largest
/// decode batch (Agent.xpu §4.1).
const HEAD_ROWS_MAX: u32 = 32;

/// Accelerators compute in f16 unless the model is kept in f32; the CPU always in f32 (DESIGN §4.6).
fn activations(device: DeviceClass, form: WeightForm) -> ElementType {
    match (device, form) {
        (DeviceClass::Cpu, _) | (_, WeightForm::F32) => ElementType::F32,
        (DeviceClass::Igpu | DeviceClass::Npu, WeightForm::F16 | WeightForm::W8A16) => {
            ElementType::F16
        }
    }
}

/// Keys and values on the CPU where weights are int8: attention reads half as much as in f32, and f16 would have to be
/// converted by code of its own first. Calls for single tokens of 8 sequences over 1024 rows take 2.1 ms instead of
/// 3.6 ms, over 2048 rows 4.0 ms instead of 11.2 ms (32/8 heads of 64, two cores that multiply bf16).
fn kv_cache(device: DeviceClass, form: WeightForm) -> Option<ElementType> {
    let narrow = device == DeviceClass::Cpu && form == WeightForm::W8A16;
    narrow.then_some(ElementType::Bf16)
}

/// How far a variant's outputs may lie from the known answers. What plugins do to int8 products (rounding
/// activations to int8 themselves) is far above rounding to f16, and far below what a broken kernel gives.
fn tolerance(activations: ElementType, form: WeightForm) -> f32 {
    match (form, activations) {
        (WeightForm::W8A16, _) => 5e-2,
        (WeightForm::F16, _) | (WeightForm::F32, ElementType::F16) => 1e-2,
        (WeightForm::F32, _) => 1e-4,
    }
}

fn parameter_bytes(parameter: &Parameter) -> u64 {
    let elements: u64 = parameter.shape.iter().map(|dim| u64::from(*dim)).product();
    let scales = if parameter.element == ElementType::I8 {
        u64::from(parameter.shape[0]) * ElementType::F32.bytes()
    } else {
        0
    };
    elements * parameter.element.bytes() + scales
}

fn provenance(folder: &Path, config: &ConfigJson, plan: &Plan) -> Result<Provenance, CompileError> {
    let config = (
        "config.json".to_owned(),
        SectionId::from(config.source_hash()),
    );
    let mut inputs: BTreeMap<String, SectionId> =
        plan.specs.iter().cloned().chain([config]).collect();
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
        "special_tokens_map.json",
    ] {
        match std::fs::read(folder.join(name)) {
            Ok(bytes) => {
                inputs.insert(name.to_owned(), SectionId::of(&bytes));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(CompileError::Io {
                    action: "read",
                    path: folder.join(name),
                    source,
                });
            }
        }
    }
    Ok(Provenance {
        compiler: concat!("heg-compiler ", env!("CARGO_PKG_VERSION")).to_owned(),
        openvino: OPENVINO_IR.to_owned(),
        npu_compiler: None,
        inputs,
    })
}

/// Times that a compile starts over. Chosen: one that finds more objects changed, one after the other, is on a disk
/// that loses them.
const STARTS_MAX: usize = 8;

/// The OpenVINO release whose IR is written.
const OPENVINO_IR: &str = "2026.4.1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_attention_is_made_for_buckets_that_hold_the_chunk() {
        let kinds = variant_kinds(Group::Mha, &[32, 512, 1024], &[512, 600]);
        let shapes: Vec<ShapeClass> = kinds
            .into_iter()
            .filter(|(device, ..)| *device == DeviceClass::Npu)
            .map(|(_, shape, _)| shape)
            .collect();
        let bucket = |tokens, context| ShapeClass::Bucket { tokens, context };
        let expected = [
            bucket(32, 512),
            bucket(32, 600),
            bucket(512, 512),
            bucket(512, 600),
        ];
        assert_eq!(shapes, expected);
    }
}
