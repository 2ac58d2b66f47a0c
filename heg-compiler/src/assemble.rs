//! Assembles the manifest: kernels with the IR and the CPU program of their variants, rotary tables, text, weights and
//! places.

use std::collections::{BTreeMap, BTreeSet};

use heg_artifacts::manifest::{
    Elements, Embedding, GpuPart, Kernel, KernelId, KernelUse, Layer, Manifest, Model, Parameter,
    Provenance, RopeId, RopeTable, Section, Text, TextVectors, Variant, Weight, WeightId,
};
use heg_artifacts::{Error, MANIFEST_REVISION, SectionId, Store};
use heg_spec::{DeviceClass, KvForm, WeightForm};
use heg_spirv::{Collection, Module, PackedModule};

use crate::encode::weight_name;
use crate::error::CompileError;
use crate::graph::{Param, ParamKind, SpecScope, WeightSource};
use crate::heg::{KernelBody, Use, stage_graphs};
use crate::lower::{Literals, group_columns, is_centred, lower_verified, stored_element};
use crate::options::{GpuModules, Verify};
use crate::plan::Plan;
use crate::program::lower_program;
use crate::reference::Answers;
use crate::rope::rope_table;
use crate::variants::{activations, decodes, variants};
use heg_ingest::{ConfigJson, TextAssets};
use heg_quant::StoredWeight;

/// Everything that goes into a manifest.
pub(crate) struct Parts {
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) vectors: Option<TextVectors>,
    pub(crate) literals: SectionId,
    pub(crate) gpu: Option<GpuPart>,
    pub(crate) rope: BTreeMap<String, RopeTable>,
    pub(crate) text: Text,
    pub(crate) provenance: Provenance,
    pub(crate) params: Vec<Param>,
    pub(crate) stored: Vec<StoredWeight>,
    pub(crate) answers: Answers,
}

/// Collects the sections of a bundle while its parts are made.
pub(crate) struct Assembly<'a> {
    plan: &'a Plan,
    store: &'a Store,
    verify: Verify,
    sections: Vec<Section>,
    seen: BTreeSet<SectionId>,
    gpu: Collection,
}

impl<'a> Assembly<'a> {
    pub(crate) fn new(plan: &'a Plan, store: &'a Store, verify: Verify) -> Self {
        Self {
            plan,
            store,
            verify,
            sections: Vec::new(),
            seen: BTreeSet::new(),
            gpu: Collection::default(),
        }
    }

    pub(crate) fn add(&mut self, section: Section) -> SectionId {
        if self.seen.insert(section.id) {
            self.sections.push(section);
        }
        section.id
    }

    pub(crate) fn add_all(&mut self, sections: &[Section]) {
        for section in sections {
            self.add(*section);
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<SectionId, CompileError> {
        let section = self.store.put_bytes(bytes)?;
        Ok(self.add(section))
    }

    /// All kernels with the IR and the CPU program of their variants, and the pool of literals.
    pub(crate) fn kernels(&mut self) -> Result<(Vec<Kernel>, SectionId), CompileError> {
        let mut literals = Literals::default();
        let kernels = self
            .plan
            .heg
            .kernels
            .iter()
            .map(|body| self.kernel(body, &mut literals))
            .collect::<Result<_, _>>()?;
        let mut pool = literals.into_bytes();
        // A section must not be empty, even for a model without small constants.
        pool.resize(pool.len().max(8), 0);
        let literals = self.put(&pool)?;
        Ok((kernels, literals))
    }

    fn kernel(
        &mut self,
        body: &KernelBody,
        literals: &mut Literals,
    ) -> Result<Kernel, CompileError> {
        let mut kernel = kernel_of(body, self.plan.weights);
        let program = lower_program(body, &kernel)?;
        for variant in variants(self.plan, body.group) {
            let ir = lower_verified(body, variant.lowering, literals, self.verify)?;
            let ir = self.put(ir.as_bytes())?;
            let program = match variant.device {
                DeviceClass::Cpu => {
                    let elements = Elements::new(variant.lowering.activations, variant.kv_cache);
                    // GPUs attend to no text as a whole.
                    if self.plan.sight().is_causal() {
                        self.gpu.add_program(&program, &kernel, elements.kv);
                    }
                    Some(self.put(&program.to_bytes()?)?)
                }
                DeviceClass::Igpu | DeviceClass::Npu => None,
            };
            kernel.variants.push(Variant {
                device: variant.device,
                shape: variant.lowering.shape,
                binding: variant.lowering.binding,
                activations: variant.lowering.activations,
                kv_cache: variant.kv_cache,
                takes_trees: variant.lowering.takes_trees,
                ir,
                program,
                tolerance: variant.tolerance,
                blobs: Vec::new(),
            });
        }
        Ok(kernel)
    }

    /// The modules that GPUs run the kernels' programs with, and what goes on between them.
    pub(crate) fn gpu(&mut self, modules: GpuModules) -> Result<Option<GpuPart>, CompileError> {
        let mut collection = std::mem::take(&mut self.gpu);
        // No module reads keys and values of 8 bits, or attends to a text as a whole.
        let is_known = self.plan.sight().is_causal() && self.plan.kv != KvForm::I8;
        if modules == GpuModules::Off || !is_known {
            return Ok(None);
        }
        let table = stored_element(ParamKind::Table, self.plan.weights);
        collection.add_rows(self.plan.dims.hidden, table);
        let sections = collection.modules().map(|module| self.module(module));
        let sections = sections.collect::<Result<Vec<_>, _>>()?;
        self.add_all(&sections);
        Ok(collection.part())
    }

    /// A module's section. All bundles share it, so it is mostly in the store.
    fn module(&self, module: Module) -> Result<Section, CompileError> {
        let PackedModule { bytes, section } = module.packed();
        match self.store.section(*section) {
            Ok(section) if section.bytes == bytes.len() as u64 => Ok(section),
            Ok(_) | Err(Error::NoSuchSection { .. }) => Ok(self.store.put_bytes(bytes)?),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn rope(
        &mut self,
        config: &ConfigJson,
    ) -> Result<BTreeMap<String, RopeTable>, CompileError> {
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

    pub(crate) fn text(&mut self, assets: TextAssets) -> Result<Text, CompileError> {
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

    pub(crate) fn manifest(mut self, name: &str, parts: Parts) -> Result<Manifest, CompileError> {
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
        let chunks = &self.plan.chunk_tokens;
        let kernels = (&*parts.kernels, self.plan.dims.head_dim);
        let graphs = stage_graphs(heg, kernels, |it| decodes(it.shape, chunks))?;
        let weights = self.weights(&parts.params, &parts.stored);
        for answer in answers.layers.iter().flatten().chain([&answers.head]) {
            self.add(*answer);
        }
        Ok(Manifest {
            revision: MANIFEST_REVISION,
            model: model_of(self.plan, name, &parts.params),
            text: parts.text,
            embedding: embedding_of(self.plan, &ids),
            vectors: parts.vectors,
            rope: parts.rope.into_values().collect(),
            weights,
            literals: parts.literals,
            kernels: parts.kernels,
            layers,
            head,
            heg: graphs,
            known_answers: Some(parts.answers.question),
            annotations: None,
            partitions: None,
            pieces: Vec::new(),
            gpu: parts.gpu,
            states: Vec::new(),
            provenance: parts.provenance,
            sections: self.sections,
        })
    }

    fn weights(&mut self, params: &[Param], stored: &[StoredWeight]) -> Vec<Weight> {
        let stored = params.iter().zip(stored);
        let weights = stored.map(|(param, stored)| Weight {
            name: weight_name(param),
            element: stored.element,
            shape: param.shape.clone(),
            group_columns: group_columns(param.kind, self.plan.weights),
            values: self.add(stored.values),
            scales: stored.affine.map(|affine| self.add(affine.scales)),
            centres: stored
                .affine
                .and_then(|affine| Some(self.add(affine.centres?))),
            source: stored.source,
        });
        weights.collect()
    }
}

/// The table of the first layer's rows, and the tables that are added to it.
fn embedding_of(plan: &Plan, ids: &BTreeMap<WeightSource, WeightId>) -> Embedding {
    let added = |param: Option<&Param>| param.map(|param| ids[&param.source]);
    Embedding {
        table: WeightId(0),
        scale: plan.embedding_scale,
        positions: added(plan.embedding.positions.as_ref()),
        token_types: added(plan.embedding.token_types.as_ref()),
    }
}

/// The model as the manifest describes it.
pub(crate) fn model_of(plan: &Plan, name: &str, params: &[Param]) -> Model {
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

/// A weight in the form in which its kernel takes it.
pub(crate) fn parameter_of(param: &Param, form: WeightForm) -> Parameter {
    Parameter {
        name: param.slot.clone(),
        element: stored_element(param.kind, form),
        shape: param.shape.clone(),
        group_columns: group_columns(param.kind, form),
        centred: is_centred(param.kind, form),
    }
}

/// A kernel as the manifest describes it, without its variants.
pub(crate) fn kernel_of(body: &KernelBody, form: WeightForm) -> Kernel {
    let parameters = body.params().map(|param| parameter_of(param, form));
    let parameters: Vec<Parameter> = parameters.collect();
    let weight_bytes = parameters.iter().map(Parameter::bytes).sum();
    let element = activations(DeviceClass::Npu, form);
    Kernel {
        name: body.name.clone(),
        group: body.group,
        ops: body.ops.iter().map(|op| op.name.clone()).collect(),
        inputs: body.inputs.clone(),
        outputs: body.outputs.clone(),
        parameters,
        work: body.work(weight_bytes, element.bytes()),
        variants: Vec::new(),
    }
}
