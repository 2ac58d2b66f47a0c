//! A whole model on one device: the programs of a bundle over memory of the device, for passes of any number of rows.
//!
//! The runner of tests and measurements. The engine will do the same with lanes, batches and flows of its own, by way of
//! [`GpuOrder`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{ElementType, KernelUse, Manifest, Port, Role, WeightId};
use heg_artifacts::program::Program;
use heg_spec::Activations;

use crate::device::{GpuDevice, Sharing};
use crate::error::GpuError;
use crate::lookup::{EmbeddingCall, GatherCall};
use crate::order::{GpuOrder, GpuTask};
use crate::program::{GpuCall, GpuProgram, GpuRows, GpuWeight};
use crate::region::GpuRegion;
use crate::state::{CallState, GpuCache, RowState, StateLimits};
use crate::weights::GpuSections;

/// Sizes of a model's memory.
#[derive(Debug, Clone, Copy)]
pub struct GpuModelOptions {
    /// The form of activations in products with integer weights.
    pub activations: Activations,
    /// Rows of a pass at most.
    pub rows: u32,
    /// Rows of the KV cache, over all sequences.
    pub cache_rows: u32,
}

/// A model on a device.
pub struct GpuModel {
    device: Arc<GpuDevice>,
    bundle: Arc<Bundle>,
    /// By kernel.
    programs: Vec<GpuProgram>,
    sections: GpuSections,
    memory: ModelMemory,
    /// By rows of a pass and rows of the head.
    orders: HashMap<(u32, u32), GpuOrder>,
}

/// The memory that passes of a model work in.
struct ModelMemory {
    state: CallState,
    /// Hidden states, which layers read and write in turn.
    hidden: [GpuRegion; 2],
    head_hidden: GpuRegion,
    query: GpuRegion,
    attended: GpuRegion,
    logits: GpuRegion,
    scratch: GpuRegion,
    cache: GpuCache,
}

/// The longest time of a launch: software devices need seconds for the head of a large model.
const PATIENCE: Duration = Duration::from_secs(120);

impl GpuModel {
    /// Prepares all programs of a bundle, and brings its weights to the device.
    ///
    /// # Errors
    ///
    /// [`GpuError::NoProgram`] and [`GpuError::Program`] where a kernel has none that modules run, [`GpuError::Bundle`]
    /// where a section is corrupt, and what the driver says.
    pub fn new(
        device: Arc<GpuDevice>,
        bundle: Arc<Bundle>,
        options: GpuModelOptions,
    ) -> Result<Self, GpuError> {
        device.take_modules(&bundle)?;
        let manifest = bundle.manifest();
        let ready = manifest
            .kernels
            .iter()
            .map(|kernel| program(&bundle, kernel, options.activations));
        let ready = ready.collect::<Result<Vec<_>, _>>()?;
        let kv = ready.first().map_or(ElementType::Bf16, |(_, kv)| *kv);
        let programs: Vec<GpuProgram> = ready.into_iter().map(|(program, _)| program).collect();
        let memory = ModelMemory::new(&device, manifest, &programs, kv, options)?;
        let sections = sections(manifest);
        Ok(Self {
            sections: GpuSections::new(&device, &bundle, sections)?,
            device,
            programs,
            memory,
            orders: HashMap::new(),
            bundle,
        })
    }

    /// The device.
    pub fn device(&self) -> &GpuDevice {
        &self.device
    }

    /// Returns the way in which its weights reached the device.
    pub fn sharing(&self) -> Sharing {
        self.sections.sharing()
    }

    /// Runs a pass: writes keys and values of all rows, and gives the logits of `head_rows`, one after the other.
    ///
    /// # Errors
    ///
    /// [`GpuError::Call`] where a row names what is not there, and what the driver says.
    pub fn run(&mut self, rows: &[RowState<'_>], head_rows: &[u32]) -> Result<Vec<f32>, GpuError> {
        let cache = Some(&self.memory.cache);
        let rows: Vec<_> = rows.iter().map(|row| RowState { cache, ..*row }).collect();
        self.memory.state.set(&rows)?;
        self.memory.state.set_head_rows(head_rows)?;
        let key = (rows.len() as u32, head_rows.len() as u32);
        if !self.orders.contains_key(&key) {
            let order = self.record(key.0, key.1)?;
            self.orders.insert(key, order);
        }
        if let Some(order) = self.orders.get(&key) {
            order.run(PATIENCE)?;
        }
        let vocab = self.bundle.manifest().model.vocab as usize;
        let mut bytes = vec![0; 4 * vocab * head_rows.len()];
        self.memory.logits.read(0, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(words.iter().map(|word| f32::from_ne_bytes(*word)).collect())
    }

    /// Writes the commands of a pass down: a launch for the embedding, for each layer and for the head.
    fn record(&self, rows: u32, head_rows: u32) -> Result<GpuOrder, GpuError> {
        let manifest = self.bundle.manifest();
        let width = manifest.model.hidden;
        let plain = |region: &GpuRegion| GpuRows {
            region: region.clone(),
            stride: width,
        };
        let table = self.weight(manifest.embedding.table)?;
        let element = manifest.weights.get(manifest.embedding.table.0 as usize);
        let hidden = self.memory.hidden.each_ref().map(plain);
        let last = plain(&self.memory.head_hidden);
        let state = &self.memory.state;
        let embedding = GpuTask::Embedding(EmbeddingCall {
            table: &table,
            element: element.map_or(ElementType::F32, |weight| weight.element),
            width,
            factor: manifest.embedding.scale,
            rows,
            out: &hidden[0],
            state,
        });
        let places = manifest
            .layers
            .iter()
            .map(|it| vec![&it.qkv, &it.mha, &it.ffn]);
        let bound = places.enumerate().map(|(layer, places)| {
            let bind = |place| self.bind(place, layer, rows);
            places.into_iter().map(bind).collect::<Result<Vec<_>, _>>()
        });
        let layers = bound.collect::<Result<Vec<_>, _>>()?;
        let head = self.bind(&manifest.head, manifest.layers.len(), head_rows.max(1))?;
        let mut launches = vec![vec![embedding]];
        for layer in &layers {
            launches.push(layer.iter().map(|bound| self.task(bound)).collect());
        }
        if head_rows > 0 {
            let gather = GatherCall {
                from: &hidden[manifest.layers.len() % 2],
                width,
                rows: head_rows,
                out: &last,
                state,
            };
            launches.push(vec![GpuTask::Gather(gather), self.task(&head)]);
        }
        let launches: Vec<_> = launches.iter().map(Vec::as_slice).collect();
        GpuOrder::record(&self.device, &launches)
    }

    fn task<'a>(&'a self, bound: &'a Bound) -> GpuTask<'a> {
        let call = GpuCall {
            rows: bound.rows,
            layer: bound.layer,
            weights: &bound.weights,
            inputs: &bound.inputs,
            outputs: &bound.outputs,
            scratch: &self.memory.scratch,
            state: &self.memory.state,
        };
        GpuTask::Program(&self.programs[bound.kernel], call)
    }

    /// The memory that a place's program works on; the head is the place behind all layers.
    fn bind(&self, place: &KernelUse, layer: usize, rows: u32) -> Result<Bound, GpuError> {
        let manifest = self.bundle.manifest();
        let kernel = &manifest.kernels[place.kernel.0 as usize];
        let is_head = layer == manifest.layers.len();
        let rotary = |sine: bool| -> Result<GpuRegion, GpuError> {
            let table = place.rope.and_then(|id| manifest.rope.get(id.0 as usize));
            let table = table.ok_or_else(|| GpuError::NoProgram {
                kernel: kernel.name.clone(),
            })?;
            self.sections
                .section(if sine { table.sin } else { table.cos })
        };
        let rows_of = |port: &Port, is_output: bool| {
            let memory = &self.memory;
            let region = match port.role {
                Role::Hidden if is_head => memory.head_hidden.clone(),
                Role::Hidden => memory.hidden[(layer + usize::from(is_output)) % 2].clone(),
                Role::Query => memory.query.clone(),
                Role::Attended => memory.attended.clone(),
                Role::Logits | Role::Vector => memory.logits.clone(),
                Role::Cos => rotary(false)?,
                Role::Sin => rotary(true)?,
                // The state has them.
                Role::Key | Role::Value | Role::Position => return Ok(None),
            };
            let stride = port.width;
            Ok(Some(GpuRows { region, stride }))
        };
        let inputs = kernel.inputs.iter().map(|port| rows_of(port, false));
        let outputs = kernel.outputs.iter().map(|port| rows_of(port, true));
        let weights = place.weights.iter().map(|id| self.weight(*id));
        Ok(Bound {
            kernel: place.kernel.0 as usize,
            layer: layer as u32,
            rows,
            weights: weights.collect::<Result<_, _>>()?,
            inputs: inputs.collect::<Result<_, GpuError>>()?,
            outputs: outputs.collect::<Result<_, GpuError>>()?,
        })
    }

    fn weight(&self, id: WeightId) -> Result<GpuWeight, GpuError> {
        let weight = &self.bundle.manifest().weights[id.0 as usize];
        let of = |section: Option<_>| section.map(|id| self.sections.section(id)).transpose();
        Ok(GpuWeight {
            values: self.sections.section(weight.values)?,
            scales: of(weight.scales)?,
            centres: of(weight.centres)?,
        })
    }
}

/// A place's program with its memory.
struct Bound {
    kernel: usize,
    layer: u32,
    rows: u32,
    weights: Vec<GpuWeight>,
    inputs: Vec<Option<GpuRows>>,
    outputs: Vec<Option<GpuRows>>,
}

impl ModelMemory {
    fn new(
        device: &GpuDevice,
        manifest: &Manifest,
        programs: &[GpuProgram],
        kv: ElementType,
        options: GpuModelOptions,
    ) -> Result<Self, GpuError> {
        let GpuModelOptions {
            rows, cache_rows, ..
        } = options;
        let model = &manifest.model;
        let row = |elements: u32| device.memory(4 * u64::from(rows) * u64::from(elements));
        let elements = programs.iter().map(GpuProgram::scratch_elements).max();
        let query = model.heads * model.head_dim;
        let key = u64::from(model.kv_heads * model.head_dim) * kv.bytes();
        let layers = manifest.layers.len() as u32;
        let positions = manifest.rope.iter().map(|table| table.rows).min();
        let limits = StateLimits {
            rows,
            layers,
            cache_row_bytes: key,
            positions: positions.unwrap_or(model.context_tokens),
            tokens: model.vocab,
        };
        Ok(Self {
            state: CallState::new(device, limits)?,
            hidden: [row(model.hidden)?, row(model.hidden)?],
            head_hidden: row(model.hidden)?,
            query: row(query)?,
            attended: row(query)?,
            logits: device.host_memory(4 * u64::from(rows) * u64::from(model.vocab))?,
            scratch: row(elements.unwrap_or(0).max(1))?,
            cache: GpuCache::new(device, layers, cache_rows, key)?,
        })
    }
}

/// A kernel's program, with the element type of its keys and values.
fn program(
    bundle: &Bundle,
    kernel: &heg_artifacts::manifest::Kernel,
    activations: Activations,
) -> Result<(GpuProgram, ElementType), GpuError> {
    let mut variants = kernel.variants.iter();
    let found = variants.find_map(|variant| Some((variant.program?, variant.elements().kv)));
    let (section, kv) = found.ok_or_else(|| GpuError::NoProgram {
        kernel: kernel.name.clone(),
    })?;
    let text = bundle.section_copy(section).map_err(GpuError::bundle)?;
    let program = Program::read(&text, kernel).map_err(GpuError::bundle)?;
    let ready = GpuProgram::new(program, kernel, kv, activations)?;
    Ok((ready, kv))
}

/// Sections of all weights and tables that programs read.
fn sections(manifest: &Manifest) -> Vec<heg_artifacts::SectionId> {
    let layers = manifest.layers.iter();
    let places = layers.flat_map(|it| [&it.qkv, &it.mha, &it.ffn]);
    let used = places
        .chain([&manifest.head])
        .flat_map(|place| &place.weights);
    let used = used.chain([&manifest.embedding.table]);
    let weights = used.filter_map(|id| manifest.weights.get(id.0 as usize));
    let tables = manifest
        .rope
        .iter()
        .flat_map(|table| [table.cos, table.sin]);
    weights
        .flat_map(|weight| weight.sections())
        .chain(tables)
        .collect()
}
