//! Kernels made ready: IR read, compiled for its device, and a request for each place.
//!
//! Constant-bound kernels are compiled once per place, since their weights are part of them; input-bound ones
//! once per chunk size, with a request per place whose weights are bound once. Threads of their own prepare
//! them while the caller reads the tokenizer and the prompt.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{
    self, Binding, ElementType, Group, KernelUse, Manifest, ShapeClass, Variant,
};
use heg_openvino::{CompiledModel, Core, Memory, Request, Tensor};
use heg_spec::Soc;

use super::ir;
use crate::bind::{Bound, bind, shared_activations};
use crate::error::{RuntimeError, openvino};
use crate::mem::BundleMemory;
use crate::sched::Launch;

/// Compiled forms of the kernel at one place, static ones in ascending order of tokens.
pub(super) struct Prepared {
    pub(super) forms: Vec<Form>,
    /// Sections that nobody reads any more once the plugin has packed them in its own layout, which it does
    /// in the first inference. Empty once they were given back.
    pub(super) packed: Vec<heg_artifacts::SectionId>,
}

/// One compiled form.
pub(super) struct Form {
    pub(super) shape: ShapeClass,
    pub(super) request: Request,
}

/// Where a kernel is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) layer: Option<u32>,
    pub(super) group: Group,
}

impl From<Launch> for Place {
    fn from(launch: Launch) -> Self {
        Self {
            layer: launch.layer,
            group: launch.group,
        }
    }
}

/// All places of a model, being prepared.
pub(super) struct Kernels {
    workers: Vec<thread::JoinHandle<Share>>,
    abandoned: Arc<AtomicBool>,
}

/// The places that one worker prepared.
type Share = Result<Vec<(Place, Prepared)>, RuntimeError>;

/// What a loader needs to make a kernel ready.
pub(super) struct Loader {
    pub(super) core: Core,
    pub(super) bundle: Arc<Bundle>,
    pub(super) memory: Arc<dyn Memory>,
    pub(super) soc: Soc,
    /// Input-bound kernels serve all layers: compiled on first use, by kernel and variant.
    shared_forms: Mutex<BTreeMap<(u32, usize), CompiledModel>>,
}

impl Loader {
    pub(super) fn new(core: Core, bundle: Arc<Bundle>, soc: Soc) -> Self {
        let memory: Arc<dyn Memory> = Arc::new(BundleMemory(Arc::clone(&bundle)));
        Self {
            core,
            bundle,
            memory,
            soc,
            shared_forms: Mutex::default(),
        }
    }

    /// Checks that every kernel has a device and a variant, and that their activations agree.
    pub(super) fn plan(&self) -> Result<LoadPlan, RuntimeError> {
        let manifest = self.bundle.manifest();
        let bound: Vec<(&manifest::Kernel, Bound<'_>)> = manifest
            .kernels
            .iter()
            .map(|kernel| Ok((kernel, bind(&self.soc, kernel)?)))
            .collect::<Result<_, RuntimeError>>()?;
        let variants = bound.iter().flat_map(|(kernel, bound)| {
            bound
                .variants
                .iter()
                .map(move |variant| (*kernel, *variant))
        });
        let activations = shared_activations(variants.clone())?;
        let chunk = |variant: &Variant| match variant.shape {
            ShapeClass::Static { tokens } => tokens as usize,
            ShapeClass::Dynamic => usize::MAX,
        };
        // The largest chunk that every token-wise kernel takes.
        let chunk_max = bound
            .iter()
            .filter(|(kernel, _)| kernel.group != Group::Mha)
            .map(|(_, bound)| {
                bound
                    .variants
                    .iter()
                    .map(|variant| chunk(variant))
                    .max()
                    .unwrap_or(0)
            })
            .min()
            .unwrap_or(usize::MAX);
        Ok(LoadPlan {
            activations,
            chunk_max,
        })
    }

    /// Prepares one place after the other until there are no more, or somebody fails.
    fn work(&self, next: &AtomicUsize, abandoned: &AtomicBool) -> Share {
        let places = all_places(self.bundle.manifest());
        let mut ready = Vec::new();
        while let Some(place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
            if abandoned.load(Ordering::Relaxed) {
                break;
            }
            let prepared = self.prepare(*place);
            abandoned.fetch_or(prepared.is_err(), Ordering::Relaxed);
            ready.push((*place, prepared?));
        }
        Ok(ready)
    }

    fn prepare(&self, place: Place) -> Result<Prepared, RuntimeError> {
        let manifest = self.bundle.manifest();
        let used = place_use(manifest, place)?;
        let kernel = manifest
            .kernels
            .get(used.kernel.0 as usize)
            .ok_or(unknown(place))?;
        let bound = bind(&self.soc, kernel)?;
        let sections = use_sections(manifest, used);
        if place.group == Group::Head {
            // The embedding is no kernel's weight, unless the head is tied to it: its hash is checked here.
            let table = manifest.embedding.table.0 as usize;
            let table = manifest.weights.get(table).ok_or(unknown(place))?;
            self.bundle
                .section(table.values)
                .map_err(RuntimeError::Section)?;
        }
        let forms = (0..bound.variants.len())
            .map(|index| self.form(used, kernel, &bound, index, &sections))
            .collect::<Result<_, RuntimeError>>()?;
        let constant = bound
            .variants
            .iter()
            .all(|variant| variant.binding == Binding::Constant);
        let packed = if constant { sections } else { Vec::new() };
        Ok(Prepared { forms, packed })
    }

    fn form(
        &self,
        used: &KernelUse,
        kernel: &manifest::Kernel,
        bound: &Bound<'_>,
        index: usize,
        sections: &[heg_artifacts::SectionId],
    ) -> Result<Form, RuntimeError> {
        let variant = bound.variants[index];
        let compiled = self.compiled(used, kernel, bound, index, sections)?;
        let request = compiled
            .request()
            .map_err(openvino(format!("request for `{}`", kernel.name)))?;
        let mut form = Form {
            shape: variant.shape,
            request,
        };
        if variant.binding == Binding::Input {
            self.bind_weights(kernel, used, &mut form)?;
        }
        Ok(form)
    }

    fn compiled(
        &self,
        used: &KernelUse,
        kernel: &manifest::Kernel,
        bound: &Bound<'_>,
        index: usize,
        sections: &[heg_artifacts::SectionId],
    ) -> Result<CompiledModel, RuntimeError> {
        let variant = bound.variants[index];
        if variant.binding == Binding::Constant {
            return self.compile(kernel, bound, variant, sections);
        }
        // What a panicking thread left is a map of whole entries.
        let mut shared = self
            .shared_forms
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = shared.get(&(used.kernel.0, index)) {
            return Ok(compiled.clone());
        }
        let compiled = self.compile(kernel, bound, variant, &[])?;
        shared.insert((used.kernel.0, index), compiled.clone());
        Ok(compiled)
    }

    fn compile(
        &self,
        kernel: &manifest::Kernel,
        bound: &Bound<'_>,
        variant: &Variant,
        sections: &[heg_artifacts::SectionId],
    ) -> Result<CompiledModel, RuntimeError> {
        let offset = |id| -> Result<u64, RuntimeError> {
            Ok(self
                .bundle
                .section_range(id)
                .map_err(RuntimeError::Section)?
                .start)
        };
        // Hashes are checked before OpenVINO sees a byte.
        for id in sections {
            self.bundle.section(*id).map_err(RuntimeError::Section)?;
        }
        let literals = self.bundle.manifest().literals;
        self.bundle
            .section(literals)
            .map_err(RuntimeError::Section)?;
        let text = self
            .bundle
            .section(variant.ir)
            .map_err(RuntimeError::Section)?;
        let text = String::from_utf8_lossy(text);
        let offsets = sections
            .iter()
            .map(|id| offset(*id))
            .collect::<Result<Vec<_>, RuntimeError>>()?;
        let xml = ir::resolve(&text, &kernel.name, &offsets, offset(literals)?)?;
        let bytes = self.memory.len();
        let weights = Tensor::new(
            Arc::clone(&self.memory),
            0,
            heg_openvino::ElementType::U8,
            &[bytes],
        )
        .map_err(openvino("view of the bundle"))?;
        let doing = || {
            format!(
                "compile kernel `{}` for `{}`",
                kernel.name, bound.device.openvino
            )
        };
        let model = self
            .core
            .read_model(xml.as_bytes(), Some(&weights))
            .map_err(openvino(format!("read the IR of kernel `{}`", kernel.name)))?;
        let properties: Vec<(&str, &str)> = bound
            .device
            .properties
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        self.core
            .compile(&model, &bound.device.openvino, &properties)
            .map_err(openvino(doing()))
    }

    /// Binds the weights of a place behind the activation ports: values and scales, weight after weight.
    fn bind_weights(
        &self,
        kernel: &manifest::Kernel,
        used: &KernelUse,
        form: &mut Form,
    ) -> Result<(), RuntimeError> {
        let manifest = self.bundle.manifest();
        let mut port = kernel.inputs.len();
        for id in &used.weights {
            let Some(weight) = manifest.weights.get(id.0 as usize) else {
                continue;
            };
            let shape: Vec<usize> = weight.shape.iter().map(|dim| *dim as usize).collect();
            self.bind_section(
                form,
                port,
                weight.values,
                tensor_element(weight.element),
                &shape,
            )?;
            port += 1;
            if let Some(scales) = weight.scales {
                self.bind_section(
                    form,
                    port,
                    scales,
                    heg_openvino::ElementType::F32,
                    &[1, shape[0]],
                )?;
                port += 1;
            }
        }
        Ok(())
    }

    fn bind_section(
        &self,
        form: &mut Form,
        port: usize,
        id: heg_artifacts::SectionId,
        element: heg_openvino::ElementType,
        shape: &[usize],
    ) -> Result<(), RuntimeError> {
        self.bundle.section(id).map_err(RuntimeError::Section)?;
        let start = self
            .bundle
            .section_range(id)
            .map_err(RuntimeError::Section)?
            .start;
        let tensor = Tensor::new(Arc::clone(&self.memory), start as usize, element, shape)
            .map_err(openvino(format!("view of {}", self.bundle.label(id))))?;
        form.request
            .bind_input(port, tensor)
            .map_err(openvino(format!("bind {}", self.bundle.label(id))))
    }
}

/// What all kernels agree on.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadPlan {
    pub(super) activations: ElementType,
    /// Largest number of tokens a call can have.
    pub(super) chunk_max: usize,
}

impl Kernels {
    /// Begins to prepare all places, on `threads` threads.
    pub(super) fn load(loader: Arc<Loader>, threads: usize) -> Self {
        let abandoned = Arc::new(AtomicBool::new(false));
        let next = Arc::new(AtomicUsize::new(0));
        let workers = (0..threads.max(1))
            .map(|_| {
                let (loader, next, abandoned) = (
                    Arc::clone(&loader),
                    Arc::clone(&next),
                    Arc::clone(&abandoned),
                );
                thread::spawn(move || loader.work(&next, &abandoned))
            })
            .collect();
        Self { workers, abandoned }
    }

    /// Waits until all places are ready.
    ///
    /// The first request does not begin before: compiling takes all cores, and an inference that runs
    /// meanwhile, on threads of its own, is six times as slow as after (1B model, two cores). The first
    /// inference of each kernel packs its weights, which is better left to one kernel at a time with all
    /// threads than to several at once: 1.32 s from start to first token against 1.58 s.
    pub(super) fn join(&mut self) -> Result<BTreeMap<Place, Prepared>, RuntimeError> {
        let mut ready = BTreeMap::new();
        for worker in self.workers.drain(..) {
            ready.extend(worker.join().map_err(|_| RuntimeError::LoaderGone)??);
        }
        Ok(ready)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            // Nobody wants what it prepared, nor why it could not.
            let _ = worker.join();
        }
    }
}

/// Places in the order in which they are prepared: that of execution, but for the head, which comes after the
/// first layer. It is the longest of all to prepare, and at the end it would keep one thread busy alone.
/// Attention of the same kernel is one place for all its layers.
fn all_places(manifest: &Manifest) -> Vec<Place> {
    let mut places = Vec::new();
    let mut attention = Vec::new();
    for (index, layer) in (0..).zip(&manifest.layers) {
        let place = |group| Place {
            layer: Some(index),
            group,
        };
        places.push(place(Group::Qkv));
        if !attention.contains(&layer.mha.kernel) {
            attention.push(layer.mha.kernel);
            places.push(place(Group::Mha));
        }
        places.push(place(Group::Ffn));
        if index == 0 {
            places.push(Place {
                layer: None,
                group: Group::Head,
            });
        }
    }
    places
}

/// The place that stands for this one: attention of the same kernel shares the first layer's.
pub(super) fn shared_place(manifest: &Manifest, place: Place) -> Place {
    let Place {
        layer: Some(layer),
        group: Group::Mha,
    } = place
    else {
        return place;
    };
    let kernel = manifest
        .layers
        .get(layer as usize)
        .map(|layer| layer.mha.kernel);
    let first = manifest
        .layers
        .iter()
        .position(|layer| Some(layer.mha.kernel) == kernel);
    Place {
        layer: first.map(|first| first as u32),
        group: Group::Mha,
    }
}

pub(super) fn place_use(manifest: &Manifest, place: Place) -> Result<&KernelUse, RuntimeError> {
    let Some(layer) = place.layer else {
        return Ok(&manifest.head);
    };
    let layer = manifest.layers.get(layer as usize).ok_or(unknown(place))?;
    match place.group {
        Group::Qkv => Ok(&layer.qkv),
        Group::Mha => Ok(&layer.mha),
        Group::Ffn => Ok(&layer.ffn),
        Group::Head => Err(unknown(place)),
    }
}

/// Sections of a place in the order in which IRs count them.
fn use_sections(manifest: &Manifest, used: &KernelUse) -> Vec<heg_artifacts::SectionId> {
    used.weights
        .iter()
        .filter_map(|id| manifest.weights.get(id.0 as usize))
        .flat_map(|weight| std::iter::once(weight.values).chain(weight.scales))
        .collect()
}

fn unknown(place: Place) -> RuntimeError {
    RuntimeError::Launch {
        group: place.group,
        layer: place.layer,
    }
}

/// The boundary's name of a bundle's element type.
pub(super) fn tensor_element(element: ElementType) -> heg_openvino::ElementType {
    match element {
        ElementType::I8 => heg_openvino::ElementType::I8,
        ElementType::F16 => heg_openvino::ElementType::F16,
        ElementType::F32 => heg_openvino::ElementType::F32,
        ElementType::I64 => heg_openvino::ElementType::I64,
    }
}
